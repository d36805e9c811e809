"""Who asked, as logs and lists of hot keys show it: by default not by name."""

from __future__ import annotations

from hashlib import blake2b

from headgate.core.errors import UsageError

LONGEST_SECRET = 64


class Principals:
    """Decides what is shown of a principal.

    Args:
        plain: whether they are shown as they are.
        secret: makes the digests of this installation differ from all others', so that nobody can find out who is
            meant by trying names; up to 64 bytes. All nodes need the same one if their logs are to be compared.
    """

    __slots__ = ("_secret", "plain")

    def __init__(self, *, plain: bool = False, secret: bytes = b"") -> None:
        if len(secret) > LONGEST_SECRET:
            raise UsageError(f"the secret for digests has up to {LONGEST_SECRET} bytes, not {len(secret)}")
        self.plain, self._secret = plain, secret

    def shown(self, value: str) -> str:
        """Return the principal, or its digest: ``#`` and 16 hexadecimal digits, always the same for the same text."""
        if self.plain:
            return value
        return "#" + blake2b(value.encode(errors="surrogatepass"), digest_size=8, key=self._secret).hexdigest()
