"""Files with the keys of callers and of consumers, copied from a database for workers.

They are in the folder of the rules (`headgate.policy.snapshot`) and have digests, never keys: ``keys.json`` those of
callers of the decision plane, ``consumers.json`` those of consumers, who call the protected API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headgate.files import renew_file
from headgate.live import FileMark, mark_of
from headgate.policy.snapshot import read_json

KEYS, CONSUMERS = "keys.json", "consumers.json"
CONSUMER_PREFIX = "hgc_"
"""The beginning of keys of consumers, and of no others."""


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
    """Write the accepted keys, unless the file has them already. Raises OSError."""
    renew_file(folder / file, msgspec.json.encode(keys))


class KeySource:
    """The unexpired keys in a folder, as a source (`headgate.live.Source`). Without the file, there are no keys.

    `clock` returns microseconds since the epoch; for tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], int] | None = None, file: str = KEYS) -> None:
        self._path, self.name = folder / file, str(folder / file)
        self._now = clock or (lambda: time.time_ns() // 1000)
        self._seen: FileMark | None = None
        self._ends: int | None = None  # when the next key expires

    def read(self) -> tuple[SharedKey, ...]:
        """Return the keys. Raises InvalidRule."""
        self._seen = mark_of(self._path)
        found = read_json(self._path, _decode) if self._seen is not None else ()
        now = self._now()
        good = tuple([key for key in found if key.expires_at is None or now < key.expires_at])
        self._ends = min([key.expires_at for key in good if key.expires_at is not None], default=None)
        return good

    def changed(self) -> tuple[SharedKey, ...] | None:
        """Return the keys if the file has changed, or one has expired. Raises InvalidRule, once for each file."""
        is_over = self._ends is not None and self._now() >= self._ends
        if mark_of(self._path) == self._seen and not is_over:
            return None
        self._ends = None  # an invalid file is not read again until it has changed
        return self.read()
