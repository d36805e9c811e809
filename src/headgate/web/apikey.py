"""API keys: known by their digests, so that no secret is in a configuration, a store, a log or an answer.

``digest(key)`` is the SHA-256 of the key in hexadecimal, as ``printf %s KEY | sha256sum`` prints it, or with a `secret`
the HMAC-SHA-256 under that secret. Plain is enough for keys that are long and random, which no list of guesses
contains; for keys that people thought of, use a secret, the same one on all nodes.

A request's key is hashed, looked up and compared in constant time; an unknown key costs the same work. Only a known key
becomes a principal: under the name its holder has, or else the first 32 digits of its digest. Random keys therefore
make no new state. Where a gateway in front has verified the key already and no list of keys is at hand,
``ApiKeys(verified_upstream=True)`` says so, and each key is its own principal.
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
"""The most bytes of an API key."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(rb"[!-+\--~]{1,%d}" % LONGEST)  # no comma: two lines that a proxy has joined are not a key
_SCHEME = re.compile(r"[A-Za-z0-9-]{0,32}")
_OF_A_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9-]* +[!-~][ -~]*")
OTHER_SCHEME = "of another scheme"
"""What there is to say about a credential that is well-formed, and meant for somebody else."""
_NOBODY = "0" * 64


def digest(key: str | bytes, secret: bytes = b"") -> str:
    """Return what stands for an API key wherever the key itself must not be."""
    raw = key.encode() if isinstance(key, str) else key
    return hmac.digest(secret, raw, "sha256").hex() if secret else sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose key it is. What is empty is not known."""

    name: str = ""
    """What the key is called in rules, logs and stores. Several keys of one name share its limits."""
    user: str = ""
    tenant: str = ""
    tier: str = ""

    def __post_init__(self) -> None:
        for part in ("name", "user", "tenant", "tier"):
            text = getattr(self, part)
            if not isinstance(text, str) or (text and not is_fit(text)):
                raise InvalidSettings(f"{part} of an API key's holder is printable text, not {short(text)}")


NO_KEYS: Mapping[str, Holder] = {_NOBODY: Holder()}
"""What is known where keys may be issued later: the digest of no key at all."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The API keys that are accepted, and where requests carry them."""

    known: Mapping[str, Holder] = field(default_factory=dict, repr=False)
    """Holders by `digest` of their key."""
    header: str = "x-api-key"
    scheme: str = ""
    """The word before the key, such as ``Bearer`` in ``Authorization: Bearer KEY``; default: none."""
    secret: bytes = field(default=b"", repr=False)
    """Of the keyed digest; default: none."""
    verified_upstream: bool = False
    """Whether any key may be believed because a gateway in front refuses unknown ones."""
    query: str = ""
    """Or the query parameter that has the key; default: none. What is in addresses is in logs, too: prefer headers."""
    prefix: str = ""
    """How all keys begin; what begins otherwise is not for us, and is ignored."""

    name: bytes = field(init=False, repr=False)
    """The header to collect, in lower case."""
    parameter: bytes = field(init=False, repr=False)
    """The query parameter to look for; empty for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", header_name(self.header))
        object.__setattr__(self, "parameter", parameter_name(self.query) if self.query else b"")
        object.__setattr__(self, "known", dict(self.known))
        if not isinstance(self.scheme, str) or not _SCHEME.fullmatch(self.scheme):
            raise InvalidSettings(f"scheme is a word such as 'Bearer', not {short(self.scheme)}")
        if not isinstance(self.secret, bytes) or 0 < len(self.secret) < 16:
            raise InvalidSettings("secret has at least 16 bytes, better 32, from a random source")
        if bool(self.known) == self.verified_upstream:
            raise InvalidSettings("give the known keys, by digest, or say verified_upstream=True: one of the two")
        for one, holder in self.known.items():
            if not isinstance(one, str) or not _DIGEST.fullmatch(one):
                raise InvalidSettings("a key is known by its digest, 64 of 0-9 a-f: headgate.web.apikey.digest(key)")
            if not isinstance(holder, Holder):
                raise InvalidSettings(f"the holder of a key is a Holder, not {short(holder)}")

    def find(self, value: bytes) -> tuple[Holder | None, str]:
        """Return whose key the value of the header is, with its name filled in, and what there is to say about it."""
        key = credential(value, self.scheme)
        if key is None:
            return None, OTHER_SCHEME if is_of_a_scheme(value) else "malformed"
        return self.find_key(key)

    def find_key(self, key: bytes) -> tuple[Holder | None, str]:
        """Return the same for a key itself, such as that of a query."""
        if not key.startswith(self.prefix.encode()):
            return None, OTHER_SCHEME
        if not _KEY.fullmatch(key):
            return None, "malformed"
        presented = digest(key, self.secret)
        if self.verified_upstream:
            return Holder(presented[:32]), "verified upstream"
        holder = self.known.get(presented)
        expected = _NOBODY if holder is None else presented
        if not hmac.compare_digest(expected, presented) or holder is None:
            return None, "unknown key"
        if holder.name:
            return holder, "known key"
        return Holder(presented[:32], holder.user, holder.tenant, holder.tier), "known key"


def credential(value: bytes, scheme: str) -> bytes | None:
    """Return what follows `scheme` in the value of a credential header, or all of it if there is no scheme."""
    value = value.strip(b" \t")
    if not scheme:
        return value
    word, _, rest = value.partition(b" ")
    return rest.strip(b" ") if word.lower() == scheme.lower().encode() else None


def is_of_a_scheme(value: bytes) -> bool:
    """Whether the value of Authorization is a word and something after it, as every scheme has them."""
    return _OF_A_SCHEME.fullmatch(value.strip(b" \t")) is not None


def is_fit(text: str) -> bool:
    """Whether text from elsewhere may stand for a principal: 1 to 512 bytes, and nothing that garbles a log."""
    return text.isprintable() and 0 < len(text) <= LONGEST and len(text.encode()) <= LONGEST
