"""The script that decides on the server: its text, the encoding of calls for it, and the decoding of its reply.

One script for all: its parts, the `.lua` files beside this one, are twins of the files of `headgate.core` and are put
together here. It decides any number of plans in one call. What it takes and answers is described in `lua/plan.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from struct import Struct, unpack
from time import time_ns

import msgspec

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision, exhausted, marked
from headgate.core.errors import OutcomeUnknown, StoreError
from headgate.core.key import Principal
from headgate.core.numbers import fineness, rate, short
from headgate.core.plan import Call, Limit, Plan, Verb, combine
from headgate.core.pressure import Pressure, thresholds
from headgate.core.quota import Quota
from headgate.stores.redis.address import Address
from headgate.stores.redis.protocol import bulk, command, denial

_ALGORITHMS = {
    "token_bucket": ("tb", "lb", "tb/every", "tb/once"),
    "gcra": ("gcra",),
    "fixed_window": ("fw", "fw/calendar"),
    "sliding_window_counter": ("swc",),
    "sliding_window_log": ("swl",),
}
"""The names of the steps that a file returns, each for one `name`."""


def _lua(part: str) -> str:
    return files(__package__).joinpath("lua", f"{part}.lua").read_text("ascii")


def _assemble() -> str:
    """Return the script. Since each call of it runs all of it, an algorithm is defined only when it is needed."""
    cases = "".join(
        f"if {' or '.join(f'name == {name!r}' for name in names)} then\n{_lua(part)}end\n"
        for part, names in _ALGORITHMS.items()
    )
    return f"#!lua\n{_lua('calls')}\nlocal function step_named(name)\n{_lua('common')}{cases}end\n{_lua('plan')}"


SCRIPT = _assemble().encode()
SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
LOAD = command(b"SCRIPT", b"LOAD", SCRIPT)

NOT_REPLICATED = "not_replicated"
"""Why a decision of the primary is degraded: not enough replicas have it, so a failover may forget it."""
UNANSWERED = "storage_unavailable"
"""Why a part of a decision is degraded: the limit's shard did not answer, or its key holds something else."""

_LETTERS = {Verb.CHECK: b"c", Verb.CHECK_ONCE: b"o", Verb.PEEK: b"p", Verb.REFUND: b"r", Verb.RESET: b"x"}
_ATTEMPTS = {Verb.CHECK: b"C", Verb.CHECK_ONCE: b"O", Verb.REFUND: b"b"}
_CHECK = Verb.CHECK  # a name is found faster than a member
_REFUND_CHARGE, _TRY_OUT, _FIND = b"u", b"s", b"q"
_REPLAYED = 2
"""What `allowed` is where a request was admitted before, by other limits, so that these take nothing."""
_PRESSURES = (Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED)
_HEAD = Struct("<cHBd")
_DOUBLE = Struct("<d")
_QUOTA = Struct("<10d")
_SERVER_TIME = b"$0\r\n\r\n"
_EVALSHA = bulk(b"EVALSHA") + bulk(SHA)


class Query(msgspec.Struct, frozen=True, gc=False):
    """A call of a store, encoded for the script."""

    call: Call
    """All its limits are in one slot."""
    letter: bytes
    """What is to be done; see `lua/plan.lua`."""
    keys: bytes
    """Of its limits, in order, those of shadow plans last, then of its record if it has one; encoded for the wire."""
    key_count: int
    plan_count: int
    arguments: bytes
    """One for each plan, encoded for the wire. Empty if they depend on the time, since there are calendars."""
    replicas: int
    """How many replicas must have what the answer took, by the strictest of the quotas; 0 if it takes nothing."""
    size: int
    """How many numbers answer it: for each plan the time, and then six for each limit."""
    charge: int
    """What an admission takes, of each limit unless `Call.costs` says otherwise; 0 if there is none."""


def query(call: Call, *, attempt: bool = False) -> Query:
    """Encode a call. All its keys must be in one slot.

    In an `attempt` at several slots a check may be undone, by a refund that has its time as the charge, and its token.
    """
    limits, replicas = call.plan, 0
    letter, charge = _letter_of(call, attempt=attempt)
    if letter not in b"pq":
        for limit in limits:
            replicas = max(replicas, limit.quota.replicas)
    plan_count = len(call.shadow) + (1 if limits or call.token else 0)
    for plan in call.shadow:
        limits += plan
    frames, dated = [], False
    for limit in limits:
        space, principal = limit.space, limit.principal
        if limit.quota.calendar is not None:
            dated = True
        if (
            isinstance(principal, str)
            and principal.isascii()
            and not ("%" in principal or "{" in principal or "}" in principal)
        ):
            frames.append(f"${len(principal) + len(space) + 7}\r\nhg1:{{={principal}}}{space}\r\n")  # as most are
        else:
            frames.append(bulk(key_of(space, principal)).decode())
    if call.token:
        frames.append(bulk(record_key(call)).decode())
    arguments = b"" if dated else arguments_at(call, letter, 0)
    keys, size = "".join(frames).encode(), plan_count + 6 * len(limits)
    return Query(call, letter, keys, len(frames), plan_count, arguments, replicas, size, charge)


def _letter_of(call: Call, *, attempt: bool) -> tuple[bytes, int]:
    """Return what is to be done, and what an admission takes."""
    verb, cost = call.verb, call.cost
    if verb is _CHECK:
        return b"C" if attempt else b"c", cost
    if call.charge is not None and not attempt:
        return _REFUND_CHARGE, 0
    if call.token and verb is Verb.PEEK:
        return _FIND, cost
    return (_ATTEMPTS if attempt else _LETTERS)[verb], cost if verb is Verb.CHECK_ONCE else 0


def key_of(space: str, principal: Principal) -> bytes:
    """Return the key in Redis. The hash tag is the principal, so that all its limits live in one slot.

    The tag cannot end early or be empty, whatever the principal: braces in it are escaped, and it has a prefix that
    distinguishes text from a digest.
    """
    if isinstance(principal, bytes):
        return f"hg1:{{#{principal.hex()}}}{space}".encode()
    escaped = principal.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return f"hg1:{{={escaped}}}{space}".encode()


def record_key(call: Call) -> bytes:
    """Return the key of the record of a request with a token, in the slot of the caller.

    No limit has that key: a name has no exclamation mark.
    """
    return key_of(f"!{call.token.hex()}", home_of(call))


def home_of(call: Call) -> Principal:
    """Return the principal in whose slot the record of a call is; of one without limits, the call itself."""
    return call.caller or (call.plan or call.shadow[0])[0].principal


def arguments_at(call: Call, letter: bytes, now: int | None) -> bytes:
    """Return the arguments of a call, for the operation `letter`.

    The server knows no time zones, so the periods of calendars are among them.
    These are the ones around `now`, or around this process's time if the time is the server's. That the two clocks
    differ does no harm as long as it is by less than a period.
    """
    now, plan, charge, arguments = time_ns() // 1000 if now is None else now, call.plan, call.charge, b""
    if plan or call.token:
        head = _HEAD.pack(letter, len(plan), 1 if call.token else 0, 0 if charge is None else min(charge.taken_at))
        if letter == _REFUND_CHARGE and charge is not None:
            head += _DOUBLE.pack(charge.until)
        arguments = bulk(head + _limits_at(plan, call.cost, now, call.costs))
    tried = _TRY_OUT if plan and call.verb is _CHECK else letter
    for each in call.shadow:
        arguments += bulk(_HEAD.pack(tried, len(each), 0, 0) + _limits_at(each, call.cost, now))
    return arguments


def _limits_at(plan: Plan, cost: int, now: int, costs: tuple[int, ...] = ()) -> bytes:
    limits = b""
    for place, limit in enumerate(plan):
        quota = limit.quota
        period = None if quota.calendar is None else quota.calendar.around(now)
        limits += _encode_limit(quota, costs[place] if costs else cost, period)
    return limits


@lru_cache(maxsize=4096)
def _encode_limit(quota: Quota, cost: int, period: tuple[int, int, int] | None) -> bytes:
    fine = fineness(quota.limit, quota.window_us, quota.capacity) if quota.algorithm.is_bucket and quota.limit else 0
    gain, _, unit = rate(quota.limit, quota.window_us, fine)
    calm, warn = thresholds(quota)
    every = max(quota.grain_us, quota.refill_every_us)
    if period:
        gain, unit, every = period
    numbers = (quota.limit, quota.capacity, quota.window_us, gain, unit, every, calm, warn, quota.queue, fine)
    return _DOUBLE.pack(cost) + _step(quota).encode() + b"\0" + _QUOTA.pack(*numbers)


def _step(quota: Quota) -> str:
    """Return the name of the function in the script that is the twin of `quota.step`."""
    if not quota.limit:
        return "tb/once"
    if quota.calendar:
        return "fw/calendar"
    return quota.algorithm.code if quota.refill_every_us == 1 else "tb/every"


def evaluation(queries: Sequence[Query], now: int | None) -> bytes:
    """Encode one call of the script that answers all `queries`, at the time `now` if that is not the server's."""
    keys, plans, arguments = 0, 0, []
    for each in queries:
        keys += each.key_count
        plans += each.plan_count
        arguments.append(each.arguments or arguments_at(each.call, each.letter, now))
    head = b"*%d\r\n%b%b" % (4 + keys + plans, _EVALSHA, bulk(b"%d" % keys))
    time = _SERVER_TIME if now is None else bulk(b"%d" % now)
    return b"".join([head, *[each.keys for each in queries], time, *arguments])


def decisions(reply: object, queries: Sequence[Query], address: Address) -> list[Decision | StoreError]:
    """Return the answer to each of the queries that one call of the script was about, from its reply.

    Raises:
        OutcomeUnknown: this is not a reply of the script.
    """
    size = 0
    for query in queries:
        size += query.size
    if type(reply) is not bytes or len(reply) != 8 * size:
        raise OutcomeUnknown(f"the script sent an unexpected reply: {short(reply)}")
    numbers = unpack(f"<{size}q", reply)
    answers: list[Decision | StoreError] = []
    at = 0
    for query in queries:
        call = query.call
        if numbers[at] < 0:
            answers.append(_failure(numbers[at], address))
        elif call.shadow:
            answers.append(_with_shadows(call, query.charge, numbers, at))
        else:
            answers.append(_decision(call.plan, query.charge, numbers, at, call.costs))
        at += query.size
    return answers


def _failure(first: int, address: Address) -> StoreError:
    """Return the error of a call that the script could not decide, unlike others of the batch, by its first number."""
    if first == -2:
        return denial(address)
    return OutcomeUnknown(f"{address}: the key of this limit contains other data")


def _with_shadows(call: Call, charge: int, numbers: Sequence[int], at: int) -> Decision:
    decision = combine(())
    if call.plan:
        decision = _decision(call.plan, charge, numbers, at, call.costs)
        at += 1 + 6 * len(call.plan)
    charge, tried = charge if decision.allowed else 0, []
    for plan in call.shadow:
        unknown = numbers[at] < 0  # the result of the call's own plan is known all the same
        tried.append(missing_answer(plan) if unknown else _decision(plan, charge, numbers, at))
        at += 1 + 6 * len(plan)
    return msgspec.structs.replace(decision, shadow=tuple(tried))


def _decision(plan: Plan, charge: int, numbers: Sequence[int], at: int, costs: tuple[int, ...] = ()) -> Decision:
    """Return the decision of a plan that the script answered.

    An admission has taken `charge` from each limit, or its cost in `costs`.
    """
    if len(plan) == 1:
        now, allowed, remaining, retry, reset, pressure, delay = numbers[at : at + 7]
        quota = plan[0].quota
        if allowed:
            charge = 0 if allowed == _REPLAYED else charge
            return Decision(
                True, quota.capacity, remaining, retry, reset, _PRESSURES[pressure], quota, delay, charge, now
            )
        return Decision(False, quota.capacity, remaining, retry, reset, _PRESSURES[pressure], quota, delay)
    now, found = numbers[at], []
    if not plan:
        return msgspec.structs.replace(combine(()), allowed=now > 0)
    passed = numbers[at + 1 : at + 1 + 6 * len(plan) : 6]
    taken = 0 if 0 in passed or _REPLAYED in passed else charge
    for place, limit in enumerate(plan):
        quota = limit.quota
        allowed, remaining, retry, reset, pressure, delay = numbers[at + 1 : at + 7]
        at += 6
        state, when = _PRESSURES[pressure], now if allowed else 0
        took = costs[place] if taken and costs else taken
        found.append(Decision(allowed > 0, quota.capacity, remaining, retry, reset, state, quota, delay, took, when))
    return combine(found)


def missing_answer(plan: Plan) -> Decision:
    """Return the part of a decision for limits whose shard did not answer."""
    return marked(combine([exhausted(limit.quota) for limit in plan]), UNANSWERED)


def mark_unconfirmed(decision: Decision) -> Decision:
    """Return a decision of which not enough replicas have what it wrote."""
    return marked(decision, NOT_REPLICATED)


_PROBED = (
    ("!ready0", Quota(1_000_000, 1_000_000)),
    ("!ready1", Quota(1000, 1_000_000, algorithm=Algorithm.SLIDING_WINDOW_LOG)),
)


def probe(principal: str = "headgate") -> Call:
    """Return a call that reads and writes as any check does, on limits of its own: can the server decide?

    One of its two limits is a log, so the script needs all its permissions. The server is vetted as well: see
    `headgate.stores.redis.protocol.vetting`.
    """
    return Call(Verb.CHECK, tuple([Limit(space, principal, quota) for space, quota in _PROBED]))
