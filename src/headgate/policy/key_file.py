"""Keys that open the decision plane, on this machine's disk: as a database has them, and workers read them.

They are beside the rules of the same database (`headgate.policy.snapshot`), in ``keys.json``: digests, never keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headgate.live import FileMark, mark_of
from headgate.policy.snapshot import read_json, replace_file

KEYS = "keys.json"


class SharedKey(msgspec.Struct, frozen=True):
    """A key that opens the decision plane."""

    id: str
    digest: str
    """The SHA-256 of the key, in hexadecimal."""
    expires_at: int | None = None
    """Microseconds since the epoch; None: never."""


_decode = msgspec.json.Decoder(tuple[SharedKey, ...]).decode


def write_keys(folder: Path, keys: tuple[SharedKey, ...]) -> None:
    """Leave in a folder which keys open the decision plane. Raises OSError."""
    replace_file(folder / KEYS, msgspec.json.encode(keys))


class KeySource:
    """The keys in a folder that are good now, as a source that is followed (`headgate.live.Source`).

    Args:
        folder: where the file is; a folder without one has no keys.
        clock: what time it is, in microseconds since the epoch; for tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], int] | None = None) -> None:
        self._path, self.name = folder / KEYS, str(folder / KEYS)
        self._now = clock or (lambda: time.time_ns() // 1000)
        self._seen: FileMark | None = None
        self._ends: int | None = None  # when the next key expires

    def read(self) -> tuple[SharedKey, ...]:
        """Return them. Raises InvalidRule."""
        self._seen = mark_of(self._path)
        found = read_json(self._path, _decode) if self._seen is not None else ()
        now = self._now()
        good = tuple([key for key in found if key.expires_at is None or now < key.expires_at])
        self._ends = min([key.expires_at for key in good if key.expires_at is not None], default=None)
        return good

    def changed(self) -> tuple[SharedKey, ...] | None:
        """Return them if the file is another one, or one of them has expired. Raises InvalidRule, once for each."""
        is_over = self._ends is not None and self._now() >= self._ends
        if mark_of(self._path) == self._seen and not is_over:
            return None
        self._ends = None  # what cannot be read is not tried again until it is another file
        return self.read()
