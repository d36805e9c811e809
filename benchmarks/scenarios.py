"""What is measured: which algorithm, on which path, over how many keys, under how many limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

DAY, WEEK, MONTH = 86_400, 604_800, 30 * 86_400
MANY_KEYS = 10_000


class Kind(StrEnum):
    """An algorithm, spelled as in the text of a quota."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105  no password
    LEAKY_BUCKET = "leaky_bucket"
    LEAKY_QUEUE = "leaky_bucket queue"
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    GCRA = "gcra"


class Path(StrEnum):
    """Which answer every timed call gets."""

    ALLOW = "allow"
    DENY = "deny"


class Limit(NamedTuple):
    """`units` per `seconds`; the bucket algorithms get a capacity of `units` as well."""

    units: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison. All contenders of a scenario get the same keys in the same order."""

    kind: Kind
    path: Path
    keys: int
    """How many keys are in play."""
    limits: tuple[Limit, ...]
    """All limits of a request; the first is the one that refuses on the deny path."""

    def __str__(self) -> str:
        keys = "one key" if self.keys == 1 else f"{self.keys} keys"
        limits = "one limit" if len(self.limits) == 1 else f"{len(self.limits)} limits"
        return f"{self.kind}, {self.path}, {keys}, {limits}"


# Long windows, so that none rolls over and not even one unit comes back while a scenario is measured: 86 s at 1000 a
# day. The rates fall with the length of the window, which pyrate-limiter insists on.
ALLOWING = (Limit(1000, DAY), Limit(5000, WEEK), Limit(15_000, MONTH))
REFUSING_ONE_KEY = (Limit(100, DAY), Limit(500, WEEK), Limit(1500, MONTH))
REFUSING_MANY_KEYS = (Limit(2, DAY), Limit(10, WEEK), Limit(30, MONTH))


def all_scenarios(many_keys: int = MANY_KEYS) -> list[Scenario]:
    """Return every combination, one limit first."""
    return [
        Scenario(kind, path, keys, _limits(path, keys)[:limits])
        for limits in (1, 3)
        for kind in Kind
        for path in Path
        for keys in (1, many_keys)
    ]


def _limits(path: Path, keys: int) -> tuple[Limit, ...]:
    if path is Path.ALLOW:
        return ALLOWING
    return REFUSING_ONE_KEY if keys == 1 else REFUSING_MANY_KEYS
