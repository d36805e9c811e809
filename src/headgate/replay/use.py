"""How much each principal used of each endpoint in its busiest minute and hour, in bounded memory.

Few principals are all measured. Beyond `MOST_CELLS`, the measurement continues with half of them, by hash: a random
sample, in which each principal is measured from the first line to the last. The busiest are kept beside the sample, and
so are those that become busy later, so no outlier is missed; they do not count for the percentiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import NamedTuple, TypeAlias
from zlib import crc32

from headgate.policy.trie import matches, parsed
from headgate.replay.endpoints import Endpoint, Endpoints

WINDOWS = (("minute", 60_000_000), ("hour", 3_600_000_000))
"""The measured windows and their microseconds, aligned to multiples of their length."""
MOST_CELLS = 100_000
"""A cell counts one principal's usage of one endpoint; some 400 bytes."""
_MOST_OF_ONE = 64
"""Measured endpoints of one principal."""
_KEPT = 16
"""This many of the busiest principals of as many endpoints are kept beside the sample."""
_LEAST_BUSY = 10
_MOST_WAITING = 50_000
_HASHES = 1 << 32
_REQUESTS, _NUMBER, _PEAK = 0, 1, 3
_Cell: TypeAlias = list[int]
"""Requests; then, for each window: the number of the last one, its requests, and the most requests in one."""


class Use(NamedTuple):
    """What principals used of an endpoint in their busiest window."""

    peaks: dict[str, int]
    """By principal."""
    requests: dict[str, int]
    """By principal, for all endpoints."""
    sample: frozenset[str]
    """The principals that count for percentiles."""
    weight: int
    """The number of principals that each of the sample represents; 1: all were measured."""

    def count_represented(self, principals: Iterable[str]) -> int:
        """Return the number of principals that these represent."""
        return sum(self.weight if each in self.sample else 1 for each in principals)


class Usage:
    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self.endpoints = Endpoints()
        self.requests = 0
        self.level = 0
        """One principal in 2 ** level is in the sample."""
        self._most_cells, self._cells = most_cells, 0
        self._principals: dict[str, dict[Endpoint | None, _Cell]] = {}
        self._waiting: dict[str, int] = {}
        """Requests of principals outside the sample in the current minute."""
        self._minute, self._busy = 0, _LEAST_BUSY

    def add(self, at: int, principal: str, method: str, path: str, status: int) -> None:
        """Count a request for a path in its canonical form."""
        self.requests += 1
        endpoint = self.endpoints.find(method, path, status)
        cells = self._principals.get(principal)
        if cells is None:
            if self.level and not self._enters(at, principal):
                return
            cells = self._principals[principal] = {None: _new()}
            self._cells += 1
        numbers = [at // length for _, length in WINDOWS]
        _count(cells[None], numbers)
        if endpoint is not None:
            cell = cells.get(endpoint)
            if cell is None and len(cells) <= _MOST_OF_ONE:
                cell = cells[endpoint] = _new()
                self._cells += 1
            if cell is not None:
                _count(cell, numbers)
        if self._cells > self._most_cells:
            self._shrink()

    def use(self, endpoint: Endpoint | None, window: int) -> Use:
        """Return what principals used of an endpoint, or of all, in their busiest window of a kind.

        Requests that another pattern matches too count for both, as they do for rules. If their busiest windows differ,
        the result is an upper bound.
        """
        place = 3 * window + _PEAK
        peaks: dict[str, int] = {}
        requests: dict[str, int] = {}
        within: set[Endpoint | None] = {None}
        if endpoint is not None:
            pattern, method = parsed(endpoint.pattern), endpoint.method
            within = {each for each in self.endpoints if each.method == method and matches(pattern, each.pattern)}
        for principal, cells in self._principals.items():
            found: dict[Endpoint | None, int] = {}
            for each, cell in cells.items():
                current = each and each.current
                if current in within:
                    found[current] = max(cell[place], found.get(current, 0))
            if found:
                peaks[principal] = sum(found.values())
                requests[principal] = cells[None][_REQUESTS]
        return Use(peaks, requests, frozenset(filter(self._is_sampled, peaks)), 1 << self.level)

    def _is_sampled(self, principal: str) -> bool:
        return crc32(principal.encode()) < _HASHES >> self.level

    def _enters(self, at: int, principal: str) -> bool:
        """Return whether to measure an unknown principal from now on."""
        if self._is_sampled(principal):
            return True
        minute = at // WINDOWS[0][1]
        if minute != self._minute:
            self._minute, self._waiting = minute, {}
        waiting = self._waiting
        count = waiting[principal] = waiting.get(principal, 0) + 1
        if count > self._busy:
            del waiting[principal]
            return True
        if len(waiting) > _MOST_WAITING:
            self._waiting = {each: count - 1 for each, count in waiting.items() if count > 1}
        return False

    def _shrink(self) -> None:
        """Keep the busiest principals of each endpoint and the sample, halved while it is too large."""
        kept = self._busiest()
        while True:
            self._principals = {
                principal: cells
                for principal, cells in self._principals.items()
                if principal in kept or self._is_sampled(principal)
            }
            self._cells = sum(map(len, self._principals.values()))
            if self._cells <= self._most_cells * 3 // 4 or not _HASHES >> self.level:
                return
            self.level += 1

    def _busiest(self) -> set[str]:
        by_endpoint: dict[Endpoint | None, list[tuple[_Cell, str]]] = {}
        for principal, cells in self._principals.items():
            for endpoint, cell in cells.items():
                by_endpoint.setdefault(endpoint and endpoint.current, []).append((cell, principal))
        used = nlargest(_KEPT, by_endpoint, key=lambda each: self.requests if each is None else each.requests)
        minutes = sorted([cell[_PEAK] for cell, _ in by_endpoint[None]])
        self._busy = max(_LEAST_BUSY, minutes[len(minutes) * 99 // 100])
        return {
            principal
            for endpoint in used
            for place in (_PEAK, 3 + _PEAK)
            for _, principal in nlargest(_KEPT, by_endpoint[endpoint], key=lambda each: each[0][place])
        }


def _new() -> _Cell:
    return [0] * (1 + 3 * len(WINDOWS))


def _count(cell: _Cell, numbers: Iterable[int]) -> None:
    cell[_REQUESTS] += 1
    place = _NUMBER
    for number in numbers:
        last = cell[place]
        if number > last or number < last - 1:  # lines may be slightly late: servers write them at the end of requests
            cell[place], cell[place + 1] = number, 0
        count = cell[place + 1] = cell[place + 1] + 1
        cell[place + 2] = max(cell[place + 2], count)
        place += 3
