"""Identifies the caller: by API key, by verified token, and always by address.

Each verified credential adds what it proves, so that rules per API key and rules per user both apply, and an additional
credential never hides another. If a key and a token prove the same dimension, the API key wins; if they are of two
users, the token is ignored altogether, so that the tier of one is not given to the other. A credential that is not
verified has no effect: the request counts by its address, and `Identity.reasons` has the reason, without quoting the
credential. To refuse such requests, check `Identity.unproven`.

=========  =======================================================================================================
``ip``     always: see `headgate.web.address`
apikey     the holder's name, or 32 digits of the key's digest: see `headgate.web.apikey`
user       of the holder, or else of the token: see `headgate.web.jwt`
tenant     likewise, as are other dimensions that the settings take from claims
=========  =======================================================================================================

A request with a credential twice is refused (`AmbiguousIdentity`), since the application might serve the one that is
not counted here. ``Connection`` cannot remove a header here, whatever it names.
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
"""Claims of tokens that a proxy has verified, by the name under which it passes them on."""
_Found: TypeAlias = Mapping[bytes, Sequence[bytes]]
_NOT_CONFIGURED, _ABSENT = "not configured", "absent"
_NOT_PRESENTED = frozenset({_NOT_CONFIGURED, _ABSENT, OTHER_SCHEME})
_AUTHORIZATION = b"authorization"
_NO_PAYLOADS: Payloads = {}


class Identity(msgspec.Struct, frozen=True, gc=False):
    """A caller."""

    principal: Mapping[str, str]
    """Verified values by dimension, such as ``{"user": "42", "ip": "203.0.113.9"}``."""
    tier: str
    """From a credential; empty if none has one."""
    source: str
    """What identified the caller: ``apikey``, ``jwt`` or ``ip``."""
    reasons: Mapping[str, str]
    """The results of ``apikey``, ``jwt`` and ``ip``, in a few words each, for explanations."""
    address: ClientAddress
    """For allow and deny lists of networks."""
    unproven: str = ""
    """A credential that was sent and not verified: ``apikey`` or ``jwt``; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Identifier:
    """Identifies callers by the configured credentials.

    Raises:
        InvalidSettings: several `verified` share a key or a realm.
    """

    addresses: AddressReader = field(default_factory=AddressReader)
    api_keys: ApiKeys | None = None
    tokens: TokenVerifier | None = None
    """For ``Authorization: Bearer TOKEN``."""
    verified: Sequence[VerifiedClaims] = ()
    """For tokens that a proxy has verified."""

    credentials: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """The headers of credentials, in lower case."""
    own_credentials: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """Those that are verified here, not by a proxy."""
    _wanted: frozenset[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen
        derive(self, "verified", tuple(self.verified))
        keys, realms = {each.key for each in self.verified}, {each.realm for each in self.verified}
        if len(self.verified) > 1 and ("" in realms or min(len(keys), len(realms)) < len(self.verified)):
            raise InvalidSettings("if a proxy sends claims of several issuers, each needs a separate key and realm")
        by_key = {self.api_keys.name} if self.api_keys else set()
        derive(self, "own_credentials", frozenset(by_key | ({_AUTHORIZATION} if self.tokens else set())))
        derive(self, "credentials", self.own_credentials | ({_AUTHORIZATION} if self.verified else set()))
        derive(self, "_wanted", (self.credentials | {self.addresses.header}) - {b""})

    def identify(self, peer: str | None, lines: HeaderLines, now: int, query: bytes = b"") -> Identity:
        """Return the caller of a request that `peer` sent, None on a Unix socket.

        `now` is in microseconds since the epoch; `query` is that of the target, not decoded, without the question mark.
        Raises AmbiguousIdentity for a credential that is present twice. No bytes can raise anything else.
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
        """Return the caller of a request, like `identify`, where a trusted proxy attests the address.

        `payloads` has the claims of tokens that the proxy has verified, by `VerifiedClaims.key`. Other bearer tokens
        are verified by `tokens`, if at all.
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
        proven = {"apikey": holder.name, "user": holder.user, "tenant": holder.tenant, "tier": holder.tier}
        return {dimension: value for dimension, value in proven.items() if value}, reason

    def _token(self, found: _Found, now: int, payloads: Payloads) -> tuple[dict[str, str], str]:
        if self.tokens is None and not self.verified:
            return {}, _NOT_CONFIGURED
        value = _only(found, _AUTHORIZATION)
        present = [each for each in self.verified if each.key in payloads] if payloads else []
        if len(present) > 1:
            raise AmbiguousIdentity("the request has tokens from several issuers: send one")
        try:
            if present:
                token = None if value is None else _lone_token(value)
                if token is not None:
                    check_extensions(token)
                return present[0].read(payloads[present[0].key]), "verified"
            return ({}, _ABSENT) if value is None else self._own_token(value, now)
        except InvalidToken as error:
            return {}, str(error)

    def _own_token(self, value: bytes, now: int) -> tuple[dict[str, str], str]:
        token = credential(value, "bearer")
        if token is None:
            return {}, OTHER_SCHEME if is_of_a_scheme(value) else "not a bearer token"
        if self.tokens is None:
            return {}, "not verified by the proxy"
        return self.tokens.verify(token, now), "verified"


def _lone_token(value: bytes) -> bytes | None:
    """Return the bearer token, if there is one. Raises AmbiguousIdentity if there is anything else beside it.

    Proxies find a token anywhere in the value, and join lines of one name.
    """
    token = credential(value, "bearer")
    if b"bearer" in value.lower() if token is None else b"," in token or b" " in token:
        raise AmbiguousIdentity("authorization contains a token and something else: send only the token")
    return token


def _only(found: _Found, name: bytes) -> bytes | None:
    values = found.get(name, ())
    if len(values) > 1:
        raise AmbiguousIdentity(f"the request has {len(values)} headers named {name.decode()}: send one")
    return values[0] if values else None
