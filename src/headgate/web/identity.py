"""Who asks: by API key, by verified token, and always by address.

Each credential that is verified adds what it proves, so that a rule per API key and a rule per user both see their
principal, and sending one credential more never hides another. Where two prove the same thing, the API key wins over
the token. A credential that is not verified adds nothing and chooses nothing: the request goes on as that of its
address, and `Identity.reasons` says why, without repeating the credential.

=========  =======================================================================================================
``ip``     always: see `headgate.web.address`
apikey     the name of the key's holder, or 32 digits of the key's digest: see `headgate.web.apikey`
user       the holder's, or else the token's: see `headgate.web.jwt`
tenant     the same; and whatever else the settings take from claims
=========  =======================================================================================================

A request that carries a credential header twice is refused (`AmbiguousIdentity`): one of the two would be counted here,
and perhaps the other served. ``Connection`` cannot make a header disappear here, whatever it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.web.address import AddressReader, ClientAddress
from headgate.web.apikey import ApiKeys, credential
from headgate.web.errors import AmbiguousIdentity, InvalidToken
from headgate.web.jwt import TokenVerifier
from headgate.web.lines import Lines, collect

_AUTHORIZATION = b"authorization"


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Who asks."""

    principal: Mapping[str, str]
    """Values by dimension, such as ``{"user": "42", "ip": "203.0.113.9"}``; verified, all of them."""
    tier: str
    """The tier that a credential proves; empty if none does."""
    source: str
    """The first that proved who asks: ``apikey``, ``jwt`` or ``ip``."""
    reasons: Mapping[str, str]
    """What became of ``apikey``, ``jwt`` and ``ip``, in a few words each, for explanations."""
    address: ClientAddress
    """The whole address, for allow and deny lists of networks, and how it was found."""


@dataclass(frozen=True, slots=True)
class Identifier:
    """Finds out who asks; what is not configured is not looked at."""

    addresses: AddressReader = field(default_factory=AddressReader)
    api_keys: ApiKeys | None = None
    tokens: TokenVerifier | None = None
    """Of requests with ``Authorization: Bearer TOKEN``."""

    _wanted: frozenset[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wanted", (self.credentials | {self.addresses.header}) - {b""})

    @property
    def credentials(self) -> frozenset[bytes]:
        """The headers that may prove who asks, in lower case."""
        by_key = {self.api_keys.name} if self.api_keys else set()
        return frozenset(by_key | ({_AUTHORIZATION} if self.tokens else set()))

    def identify(self, peer: str | None, lines: Lines, now: int) -> Identity:
        """Return who sent a request.

        Args:
            peer: the address that opened the connection; None on a Unix socket.
            lines: its header lines, as bytes.
            now: microseconds since the epoch.

        Raises:
            AmbiguousIdentity: a credential header is there twice: answer 400. No bytes can raise anything else.
        """
        found = collect(lines, self._wanted) if self._wanted else {}
        address = self.addresses.read_values(peer, found.get(self.addresses.header, ()))
        by_key, key_reason = self._api_key(found)
        by_token, token_reason = self._token(found, now)
        proven = {**by_token, **by_key}
        tier = proven.pop("tier", "")
        source = "apikey" if by_key else "jwt" if by_token else "ip"
        reasons = {"apikey": key_reason, "jwt": token_reason, "ip": address.finding}
        return Identity({**proven, "ip": address.key}, tier, source, reasons, address)

    def _api_key(self, found: Mapping[bytes, Sequence[bytes]]) -> tuple[dict[str, str], str]:
        if self.api_keys is None:
            return {}, "not configured"
        value = _only(found, self.api_keys.name)
        if value is None:
            return {}, "absent"
        holder, reason = self.api_keys.find(value)
        if holder is None:
            return {}, reason
        told = {"apikey": holder.name, "user": holder.user, "tenant": holder.tenant, "tier": holder.tier}
        return {what: text for what, text in told.items() if text}, reason

    def _token(self, found: Mapping[bytes, Sequence[bytes]], now: int) -> tuple[dict[str, str], str]:
        if self.tokens is None:
            return {}, "not configured"
        value = _only(found, _AUTHORIZATION)
        if value is None:
            return {}, "absent"
        token = credential(value, "bearer")
        if token is None:
            return {}, "not a bearer token"
        try:
            return self.tokens.verify(token, now), "verified"
        except InvalidToken as error:
            return {}, str(error)


def _only(found: Mapping[bytes, Sequence[bytes]], name: bytes) -> bytes | None:
    values = found.get(name, ())
    if len(values) > 1:
        raise AmbiguousIdentity(f"the request has {len(values)} headers {name.decode()}: send one")
    return values[0] if values else None
