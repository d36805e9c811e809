"""The floor: the least that any limiter written in Python has to do."""

from __future__ import annotations

from time import time_ns

from benchmarks.contenders.base import Call, Subject
from benchmarks.scenarios import Kind, Limit


class Floor:
    """Reads the clock once, and reads, changes and writes one dictionary entry per limit."""

    name = "floor"
    work = "a clock read and a dict read-modify-write per limit"
    equal = False

    def takes_part(self, _kind: Kind, _limits: int) -> bool:
        return True

    def open(self, _: Kind, limits: tuple[Limit, ...]) -> Subject:
        call = _one() if len(limits) == 1 else _several(len(limits))
        return Subject(call, allowed=_always, take=call)


def _always(_: object) -> bool:
    return True


def _one() -> Call:
    counts: dict[str, int] = {}
    find = counts.get

    def floor(key: str) -> int:
        counts[key] = find(key, 0) + 1
        return time_ns()

    return floor


def _several(limits: int) -> Call:
    tables: list[dict[str, int]] = [{} for _ in range(limits)]

    def floor(key: str) -> int:
        for counts in tables:
            counts[key] = counts.get(key, 0) + 1
        return time_ns()

    return floor
