"""The script that decides on the server, and the encoding of its arguments and of its reply.

One script for all: its parts, the `.lua` files beside this one, are twins of the files of `headgate.core` and are put
together here. It decides any number of plans in one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown
from headgate.core.key import Principal
from headgate.core.numbers import reduced
from headgate.core.plan import Plan, blocking, most_restrictive
from headgate.core.pressure import Pressure, thresholds
from headgate.core.quota import Quota
from headgate.core.sliding_window_counter import grains_of
from headgate.stores.redis.resp import bulk

_PARTS = (
    "common",
    "token_bucket",
    "gcra",
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "plan",
)
_PRESSURES = (Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED)
_LIMIT_ARGUMENTS = 10
ANSWER = 6
"""Numbers per limit in an answer."""

SCRIPT = b"#!lua\n" + b"\n".join(files(__package__).joinpath("lua", f"{part}.lua").read_bytes() for part in _PARTS)
SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

_EVALSHA = b"$7\r\nEVALSHA\r\n$40\r\n" + SHA + b"\r\n"

CHECK, PEEK, REFUND, RESET = b"c", b"p", b"r", b"x"


class Question(NamedTuple):
    """A plan to run, ready to be sent."""

    plan: Plan
    keys: list[bytes]
    arguments: tuple[bytes, ...]
    """Encoded for the wire; one element may hold several."""
    size: int
    """How many arguments these are."""


def question(verb: bytes, plan: Plan, cost: int) -> Question:
    """Return the question whether `plan` admits `cost`, or another verb's."""
    keys = [key_of(space, principal) for space, principal, _ in plan]
    described = [_described(quota) for _, _, quota in plan]
    return Question(plan, keys, (_asked(verb, cost, len(plan)), *described), 3 + _LIMIT_ARGUMENTS * len(plan))


def key_of(space: str, principal: Principal) -> bytes:
    """Return the key in Redis. The hash tag is the principal, so that all its limits live in one slot.

    The tag cannot end early or be empty, whatever the principal: braces in it are escaped, and it has a prefix that
    tells text from a digest.
    """
    if isinstance(principal, bytes):
        tag = f"#{principal.hex()}"
    elif "%" in principal or "{" in principal or "}" in principal:
        tag = "=" + principal.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    else:
        tag = "=" + principal
    return f"hg1:{{{tag}}}{space}".encode()


@lru_cache(maxsize=4096)
def _described(quota: Quota) -> bytes:
    gain, unit = reduced(quota.limit, quota.window_us)
    calm, warn = thresholds(quota)
    every = grains_of(quota)[0] if quota.algorithm == Algorithm.SLIDING_WINDOW_COUNTER else quota.refill_every_us
    numbers = (quota.limit, quota.capacity, quota.window_us, gain, unit, every, int(quota.queue), calm, warn)
    return _encoded(quota.algorithm.code, *numbers)


@lru_cache(maxsize=4096)
def _asked(verb: bytes, cost: int, limits: int) -> bytes:
    return _encoded(verb.decode(), cost, limits)


def _encoded(*words: str | int) -> bytes:
    texts = [str(word).encode() for word in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


def evaluation(asked: Iterable[Question], now: int | None) -> bytes:
    """Encode one call of the script that answers all that is `asked`, at the time `now` if that is not the server's."""
    keys: list[bytes] = []
    arguments: list[bytes] = [b"$0\r\n\r\n" if now is None else bulk(b"%d" % now)]
    count = 1
    for question in asked:
        keys += question.keys
        arguments += question.arguments
        count += question.size
    head = b"*%d\r\n" % (3 + len(keys) + count)
    return b"".join([head, _EVALSHA, bulk(b"%d" % len(keys)), *map(bulk, keys), *arguments])


def answers(reply: object, asked: Sequence[Question]) -> list[Sequence[int]]:
    """Return the answer to each of the questions that one call of the script was `asked`, from its reply."""
    expected = sum(len(question.plan) for question in asked) * ANSWER
    if not isinstance(reply, list) or len(reply) != expected:
        raise OutcomeUnknown(f"the script answered something else: {reply!r:.200}")
    found: list[Sequence[int]] = []
    at = 0
    for question in asked:
        size = len(question.plan) * ANSWER
        found.append(reply[at : at + size])
        at += size
    return found


def decision_of(plan: Plan, answer: Sequence[int]) -> Decision:
    """Return the decision of `plan` that the script answered."""
    decisions, admitted, at = [], True, 0
    for _, _, quota in plan:
        allowed, remaining, retry, reset, pressure, delay = answer[at : at + ANSWER]
        at += ANSWER
        if not allowed:
            admitted = False
        decisions.append(
            Decision(allowed == 1, quota.capacity, remaining, retry, reset, _PRESSURES[pressure], quota, delay)
        )
    return most_restrictive(decisions) if admitted else blocking(decisions)
