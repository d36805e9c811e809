"""Identity files: the declaration of every field, and the `Identifier` that a file describes.

All problems of a file are reported at once, with their lines, including those that `headgate.web` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

import msgspec

from headgate.config.problems import Finding, Findings, InvalidRules, render
from headgate.config.problems import Path as Place
from headgate.config.schema import Field, ListOf, MapOf, OrWord, Record, Scalar, Schema, Values
from headgate.config.yaml_text import Document, text_of
from headgate.files import UnreadableFile, content_of
from headgate.server.proxied_clients import LOOPBACK
from headgate.web.address import MAX_HOPS, AddressReader
from headgate.web.apikey import NO_KEYS, ApiKeys, Holder
from headgate.web.errors import InvalidSettings
from headgate.web.identity import Identifier
from headgate.web.jwk import FAMILIES, VerificationKey, key_set
from headgate.web.jwt import Issuer, TokenVerifier, VerifiedClaims
from headgate.web.lines import header_name

FORWARDED_FOR = "x-forwarded-for"
_USER = {"user": "sub"}
MAX_KEY_FILE = 1_048_576
_DIGEST = Scalar(
    {"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"},
    "is not a digest",
    "64 of 0-9 a-f",
    str.lower,
    lambda *_: 'Create it with: printf %s "$KEY" | sha256sum. The key itself does not belong here.',
    is_secret=True,
)
"""An invalid digest is never shown: it may be the key."""
_HEADER = Scalar.text("the name of a header, such as x-api-key", most=64, numbers=False)
_PRINCIPAL = Scalar.text("printable text, up to 512 bytes", most=512)
_FILE = Scalar.text("a file, relative to the folder of this one", most=4096, numbers=False)

HOLDER = Record(
    "an API key",
    {
        "sha256": Field(_DIGEST, "The SHA-256 of the key, in hexadecimal.", required=True),
        "name": Field(_PRINCIPAL, "The key's name in rules and logs; default: some digits of its digest."),
        "user": Field(_PRINCIPAL, "The user that the key belongs to."),
        "tenant": Field(_PRINCIPAL, "The tenant that the key belongs to."),
        "tier": Field(_PRINCIPAL, "The tier of its holder."),
    },
)

OF_DATABASE = "database"
"""In place of a list of API keys: the keys of the database's consumers, and no others."""


class _Holders:
    """A list of API keys. Invalid entries are never shown."""

    def read(self, value: object, path: Place, findings: Findings) -> list[Values | None] | None:
        one = f"{{sha256: DIGEST}} and any of {', '.join([*HOLDER.fields][1:])}"
        if type(value) is not list or not value:
            wrong = "has no key" if value == [] else "is not a list of API keys"
            findings.add(path, wrong, f"a list with {one} for each key; or {OF_DATABASE}")
            return None
        read: list[Values | None] = []
        places: dict[str, Place] = {}
        for index, item in enumerate(value):
            place = (*path, index)
            unknown = [key for key in item if key not in HOLDER.fields] if type(item) is dict else [""]
            if unknown:
                hint = next(filter(None, (findings.near(key, HOLDER.fields) for key in unknown)), "")
                findings.add(place, "is not the entry of an API key", one, hint)
                continue
            holder = HOLDER.read(item, place, findings)
            read.append(holder)
            first = places.setdefault(holder["sha256"], place) if "sha256" in holder else place
            if first != place:
                findings.reject((*place, "sha256"), f"is already used by {render(first)}", "Remove one of the two.")
        return read

    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "items": HOLDER.schema()}


HOLDERS = OrWord(OF_DATABASE, (), _Holders())
_CLAIM = Scalar.text("the name of a claim", most=512)
_MEANINGS = "(?!(?:apikey|endpoint|global|ip)$)[a-z][a-z0-9_]{0,31}"
_CLAIMS = Field(
    MapOf(_CLAIM, "claims by their meaning, such as {user: sub, tenant: org, tier: plan}", keys=_MEANINGS),
    "The claims with the user, the tenant, the tier, or other attributes for rules; default: {user: sub}.",
)
_REALM = Field(
    Scalar.text("1 to 64 of A-Z a-z 0-9 . _ -", "[A-Za-z0-9._-]{1,64}", 64),
    "The prefix of its users' names; required with several issuers.",
)
_ISS = Scalar.text("text, as in the claim iss", most=512)
_AUD = ListOf(Scalar.text("text, as in the claim aud", most=512), "a list such as [api]")
ALGORITHMS = ListOf(
    Scalar.choice(FAMILIES.keys()), f"a list of {', '.join(FAMILIES)}", empty="names no algorithm that signs its tokens"
)
ISSUER = Record(
    "an issuer",
    {
        "issuer": Field(_ISS, "The required value of the claim iss; default: any."),
        "audience": Field(
            _AUD, "One of these must be in the claim aud. Without it, tokens with an audience are not accepted."
        ),
        "algorithms": Field(
            ALGORITHMS, "The algorithms that tokens may be signed with, such as [RS256].", required=True
        ),
        "jwks": Field(_FILE, "A file with the keys, as a JWK set."),
        "pem": Field(_FILE, "Alternatively, a file with the only key, as PEM."),
        "claims": _CLAIMS,
        "realm": _REALM,
        "leeway_s": Field(Scalar.whole(0, 600), "The tolerated difference between clocks, in seconds; default: 60."),
    },
)
ADDRESSES = Record(
    "addresses",
    {
        "header": Field(_HEADER, "The header with which proxies send the client's address; default: x-forwarded-for."),
        "trusted": Field(
            ListOf(Scalar.text("a network such as 10.0.0.0/8, or unix", most=64), "a list such as [10.0.0.0/8, unix]"),
            "The networks of the trusted proxies; default: this machine.",
        ),
        "hops": Field(Scalar.whole(1, MAX_HOPS), "Alternatively, the number of proxies, at any address."),
        "ipv6_prefix": Field(Scalar.whole(32, 128), "The bits of an IPv6 address that identify a client; default: 64."),
    },
)
API_KEYS = Record(
    "api_keys",
    {
        "header": Field(_HEADER, "The header with which clients send their key; default: x-api-key."),
        "scheme": Field(
            Scalar.text("a word such as Bearer", "[A-Za-z0-9-]{1,32}", 32, numbers=False), "The word before it, if any."
        ),
        "query": Field(
            Scalar.text("the name of a query parameter, such as api_key", "[A-Za-z0-9_.~-]{1,64}", 64, numbers=False),
            "Alternatively, the query parameter with which they send it.",
        ),
        "keys": Field(HOLDERS, "The accepted keys, by digest; or database: those of consumers only.", required=True),
    },
)
JWT_METADATA = Record(
    "the claims of a provider in Envoy",
    {
        "key": Field(
            Scalar.text("a name such as headgate", most=64, numbers=False),
            "The provider's payload_in_metadata in Envoy; default: headgate.",
        ),
        "claims": _CLAIMS,
        "realm": _REALM,
    },
)
FILE = Record(
    "an identity file",
    {
        "version": Field(Scalar.version(1), "The version of this format: write version: 1.", required=True),
        "addresses": Field(ADDRESSES, "How the addresses of clients behind proxies are found."),
        "api_keys": Field(API_KEYS, "The API keys of clients."),
        "tokens": Field(
            ListOf(ISSUER, "a list of issuers, each with algorithms and jwks or pem"),
            "The issuers of clients' tokens (JWT).",
        ),
        "jwt_metadata": Field(
            ListOf(JWT_METADATA, "a list such as [{claims: {user: sub}}]"),
            "Tokens that Envoy's filter jwt_authn has verified.",
        ),
    },
    extensions=True,
)


def load_identity(
    path: str | PathLike[str],
    trusted: Sequence[str] = (),
    reading: Callable[[Path], object] = lambda _: None,
    *,
    has_consumers: bool = False,
) -> Identifier:
    """Return the identifier that a YAML file describes. Raises InvalidRules, with all problems.

    `reading` is called with each file that it names, before that is read. `trusted` are networks of proxies set
    elsewhere; the file must not set others then.
    """
    name = fspath(path)
    document = Document(text_of(path), name, "an identity file", has_secrets=True)
    findings = Findings(document)
    read = FILE.read(document.data, (), findings)
    identifier = None
    if read is not None and not findings.count:
        parts = _Parts(findings, Path(name).parent, reading)
        identifier = parts.identifier(read, trusted, has_consumers=has_consumers)
    if identifier is None or findings.count or document.problems:
        raise InvalidRules(without_secrets(findings, "api_keys"))
    return identifier


def without_secrets(findings: Findings, *places: str) -> list[Finding]:
    """Return problems, without the lines of those at some places: the lines may contain a key or a password."""
    return [replace(each, source="") if each.path.startswith(places) else each for each in findings.problems()]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Makes the parts of a well-formed file, and reports semantic errors."""

    findings: Findings
    folder: Path
    reading: Callable[[Path], object]

    def identifier(self, read: Values, trusted: Sequence[str], *, has_consumers: bool) -> Identifier | None:
        addresses = self._addresses(read.get("addresses", {}), trusted)
        api_keys = self._api_keys(read["api_keys"], has_consumers=has_consumers) if "api_keys" in read else None
        tokens = None
        issuers = [self._issuer(("tokens", index), issuer) for index, issuer in enumerate(read.get("tokens", ()))]
        if "tokens" in read and None not in issuers:
            tokens = self.findings.attempt(("tokens",), TokenVerifier, issuers)
        verified = [
            self.findings.attempt(("jwt_metadata", index), VerifiedClaims, **_with_user(claims))
            for index, claims in enumerate(read.get("jwt_metadata", ()))
        ]
        if addresses is None or self.findings.count:
            return None
        return self.findings.attempt(("jwt_metadata",), Identifier, addresses, api_keys, tokens, verified)

    def _addresses(self, given: Values, elsewhere: Sequence[str]) -> AddressReader | None:
        path, header = ("addresses",), given.get("header", FORWARDED_FOR)
        for name in ("trusted", "hops"):
            if name in given and elsewhere:
                message = "the option --trusted-proxies sets the trusted proxies, too"
                self.findings.reject((*path, name), message, "Set them in one of the two places.", at_key=True)
        trusted = given.get("trusted", () if given.get("hops") else (elsewhere or LOOPBACK))
        for index, network in enumerate(trusted):
            self.findings.attempt((*path, "trusted", index), AddressReader, FORWARDED_FOR, [network])
        self.findings.attempt((*path, "header"), header_name, header)
        others = {name: given[name] for name in ("hops", "ipv6_prefix") if name in given}
        return None if self.findings.count else self.findings.attempt(path, AddressReader, header, trusted, **others)

    def _api_keys(self, given: Values, *, has_consumers: bool) -> ApiKeys | None:
        known: dict[str, Holder] = {}
        for index, entry in enumerate(given["keys"]):
            holder = self.findings.attempt(("api_keys", "keys", index), Holder, **_without(entry, "sha256"))
            known[entry["sha256"]] = holder or Holder()
        if "header" in given:
            self.findings.attempt(("api_keys", "header"), header_name, given["header"])
        if not given["keys"] and not has_consumers:
            hint = "List the keys, or set --database."
            self.findings.reject(("api_keys", "keys"), "no database with consumers is configured", hint)
        if self.findings.count:
            return None
        return self.findings.attempt(("api_keys",), ApiKeys, known or NO_KEYS, **_without(given, "keys"))

    def _issuer(self, path: Place, given: Values) -> Issuer | None:
        named = [source for source in ("jwks", "pem") if source in given]
        if len(named) != 1:
            self.findings.reject(path, "must have exactly one file of keys", "Give either jwks or pem.")
            return None
        (source,) = named
        file = self.folder / given[source]
        self.reading(file)
        keys = self.findings.attempt((*path, source), _keys, source, file, given["algorithms"])
        if keys is None:
            return None
        return self.findings.attempt(path, Issuer, keys, **_with_user(_without(given, "algorithms", source)))


def _without(given: Values, *names: str) -> Values:
    return {name: value for name, value in given.items() if name not in names}


def _with_user(given: Values) -> Values:
    return {**given, "claims": _USER | given.get("claims", {})}


def _keys(source: str, path: Path, algorithms: Sequence[str]) -> tuple[VerificationKey, ...]:
    """Return the key of a PEM file, or the keys of a JWK set that are for one of the algorithms.

    Raises InvalidSettings.
    """
    if source == "pem" and len(algorithms) != 1:
        raise InvalidSettings(f"a PEM key is for one algorithm, not for {len(algorithms)}")
    if source == "pem" and FAMILIES[algorithms[0]] == "oct":
        raise InvalidSettings(f"{algorithms[0]} uses a shared secret, not a PEM file: give it as a JWK set")
    try:
        content = content_of(path, MAX_KEY_FILE)
    except UnreadableFile as error:
        raise InvalidSettings(f"{path} {error}") from None
    try:
        if source == "pem":
            return (VerificationKey.load(algorithms[0], content),)
        return key_set(msgspec.json.decode(content), algorithms)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidSettings(f'{path} is not JSON; a JWK set looks like {{"keys": [...]}}') from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None
