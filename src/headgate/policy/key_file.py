"""Keys of callers and of consumers, on this machine's disk: as a database has them, and workers read them.

They are beside the rules of the same database (`headgate.policy.snapshot`): digests, never keys. Callers, whose keys
open the decision plane, are in ``keys.json``; consumers, who call the API that is protected, in ``consumers.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headgate.files import renewed_file
from headgate.live import FileMark, mark_of
from headgate.policy.snapshot import read_json

KEYS, CONSUMERS = "keys.json", "consumers.json"
CONSUMER_PREFIX = "hgc_"
"""How keys of consumers begin, and no others."""


class SharedKey(msgspec.Struct, frozen=True):
    """A key of a caller, or of a consumer."""

    id: str
    digest: str
    """The SHA-256 of the key, in hexadecimal."""
    expires_at: int | None = None
    """Microseconds since the epoch; None: never."""
    consumer: str = ""
    tenant: str = ""


_decode = msgspec.json.Decoder(tuple[SharedKey, ...]).decode


def write_keys(folder: Path, keys: Sequence[SharedKey], file: str = KEYS) -> None:
    """Leave in a folder which keys are accepted; a file that has them is left alone. Raises OSError."""
    renewed_file(folder / file, msgspec.json.encode(keys))


class KeySource:
    """The keys in a folder that are good now, as a source that is followed (`headgate.live.Source`).

    Args:
        folder: where the file is; a folder without one has no keys.
        clock: what time it is, in microseconds since the epoch; for tests.
        file: the name of the file.
    """

    def __init__(self, folder: Path, clock: Callable[[], int] | None = None, file: str = KEYS) -> None:
        self._path, self.name = folder / file, str(folder / file)
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
