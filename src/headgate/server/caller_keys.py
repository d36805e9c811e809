"""The keys of callers, where the service asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.core.errors import UsageError
from headgate.server.wire.messages import Headers
from headgate.web.apikey import NO_KEYS, ApiKeys, Holder

_LONGEST_FILE = 1_048_576


class CallerKeys:
    """The keys of callers that are accepted, from a file that has their digests only.

    One caller a line, a name and the SHA-256 of its key in hexadecimal; empty lines and what follows ``#`` do not
    count::

        # printf %s "$KEY" | sha256sum
        edge-proxy  9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        billing     60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

    A name may have several keys, so that one can be replaced by another without a moment between. Callers send their
    key as ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``; over gRPC these are metadata.
    """

    __slots__ = ("_bearer", "_plain", "known")

    def __init__(self, known: Mapping[str, Holder]) -> None:
        self.known = known
        """Whose key it is, by digest."""
        listed = known or NO_KEYS
        self._bearer = ApiKeys(listed, header="authorization", scheme="Bearer")
        self._plain = ApiKeys(listed)

    @classmethod
    def parse(cls, text: str, name: str) -> CallerKeys:
        """Read what a file has in it.

        Raises:
            UsageError: it says in which line `name` is wrong, and never shows what is in it.
        """
        if len(text) > _LONGEST_FILE:
            raise UsageError(f"{name}: more than {_LONGEST_FILE} characters, which is not a file of caller keys")
        known: dict[str, Holder] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                caller, digest = words
                ApiKeys({digest.lower(): Holder(caller)})
            except ValueError:
                raise UsageError(f"{name}:{number}: a line is NAME and the SHA-256 of a key, 64 of 0-9 a-f") from None
            if digest.lower() in known:
                raise UsageError(f"{name}:{number}: the same key is in the file twice")
            known[digest.lower()] = Holder(caller)
        if not known:
            raise UsageError(f"{name}: no caller is in it, so nobody could ask")
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
