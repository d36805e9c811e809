"""The script that decides on the server, and the encoding of its arguments and of its reply.

One script for all: its parts, the `.lua` files beside this one, are twins of the files of `headgate.core` and are put
together here. It decides any number of plans in one call. What it takes and answers is described in `lua/plan.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from itertools import accumulate
from struct import Struct
from time import time_ns
from typing import NamedTuple, TypeAlias

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown
from headgate.core.key import Principal
from headgate.core.numbers import fineness, rate
from headgate.core.plan import Call, Plan, Verb, combine
from headgate.core.pressure import Pressure, thresholds
from headgate.core.quota import Quota
from headgate.stores.redis.resp import bulk

_ALGORITHMS = {
    "token_bucket": ("tb", "lb", "tb/every", "tb/once"),
    "gcra": ("gcra",),
    "fixed_window": ("fw", "fw/calendar"),
    "sliding_window_counter": ("swc",),
    "sliding_window_log": ("swl",),
}
"""The names of the steps that a file returns, each for the `name` it is asked for."""
_PRESSURES = (Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED)


def _lua(part: str) -> str:
    return files(__package__).joinpath("lua", f"{part}.lua").read_text("ascii")


def _assembled() -> str:
    """Return the script. Since each call of it runs all of it, an algorithm is defined only when asked for."""
    cases = "".join(
        f"if {' or '.join(f'name == {name!r}' for name in names)} then\n{_lua(part)}end\n"
        for part, names in _ALGORITHMS.items()
    )
    return f"#!lua\n{_lua('calls')}\nlocal function step_named(name)\n{_lua('common')}{cases}end\n{_lua('plan')}"


SCRIPT = _assembled().encode()
SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

_EVALSHA = b"$7\r\nEVALSHA\r\n$40\r\n" + SHA + b"\r\n"
_ONE_KEY = b"*6\r\n" + _EVALSHA + b"$1\r\n1\r\n"

CHECK, PEEK, REFUND, RESET, ONCE, UNDO = b"c", b"p", b"r", b"x", b"o", b"u"
_VERBS = {Verb.CHECK: CHECK, Verb.PEEK: PEEK, Verb.REFUND: REFUND, Verb.RESET: RESET}

_HEAD = Struct("<cHBdd")
_QUOTA = Struct("<10d")
_MOST_USUAL = 4096


class Question(NamedTuple):
    """A plan to run, ready to be sent."""

    plan: Plan
    keys: list[bytes]
    """Of its limits, in order, and then of its record, if it has one."""
    argument: bytes
    """The verb, its cost and the quotas, encoded for the wire."""
    dated: bool = False
    """Whether the quotas are missing in the argument, since calendars among them make it depend on the time."""
    replicas: int = 0
    """How many replicas must have what the answer took, by the strictest of the quotas; 0 if it takes nothing."""


def question(verb: bytes, plan: Plan, cost: int, *, token: bytes | None = None, since: int = 0) -> Question:
    """Return the question whether `plan` admits `cost`, or another verb's.

    Args:
        verb: CHECK, PEEK, REFUND and RESET are the verbs of a store. ONCE is a CHECK whose admission is recorded for
            five minutes under `token`, during which the same question has the same answer and takes nothing. UNDO
            takes back what a CHECK or ONCE of the same plan and cost has taken, as far as that surely still counts,
            and forgets its record.
        plan: its limits, all in one slot.
        cost: units, as `core.plan.checked_cost` has checked them.
        token: a digest that stands for the request and for whose limits these are, as the records of a principal share
            one space; for ONCE, and for UNDO of a ONCE.
        since: when the charge was made that UNDO takes back: the first number of its answer, in microseconds.
    """
    if token is None and not since:
        if len(plan) == 1:
            ((space, principal, quota),) = plan
            argument, dated, replicas, _ = _usual.get((verb, cost, id(quota))) or _remembered(verb, plan, cost)
            return Question(plan, [key_of(space, principal)], argument, dated, replicas)
        usual = _usual.get((verb, cost, *[id(quota) for _, _, quota in plan]))
        argument, dated, replicas, _ = usual or _remembered(verb, plan, cost)
        return Question(plan, [key_of(space, principal) for space, principal, _ in plan], argument, dated, replicas)
    keys = [key_of(space, principal) for space, principal, _ in plan]
    if token is not None:
        keys.append(record_key(plan, token))
    return Question(plan, keys, *_argument(verb, plan, cost, len(keys) - len(plan), since), _replicas(verb, plan))


def question_of(call: Call) -> Question:
    """Return the question that makes a call of a store; its plan is all in one slot."""
    verb, plan, cost, token, charge, _ = call
    if verb is Verb.CHECK_ONCE:
        return question(ONCE, plan, cost, token=token)
    if charge is not None:
        return question(UNDO, plan, cost, since=min(charge.taken_at))
    return question(_VERBS[verb], plan, cost)


def key_of(space: str, principal: Principal) -> bytes:
    """Return the key in Redis. The hash tag is the principal, so that all its limits live in one slot.

    The tag cannot end early or be empty, whatever the principal: braces in it are escaped, and it has a prefix that
    tells text from a digest.
    """
    return f"hg1:{{{_tag(principal)}}}{space}".encode()


def record_key(plan: Plan, token: bytes) -> bytes:
    """Return the key of what was answered to the request that `token` stands for, in the slot of the first limit.

    No limit has that key: a name has no exclamation mark.
    """
    return f"hg1:{{{_tag(plan[0].principal)}}}!{token.hex()}".encode()


def _tag(principal: Principal) -> str:
    if isinstance(principal, bytes):
        return f"#{principal.hex()}"
    if "%" in principal or "{" in principal or "}" in principal:
        return "=" + principal.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return "=" + principal


_Usual: TypeAlias = tuple[bytes, bool, int, list[Quota]]
_usual: dict[tuple[object, ...], _Usual] = {}
"""Arguments by verb, cost and the identities of the quotas, which are quicker than their hashes. The quotas are kept,
so that nothing else takes their identity."""


def _remembered(verb: bytes, plan: Plan, cost: int) -> _Usual:
    quotas = [quota for _, _, quota in plan]
    usual = *_argument(verb, plan, cost), _replicas(verb, plan), quotas
    if len(_usual) >= _MOST_USUAL:
        _usual.clear()
    _usual[verb, cost, *map(id, quotas)] = usual
    return usual


def _replicas(verb: bytes, plan: Plan) -> int:
    return 0 if verb == PEEK else max([quota.replicas for _, _, quota in plan])


def _argument(verb: bytes, plan: Plan, cost: int, records: int = 0, since: int = 0) -> tuple[bytes, bool]:
    head = _HEAD.pack(verb, len(plan), records, cost, since)
    if any(quota.calendar for _, _, quota in plan):
        return head, True
    return bulk(b"".join([head, *[_described(quota) for _, _, quota in plan]])), False


def _argument_at(question: Question, now: int | None) -> bytes:
    """Return the argument of a question with calendars. The server knows no time zones: it is told the periods.

    These are the ones around `now`, or around this process's time if the time is the server's. That the two clocks
    differ does no harm as long as it is by less than a period.
    """
    now = time_ns() // 1000 if now is None else now
    quotas = [quota for _, _, quota in question.plan]
    periods = [quota.calendar and quota.calendar.around(now) for quota in quotas]
    return bulk(b"".join([question.argument, *map(_described, quotas, periods)]))


@lru_cache(maxsize=4096)
def _described(quota: Quota, period: tuple[int, int, int] | None = None) -> bytes:
    fine = fineness(quota.limit, quota.window_us, quota.capacity) if quota.algorithm.is_bucket and quota.limit else 0
    gain, _, unit = rate(quota.limit, quota.window_us, fine)
    calm, warn = thresholds(quota)
    every = max(quota.grain_us, quota.refill_every_us)
    if period:
        gain, unit, every = period
    numbers = (quota.limit, quota.capacity, quota.window_us, gain, unit, every, calm, warn, quota.queue, fine)
    return _step(quota).encode() + b"\0" + _QUOTA.pack(*numbers)


def _step(quota: Quota) -> str:
    """Return the name of the function in the script that is the twin of `quota.step`."""
    if not quota.limit:
        return "tb/once"
    if quota.calendar:
        return "fw/calendar"
    return quota.algorithm.code if quota.refill_every_us == 1 else "tb/every"


def evaluation(asked: Sequence[Question], now: int | None) -> bytes:
    """Encode one call of the script that answers all that is `asked`, at the time `now` if that is not the server's."""
    time = b"$0\r\n\r\n" if now is None else bulk(b"%d" % now)
    if len(asked) == 1 and len(asked[0].keys) == 1:
        _, (key,), argument, dated, _ = asked[0]
        if dated:
            argument = _argument_at(asked[0], now)
        return b"%b$%d\r\n%b\r\n%b%b" % (_ONE_KEY, len(key), key, time, argument)
    keys = [key for question in asked for key in question.keys]
    arguments = [_argument_at(question, now) if question.dated else question.argument for question in asked]
    head = b"*%d\r\n%b%b" % (4 + len(keys) + len(arguments), _EVALSHA, bulk(b"%d" % len(keys)))
    return b"".join([head, *[b"$%d\r\n%b\r\n" % (len(key), key) for key in keys], time, *arguments])


def answers(reply: object, asked: Sequence[Question]) -> list[Sequence[int]]:
    """Return the answer to each of the questions that one call of the script was `asked`, from its reply.

    An answer is the time at which the script decided, in microseconds, and then six numbers for each limit.
    """
    if type(reply) is bytes:
        if len(asked) == 1:
            form = _answer(len(asked[0].plan))
            if len(reply) == form.size:
                return [form.unpack(reply)]
        else:
            forms = [_answer(len(question.plan)) for question in asked]
            ends = list(accumulate([form.size for form in forms], initial=0))
            if len(reply) == ends.pop():
                return [form.unpack_from(reply, at) for form, at in zip(forms, ends, strict=True)]
    raise OutcomeUnknown(f"the script answered something else: {reply!r:.200}")


@lru_cache(maxsize=256)
def _answer(limits: int) -> Struct:
    return Struct(f"<{1 + 6 * limits}q")


def has_failed(answer: Sequence[int]) -> bool:
    """Say whether the script could not answer this question, though it answered others."""
    return answer[0] < 0


def is_denied(answer: Sequence[int]) -> bool:
    """Say whether that was for want of a permission."""
    return answer[0] == -2


def decision_of(plan: Plan, answer: Sequence[int], cost: int = 0) -> Decision:
    """Return the decision of `plan` that the script answered; `cost` is what it has taken if that is an admission."""
    if len(plan) == 1:
        now, allowed, remaining, retry, reset, pressure, delay = answer
        quota, state = plan[0].quota, _PRESSURES[pressure]
        if allowed:
            return Decision(True, quota.capacity, remaining, retry, reset, state, quota, delay, cost, now)
        return Decision(False, quota.capacity, remaining, retry, reset, state, quota, delay)
    now, decisions, at = answer[0], [], 1
    admitted = all(answer[1::6])
    taken = cost if admitted else 0
    for _, _, quota in plan:
        allowed, remaining, retry, reset, pressure, delay = answer[at : at + 6]
        at += 6
        state, when = _PRESSURES[pressure], now if allowed else 0
        decision = Decision(allowed == 1, quota.capacity, remaining, retry, reset, state, quota, delay, taken, when)
        decisions.append(decision)
    return combine(decisions)
