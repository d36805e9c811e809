"""Who asks: by API key, by verified token, and always by address.

Each credential that is verified adds what it proves, so that a rule per API key and a rule per user both see their
principal, and sending one credential more never hides another. Where two prove the same thing, the API key wins over
the token; where they are of two users, nothing of the token counts, or the tier of one would be that of the other. A
credential that is not verified adds nothing and chooses nothing: the request goes on as that of its address, and
`Identity.reasons` says why, without repeating the credential. Whoever would rather refuse it looks at
`Identity.unproven`.

=========  =======================================================================================================
``ip``     always: see `headgate.web.address`
apikey     the name of the key's holder, or 32 digits of the key's digest: see `headgate.web.apikey`
user       the holder's, or else the token's: see `headgate.web.jwt`
tenant     the same; and whatever else the settings take from claims
=========  =======================================================================================================

A request that carries a credential twice is refused (`AmbiguousIdentity`): one of the two would be counted here, and
perhaps the other served. ``Connection`` cannot make a header disappear here, whatever it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from headgate.web.address import AddressReader, ClientAddress
from headgate.web.apikey import OTHER_SCHEME, ApiKeys, credential, is_of_a_scheme
from headgate.web.errors import AmbiguousIdentity, InvalidSettings, InvalidToken
from headgate.web.jwt import TokenVerifier, VerifiedClaims, check_extensions
from headgate.web.lines import HeaderLines, collect, parameters

Payloads: TypeAlias = Mapping[str, Mapping[str, object]]
"""Claims of tokens, by the name under which the proxy that has verified the token tells them."""
_Found: TypeAlias = Mapping[bytes, Sequence[bytes]]
_NOT_CONFIGURED, _ABSENT = "not configured", "absent"
_NOT_PRESENTED = frozenset({_NOT_CONFIGURED, _ABSENT, OTHER_SCHEME})
_AUTHORIZATION = b"authorization"
_NO_PAYLOADS: Payloads = {}


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
    unproven: str = ""
    """A credential that was presented and proves nothing: ``apikey`` or ``jwt``; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Identifier:
    """Finds out who asks; what is not configured is not looked at.

    Raises:
        InvalidSettings: claims of several proxies' tokens are not told apart.
    """

    addresses: AddressReader = field(default_factory=AddressReader)
    api_keys: ApiKeys | None = None
    tokens: TokenVerifier | None = None
    """Of requests with ``Authorization: Bearer TOKEN``."""
    verified: Sequence[VerifiedClaims] = ()
    """What the claims mean that a proxy tells of tokens it has verified."""

    credentials: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """The headers that may prove who asks, in lower case."""
    own_credentials: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """Those of them that are verified here, and not by a proxy."""
    _wanted: frozenset[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        derive(self, "verified", tuple(self.verified))
        keys, realms = {each.key for each in self.verified}, {each.realm for each in self.verified}
        if len(self.verified) > 1 and ("" in realms or min(len(keys), len(realms)) < len(self.verified)):
            raise InvalidSettings("claims of several issuers, as a proxy tells them, need each a key and a realm")
        by_key = {self.api_keys.name} if self.api_keys else set()
        derive(self, "own_credentials", frozenset(by_key | ({_AUTHORIZATION} if self.tokens else set())))
        derive(self, "credentials", self.own_credentials | ({_AUTHORIZATION} if self.verified else set()))
        derive(self, "_wanted", (self.credentials | {self.addresses.header}) - {b""})

    def identify(self, peer: str | None, lines: HeaderLines, now: int, query: bytes = b"") -> Identity:
        """Return who sent a request.

        Args:
            peer: the address that opened the connection; None on a Unix socket.
            lines: its header lines, as bytes.
            now: microseconds since the epoch.
            query: what follows the question mark of its target, as it was sent.

        Raises:
            AmbiguousIdentity: a credential is there twice: answer 400. No bytes can raise anything else.
        """
        found = collect(lines, self._wanted) if self._wanted else {}
        address = self.addresses.read_values(peer, found.get(self.addresses.header, ()))
        return self._identity(address, found, now, query, _NO_PAYLOADS)

    def identify_at(
        self,
        address: ClientAddress,
        lines: HeaderLines,
        now: int,
        query: bytes = b"",
        payloads: Payloads = _NO_PAYLOADS,
    ) -> Identity:
        """Return who sent a request, by what a trusted proxy tells apart from what its client sent.

        Args:
            address: of the client; see `AddressReader.attested`.
            lines: as for `identify`.
            now: the same.
            query: the same.
            payloads: the claims of tokens that the proxy has verified, by `VerifiedClaims.key`. A bearer token of
                which it tells none proves nothing, unless it is one for `tokens`.

        Raises:
            AmbiguousIdentity: a credential is there twice: answer 400.
        """
        found = collect(lines, self.credentials) if self.credentials else {}
        return self._identity(address, found, now, query, payloads)

    def _identity(self, address: ClientAddress, found: _Found, now: int, query: bytes, payloads: Payloads) -> Identity:
        by_key, key_reason = self._api_key(found, query)
        by_token, token_reason = self._token(found, now, payloads)
        is_of_two = by_key.get("user", by_token.get("user")) != by_token.get("user")
        proven = {**by_key} if is_of_two else {**by_token, **by_key}
        tier = proven.pop("tier", "")
        source = "apikey" if by_key else "jwt" if by_token else "ip"
        reasons = {"apikey": key_reason, "jwt": token_reason, "ip": address.finding}
        unproven = ""
        is_one_header = self.api_keys is not None and self.api_keys.name == _AUTHORIZATION  # a key or a token, not both
        if not by_key and key_reason not in _NOT_PRESENTED and not (is_one_header and by_token):
            unproven = "apikey"
        elif not by_token and token_reason not in _NOT_PRESENTED and not (is_one_header and by_key):
            unproven = "jwt"
        return Identity({**proven, "ip": address.key}, tier, source, reasons, address, unproven)

    def _api_key(self, found: _Found, query: bytes) -> tuple[dict[str, str], str]:
        keys = self.api_keys
        if keys is None:
            return {}, _NOT_CONFIGURED
        value = _only(found, keys.name)
        sent = parameters(query, keys.parameter) if query and keys.parameter else ()
        if len(sent) + (value is not None) > 1:
            raise AmbiguousIdentity(f"the request has several API keys: send one, in {keys.header} or as {keys.query}")
        if sent:
            holder, reason = keys.find_key(sent[0])
        elif value is not None:
            holder, reason = keys.find(value)
        else:
            return {}, _ABSENT
        if holder is None:
            return {}, reason
        told = {"apikey": holder.name, "user": holder.user, "tenant": holder.tenant, "tier": holder.tier}
        return {what: text for what, text in told.items() if text}, reason

    def _token(self, found: _Found, now: int, payloads: Payloads) -> tuple[dict[str, str], str]:
        if self.tokens is None and not self.verified:
            return {}, _NOT_CONFIGURED
        value = _only(found, _AUTHORIZATION)
        told = [each for each in self.verified if each.key in payloads] if payloads else []
        if len(told) > 1:
            raise AmbiguousIdentity("the request has tokens of several issuers: send one")
        try:
            if told:
                token = None if value is None else _lone_token(value)
                if token is not None:
                    check_extensions(token)
                return told[0].read(payloads[told[0].key]), "verified"
            return ({}, _ABSENT) if value is None else self._own_token(value, now)
        except InvalidToken as error:
            return {}, str(error)

    def _own_token(self, value: bytes, now: int) -> tuple[dict[str, str], str]:
        """Return what a token tells that nobody has verified before. Raises InvalidToken."""
        token = credential(value, "bearer")
        if token is None:
            return {}, OTHER_SCHEME if is_of_a_scheme(value) else "not a bearer token"
        return (
            ({}, "not verified by the proxy") if self.tokens is None else (self.tokens.verify(token, now), "verified")
        )


def _lone_token(value: bytes) -> bytes | None:
    """Return the bearer token that is there, alone: proxies find one anywhere, and join lines of one name.

    Raises:
        AmbiguousIdentity: there is one, and something else.
    """
    token = credential(value, "bearer")
    if b"bearer" in value.lower() if token is None else b"," in token or b" " in token:
        raise AmbiguousIdentity("the request has a token behind something else in authorization: send one")
    return token


def _only(found: _Found, name: bytes) -> bytes | None:
    values = found.get(name, ())
    if len(values) > 1:
        raise AmbiguousIdentity(f"the request has {len(values)} headers {name.decode()}: send one")
    return values[0] if values else None
