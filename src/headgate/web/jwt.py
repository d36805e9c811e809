"""Tokens (JWT): claims of an issuer, accepted only if signed, current and meant for this service.

PyJWT does the cryptography; see `headgate.web.jwk` for the keys. The checks, cheap and strict ones first:

1. At most 8 KiB, three parts of base64url: no encryption, no compression.
2. The header names the algorithm to which the key is bound. Critical extensions (``crit``, ``b64``) are rejected.
   Sources of keys (``jku``, ``jwk``, ``x5u``, ``x5c``) are ignored; the key id is looked up among the issuer's keys
   only.
3. The signature.
4. ``exp`` is present and not past; ``nbf`` and ``iat``, if present, are not in the future; ``iss`` and ``aud`` match
   the settings. A token for an audience is rejected if none is configured, as RFC 7519 demands.
5. The claims that name the user, tenant and tier are printable text of up to 512 bytes.

Users of different issuers are different even if both are called 42: with more than one issuer, each needs a `realm`,
which prefixes its users.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.core.numbers import short, whole
from headgate.web.apikey import is_fit
from headgate.web.errors import InvalidSettings, InvalidToken
from headgate.web.jwk import FAMILIES, KEY_ID, VerificationKey

LONGEST = 8192
"""Bytes of the longest token."""
_SHAPE = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_REALM = re.compile(r"[A-Za-z0-9._-]{0,64}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN = frozenset({"apikey", "endpoint", "global", "ip"})
"""Dimensions that claims cannot set."""
_END_OF_TIME = 253_402_300_800
"""The year 10000, in seconds; later times are rejected."""
_STANDARD: Mapping[str, str] = {"user": "sub"}


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer of tokens: its keys, and the meaning of its claims.

    Raises:
        InvalidSettings: the keys are of different types, two have the same id, or a setting is invalid.
    """

    keys: Sequence[VerificationKey]
    issuer: str = ""
    """The required ``iss``; empty: any, for a single issuer only."""
    audience: Sequence[str] = ()
    """One of them must be in ``aud``."""
    claims: Mapping[str, str] = field(default_factory=lambda: dict(_STANDARD))
    """Names of claims by dimension: ``user`` (required in every token), and any of ``tenant``, ``tier`` or others that
    rules use."""
    realm: str = ""
    """Prefixes all values but the tier, with a colon; required with several issuers."""
    leeway_s: int = 60
    """The tolerated difference of clocks, in seconds."""

    _by_id: Mapping[str, VerificationKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen
        derive(self, "keys", tuple(self.keys))
        derive(self, "audience", (self.audience,) if isinstance(self.audience, str) else tuple(self.audience))
        derive(self, "claims", dict(self.claims))
        derive(self, "_by_id", {key.key_id: key for key in self.keys})
        families = {FAMILIES[key.algorithm] for key in self.keys}
        if len(families) != 1:
            raise InvalidSettings(
                f"an issuer's keys must be of one type, got {len(families)}: {', '.join(sorted(families)) or 'no key'}"
            )
        if len(self._by_id) < len(self.keys) or ("" in self._by_id and len(self.keys) > 1):
            raise InvalidSettings("an issuer's keys must have different ids; a key without an id must be its only key")
        whole("leeway_s", self.leeway_s, 0, 600, InvalidSettings)
        _check_meaning(self.claims, self.realm)

    def key(self, key_id: object) -> VerificationKey | None:
        """Return the key that a token names, or the only key if it names none; None if there is no such key."""
        if key_id is None:
            return self.keys[0] if len(self.keys) == 1 else None
        if not isinstance(key_id, str) or not KEY_ID.fullmatch(key_id):
            return None
        return self._by_id.get(key_id) or self._by_id.get("")

    def read(self, claims: Mapping[str, Any], now: int) -> dict[str, str]:
        """Return the dimensions of verified claims; `now` is in microseconds since the epoch. Raises InvalidToken."""
        self._check_times(claims, now)
        if self.issuer and claims.get("iss") != self.issuer:
            raise InvalidToken("issuer", "the token is from another issuer")
        self._check_audience(claims.get("aud"))
        return _dimensions(claims, self.claims, self.realm)

    def _check_times(self, claims: Mapping[str, Any], now: int) -> None:
        leeway = self.leeway_s * 1_000_000
        expires = _microseconds(claims, "exp")
        if expires is None:
            raise InvalidToken("expiry", "the token has no expiry")
        if expires + leeway <= now:
            raise InvalidToken("expired", "the token has expired")
        for name in ("nbf", "iat"):
            start = _microseconds(claims, name)
            if start is not None and start - leeway > now:
                raise InvalidToken("not_yet_valid", "the token is not valid yet")

    def _check_audience(self, audience: object) -> None:
        if audience is None and not self.audience:
            return
        found = [audience] if isinstance(audience, str) else audience
        if not isinstance(found, list) or not any(name in self.audience for name in found if isinstance(name, str)):
            raise InvalidToken("audience", "the token is for another audience")


@dataclass(frozen=True, slots=True)
class TokenVerifier:
    """Verifies the tokens of one or more issuers."""

    issuers: Sequence[Issuer]

    _by_name: Mapping[str, Issuer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "issuers", tuple(self.issuers))
        object.__setattr__(self, "_by_name", {issuer.issuer: issuer for issuer in self.issuers})
        if not self.issuers:
            raise InvalidSettings("at least one issuer is needed")
        realms = {issuer.realm for issuer in self.issuers}
        if len(self.issuers) > 1 and (
            len(self._by_name) < len(self.issuers)
            or len(realms) < len(self.issuers)
            or {""} & {*self._by_name, *realms}
        ):
            raise InvalidSettings("with several issuers, each needs a separate issuer and realm")

    def verify(self, token: bytes, now: int) -> dict[str, str]:
        """Return the dimensions of a token, such as ``{"user": "42", "tier": "free"}``.

        The token is without ``Bearer``, and `now` in microseconds since the epoch. Raises InvalidToken if it is not
        accepted; no bytes can raise anything else.
        """
        if len(token) > LONGEST:
            raise InvalidToken("too_long", f"the token has more than {LONGEST} bytes")
        parts = _SHAPE.fullmatch(token)
        if not parts:
            raise InvalidToken("malformed", "this is not a signed token")
        header = _decoded(parts[1])
        issuer = self.issuers[0] if len(self.issuers) == 1 else self._issuer(_decoded(parts[2]))
        key = _key(header, issuer)
        message, signature = token[: parts.end(2)], _bytes(parts[3])
        if not key.is_signed(message, key.material, signature):
            raise InvalidToken("signature", "the token's signature is invalid")
        return issuer.read(_decoded(parts[2]), now)

    def _issuer(self, claims: Mapping[str, Any]) -> Issuer:
        """Return the issuer that a token claims, whose keys must then verify it."""
        name = claims.get("iss")
        issuer = self._by_name.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise InvalidToken("issuer", "the token's issuer is not known")
        return issuer


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """The meaning of the claims of tokens that a proxy has verified, such as Envoy's jwt_authn in its metadata.

    Raises:
        InvalidSettings: a setting is invalid.
    """

    key: str = "headgate"
    """Where the proxy puts them; in Envoy, the provider's ``payload_in_metadata``."""
    claims: Mapping[str, str] = field(default_factory=lambda: dict(_STANDARD))
    """As in `Issuer`."""
    realm: str = ""
    """As in `Issuer`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims", dict(self.claims))
        _check_meaning(self.claims, self.realm)

    def read(self, claims: Mapping[str, Any]) -> dict[str, str]:
        """Return the dimensions of verified claims; the proxy has checked their times. Raises InvalidToken."""
        return _dimensions(claims, self.claims, self.realm)


def _check_meaning(claims: Mapping[str, str], realm: str) -> None:
    """Reject claims that do not name the user, or set a reserved dimension. Raises InvalidSettings."""
    if not isinstance(realm, str) or not _REALM.fullmatch(realm):
        raise InvalidSettings(f"a realm must have up to 64 of A-Z a-z 0-9 . _ -, got {short(realm)}")
    if "user" not in claims:
        raise InvalidSettings("claims must include the claim that names the user, such as {'user': 'sub'}")
    for what, claim in claims.items():
        if what in _TAKEN or not _FIELD.fullmatch(what) or not isinstance(claim, str) or not claim:
            raise InvalidSettings(
                f"claims cannot set {short(what)} by {short(claim)}; write them like {{'tenant': 'org'}}"
            )


def _dimensions(claims: Mapping[str, Any], meaning: Mapping[str, str], realm: str) -> dict[str, str]:
    found = {}
    for what, claim in meaning.items():
        value = claims.get(claim)
        if value is None and what != "user":
            continue
        text = str(value) if type(value) is int and abs(value) < 1 << 63 else value
        if not isinstance(text, str) or not is_fit(text):
            raise InvalidToken("claim", f"the token has no claim {claim!r} that could name the {what}")
        found[what] = f"{realm}:{text}" if realm and what != "tier" else text
    return found


def check_extensions(token: bytes) -> None:
    """Reject a token whose header is malformed or has critical extensions (RFC 7515, 4.1.11).

    Envoy's jwt_authn does not check ``crit``, so the tokens that it has verified are checked here. Raises InvalidToken;
    no bytes can raise anything else.
    """
    _check_extensions(_decoded(token.partition(b".")[0]))


def _check_extensions(header: Mapping[str, Any]) -> None:
    if "crit" in header or "b64" in header or "zip" in header:
        raise InvalidToken("extension", "the token needs an extension that is not supported")


def _key(header: Mapping[str, Any], issuer: Issuer) -> VerificationKey:
    _check_extensions(header)
    kind = header.get("typ", "jwt")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise InvalidToken("type", "the token has another type")
    key = issuer.key(header.get("kid"))
    if key is None:
        raise InvalidToken("key", "the token does not name a key of its issuer")
    if header.get("alg") != key.algorithm:
        raise InvalidToken("algorithm", "the token is not signed with the algorithm of its key")
    return key


def _decoded(part: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(_bytes(part))
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidToken("malformed", "the token does not contain JSON objects")
    return value


def _bytes(part: bytes) -> bytes:
    try:
        return a2b_base64(part.translate(_URL_SAFE) + b"=" * (-len(part) % 4), strict_mode=True)
    except Error:
        raise InvalidToken("malformed", "the token is not base64url") from None


def _microseconds(claims: Mapping[str, Any], name: str) -> int | None:
    seconds = claims.get(name)
    if seconds is None:
        return None
    if type(seconds) not in {int, float} or not 0 <= seconds < _END_OF_TIME:
        raise InvalidToken("claim", f"the token's {name} is not a time in seconds")
    return int(seconds * 1_000_000)


_URL_SAFE = bytes.maketrans(b"-_", b"+/")
