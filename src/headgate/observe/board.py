"""What all workers of a node show together: any of them can show it."""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headgate.observe import families
from headgate.observe.frequent import HALF_LIFE
from headgate.observe.hot_keys import HotKey, HotList, merged
from headgate.observe.rendering import OPENMETRICS, PROMETHEUS, rendered, wants_openmetrics
from headgate.observe.rendering import merged as merged_series
from headgate.observe.slots import Slice, Slots
from headgate.observe.table import SIZE, Reader, Table

_LOG = logging.getLogger("headgate.observe")
_decode = msgspec.json.Decoder(HotList).decode
_encode = msgspec.json.Encoder().encode


class HotReport(msgspec.Struct, frozen=True):
    """What ``/hotkeys`` shows."""

    workers: int
    """How many worker processes it is about."""
    half_life_seconds: int
    """How fast the rates forget."""
    hot: tuple[HotKey, ...]
    denied: tuple[HotKey, ...]


class Board:
    """The counters of this process, and those of its siblings.

    Args:
        slots: where they are; without it, this process is alone and its counters end with it.
        slot: which of them is this process's.
    """

    def __init__(self, slots: Slots | None, slot: int) -> None:
        self._slots = slots
        self._reading = threading.Lock()  # the text is made in a thread, and two may ask for it at once
        self._own = slots.open(slot) if slots else None
        if self._own:
            self.table = self._own.table
            """Where this process counts."""
        else:
            self._alone = mmap.mmap(-1, SIZE)
            self.table = Table(memoryview(self._alone))
            self._reader = Reader(memoryview(self._alone))
        self._shown = HotList()

    def metrics(self, accept: bytes | None) -> tuple[bytes, bytes]:
        """Return the content type and the text of all workers' metrics."""
        slices = self._slices()
        values = dict(merged_series((each.alive, each.series) for each in slices))
        values[families.WORKERS.name] = {"": (sum(each.alive for each in slices),)}
        openmetrics = wants_openmetrics(accept)
        return OPENMETRICS if openmetrics else PROMETHEUS, rendered(values, openmetrics=openmetrics)

    def show(self, hot: HotList) -> None:
        """Show siblings what is hot here."""
        if self._own and self._slots and hot != self._shown:
            self._shown = hot
            path = _hot_file(self._slots, self._own.number)
            unfinished = path.with_suffix(".new")
            try:
                unfinished.write_bytes(_encode(hot))
                unfinished.replace(path)
            except OSError as error:  # a full disk must not end what else is done every second
                _LOG.warning("hot keys of this worker cannot be shown to the others: %s", error)

    def hot_keys(self, own: HotList) -> bytes:
        """Return what is hot, in JSON: here now, elsewhere as it was shown last."""
        lists = [own, *self._others()]
        hot = merged(lists)
        return _encode(HotReport(len(lists), HALF_LIFE, hot.hot, hot.denied))

    def close(self) -> None:
        """Let go of the memory."""
        with self._reading:
            if self._own and self._slots:
                _hot_file(self._slots, self._own.number).unlink(missing_ok=True)
                self._own.close()
                self._slots.close()
            else:
                self._reader.close()
                self.table.close()
                self._alone.close()

    def _slices(self) -> list[Slice]:
        with self._reading:
            return self._slots.read() if self._slots else [Slice(0, True, self._reader.read())]

    def _others(self) -> Iterable[HotList]:
        if not (self._slots and self._own):
            return
        with self._reading:
            slots = self._slots.alive()
        for slot in slots:
            if slot != self._own.number:
                try:
                    yield _decode(_hot_file(self._slots, slot).read_bytes())
                except FileNotFoundError:  # it has nothing to show yet
                    yield HotList()


def _hot_file(slots: Slots, slot: int) -> Path:
    return slots.directory / f"{slot}.hot"
