"""Who may ask the decision plane: keys of callers, from a file that has their digests only.

One caller a line, a name and the SHA-256 of its key in hexadecimal; empty lines and what follows ``#`` do not count::

    # printf %s "$KEY" | sha256sum
    edge-proxy  9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    billing     60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

A name may have several keys, so that one can be replaced by another without a moment between. Callers send their key as
``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``; over gRPC these are metadata.
"""

from __future__ import annotations

from pathlib import Path

from headgate.core.errors import UsageError
from headgate.server.wire.messages import Headers
from headgate.web.apikey import ApiKeys, Holder

HEADERS = frozenset({b"authorization", b"x-api-key"})
"""Where callers send their keys."""
_MAX_BYTES = 1_048_576


class CallerKeys:
    """The keys that are accepted."""

    __slots__ = ("_bearer", "_plain", "count")

    def __init__(self, known: dict[str, Holder]) -> None:
        self._bearer = ApiKeys(known, header="authorization", scheme="Bearer")
        self._plain = ApiKeys(known)
        self.count = len(known)

    @classmethod
    def read(cls, path: str | Path) -> CallerKeys:
        """Read a file. Raises UsageError, which says in which line it is wrong, and never shows what is in it."""
        known: dict[str, Holder] = {}
        for number, line in enumerate(_lines(Path(path)), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                name, digest = words
                ApiKeys({digest.lower(): Holder(name)})
            except ValueError:
                raise UsageError(f"{path}:{number}: a line is NAME and the SHA-256 of a key, 64 of 0-9 a-f") from None
            if digest.lower() in known:
                raise UsageError(f"{path}:{number}: the same key is in the file twice")
            known[digest.lower()] = Holder(name)
        if not known:
            raise UsageError(f"{path}: no caller is in it, so nobody could ask")
        return cls(known)

    def caller(self, headers: Headers) -> tuple[str, bytes]:
        """Return the name of the caller and what proves it, or empty ones. A request with two credentials has none."""
        found, keys = b"", self._plain
        for name, value in headers:
            if name == b"authorization" or name == b"x-api-key":  # noqa: PLR1714  a set costs more
                if found:
                    return "", b""
                found, keys = value, self._bearer if name == b"authorization" else self._plain
        holder = keys.find(found)[0] if found else None
        return (holder.name, found) if holder else ("", b"")


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise UsageError(f"{path}: more than {_MAX_BYTES} bytes, which is no file of caller keys")
        return raw.decode().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: it is not text in UTF-8") from None
