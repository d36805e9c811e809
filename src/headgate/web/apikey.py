"""API keys, stored as digests, so that no configuration, store, log or response contains a secret.

``digest(key)`` is the SHA-256 of the key in hexadecimal, as ``printf %s KEY | sha256sum`` prints it, or with a `secret`
the HMAC-SHA-256 under that secret. Plain digests suffice for long random keys; for keys that can be guessed, use a
secret, the same one on all nodes.

A request's key is hashed, looked up and compared in constant time; an unknown key costs the same. Only a known key
becomes a principal, named after its holder or else by the first 32 digits of its digest, so random keys create no
state. Where a gateway in front has verified the key and the keys are not listed here, ``ApiKeys(verified_upstream=
True)`` makes each key its own principal.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from headgate.core.numbers import short
from headgate.web.errors import InvalidSettings
from headgate.web.lines import header_name, parameter_name

LONGEST = 512
"""Bytes of the longest API key."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(rb"[!-+\--~]{1,%d}" % LONGEST)  # no comma: a proxy may have joined two lines
_SCHEME = re.compile(r"[A-Za-z0-9-]{0,32}")
_OF_A_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9-]* +[!-~][ -~]*")
OTHER_SCHEME = "of another scheme"
"""The reason for a well-formed credential that is not for Headgate."""
_NO_DIGEST = "0" * 64
"""That of no key."""


def digest(key: str | bytes, secret: bytes = b"") -> str:
    """Return the digest that represents an API key."""
    raw = key.encode() if isinstance(key, str) else key
    return hmac.digest(secret, raw, "sha256").hex() if secret else sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a key; empty fields are unknown."""

    name: str = ""
    """Of the key in rules, logs and stores. Keys of the same name share limits."""
    user: str = ""
    tenant: str = ""
    tier: str = ""

    def __post_init__(self) -> None:
        for part in ("name", "user", "tenant", "tier"):
            text = getattr(self, part)
            if not isinstance(text, str) or (text and not is_fit(text)):
                raise InvalidSettings(f"{part} of an API key's holder must be printable text, got {short(text)}")


NO_KEYS: Mapping[str, Holder] = {_NO_DIGEST: Holder()}
"""For services whose keys are issued later: the digest of no key."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The accepted API keys, and where requests have them."""

    known: Mapping[str, Holder] = field(default_factory=dict, repr=False)
    """Holders by the `digest` of their keys."""
    header: str = "x-api-key"
    scheme: str = ""
    """The word before the key, such as ``Bearer`` in ``Authorization: Bearer KEY``; default: none."""
    secret: bytes = field(default=b"", repr=False)
    """The secret of keyed digests; default: none."""
    verified_upstream: bool = False
    """Whether every key is accepted because a gateway in front refuses unknown ones."""
    query: str = ""
    """A query parameter that may have the key instead; default: none. URLs appear in logs: prefer headers."""
    prefix: str = ""
    """The prefix of all keys; other credentials are ignored."""

    name: bytes = field(init=False, repr=False)
    """The name of the header, in lower case."""
    parameter: bytes = field(init=False, repr=False)
    """The name of the query parameter; empty for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", header_name(self.header))
        object.__setattr__(self, "parameter", parameter_name(self.query) if self.query else b"")
        object.__setattr__(self, "known", dict(self.known))
        if not isinstance(self.scheme, str) or not _SCHEME.fullmatch(self.scheme):
            raise InvalidSettings(f"scheme must be a word such as 'Bearer', got {short(self.scheme)}")
        if not isinstance(self.secret, bytes) or 0 < len(self.secret) < 16:
            raise InvalidSettings("secret must have at least 16 random bytes; 32 are recommended")
        if bool(self.known) == self.verified_upstream:
            raise InvalidSettings("set either the known keys, by digest, or verified_upstream=True")
        for one, holder in self.known.items():
            if not isinstance(one, str) or not _DIGEST.fullmatch(one):
                raise InvalidSettings("a key is given by its digest, 64 of 0-9 a-f: headgate.web.apikey.digest(key)")
            if not isinstance(holder, Holder):
                raise InvalidSettings(f"the holder of a key must be a Holder, got {short(holder)}")

    def find(self, value: bytes) -> tuple[Holder | None, str]:
        """Return the holder of the key in a header, with a name, and the reason; None if the key is not accepted."""
        key = credential(value, self.scheme)
        if key is None:
            return None, OTHER_SCHEME if is_of_a_scheme(value) else "malformed"
        return self.find_key(key)

    def find_key(self, key: bytes) -> tuple[Holder | None, str]:
        """Return the same for a bare key, such as that of a query."""
        if not key.startswith(self.prefix.encode()):
            return None, OTHER_SCHEME
        if not _KEY.fullmatch(key):
            return None, "malformed"
        presented = digest(key, self.secret)
        if self.verified_upstream:
            return Holder(presented[:32]), "verified upstream"
        holder = self.known.get(presented)
        expected = _NO_DIGEST if holder is None else presented
        if not hmac.compare_digest(expected, presented) or holder is None:
            return None, "unknown key"
        if holder.name:
            return holder, "known key"
        return Holder(presented[:32], holder.user, holder.tenant, holder.tier), "known key"


def credential(value: bytes, scheme: str) -> bytes | None:
    """Return what follows `scheme` in the value of a header; without a scheme, the value."""
    value = value.strip(b" \t")
    if not scheme:
        return value
    word, _, rest = value.partition(b" ")
    return rest.strip(b" ") if word.lower() == scheme.lower().encode() else None


def is_of_a_scheme(value: bytes) -> bool:
    """Whether the value of Authorization has the form of a scheme: a word and its parameters."""
    return _OF_A_SCHEME.fullmatch(value.strip(b" \t")) is not None


def is_fit(text: str) -> bool:
    """Whether text can be a principal: 1 to 512 bytes, printable."""
    return text.isprintable() and 0 < len(text) <= LONGEST and len(text.encode()) <= LONGEST
