"""Keys that callers of the service must send, if it requires them."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.core.errors import UsageError
from headgate.server.wire.messages import Headers
from headgate.web.apikey import NO_KEYS, ApiKeys, Holder

_LONGEST_FILE = 1_048_576


class CallerKeys:
    """The accepted keys of callers, from a file that contains only their digests.

    One caller per line, a name and the SHA-256 of its key in hexadecimal; ``#`` starts a comment::

        # printf %s "$KEY" | sha256sum
        edge-proxy  9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        billing     60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

    A name may have several keys, so that keys can be rotated without an interruption. Callers send their key as
    ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``; over gRPC, as metadata of these names.
    """

    __slots__ = ("_bearer", "_plain", "known")

    def __init__(self, known: Mapping[str, Holder]) -> None:
        self.known = known
        """The callers, by the digest of their key."""
        listed = known or NO_KEYS
        self._bearer = ApiKeys(listed, header="authorization", scheme="Bearer")
        self._plain = ApiKeys(listed)

    @classmethod
    def parse(cls, text: str, name: str) -> CallerKeys:
        """Read the text of a file. Raises UsageError, which names the line but never shows its content."""
        if len(text) > _LONGEST_FILE:
            raise UsageError(f"{name}: is not a file of caller keys: it has more than {_LONGEST_FILE} characters")
        known: dict[str, Holder] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                caller, digest = words
                ApiKeys({digest.lower(): Holder(caller)})
            except ValueError:
                raise UsageError(
                    f"{name}:{number}: each line must be NAME and the SHA-256 of a key, 64 of 0-9 a-f"
                ) from None
            if digest.lower() in known:
                raise UsageError(f"{name}:{number}: the same key is listed twice")
            known[digest.lower()] = Holder(caller)
        if not known:
            raise UsageError(f"{name}: lists no caller, so every request would be refused")
        return cls(known)

    def caller(self, headers: Headers) -> tuple[str, bytes]:
        """Return the caller's name and its credential; both are empty without a valid key, or with two credentials."""
        found, keys = b"", self._plain
        for name, value in headers:
            if name == b"authorization" or name == b"x-api-key":  # noqa: PLR1714  a set costs more
                if found:
                    return "", b""
                found, keys = value, self._bearer if name == b"authorization" else self._plain
        holder = keys.find(found)[0] if found else None
        return (holder.name, found) if holder else ("", b"")
