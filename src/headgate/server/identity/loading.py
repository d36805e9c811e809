"""Identity files: the declaration of every field, and the `Identifier` that a file describes.

All problems of a file are reported at once, with their lines, including those that `headgate.web` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headgate.config.problems import Finding, Findings, InvalidRules, ProblemKind, render
from headgate.config.problems import Path as Place
from headgate.config.schema import Field, ListOf, MapOf, Record, Scalar, Schema
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

T = TypeVar("T")
FORWARDED_FOR = "x-forwarded-for"
_USER = {"user": "sub"}
MAX_KEY_FILE = 1_048_576
"""Bytes of an issuer's key file."""
_DIGEST = Scalar(
    {"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"},
    "is not a digest",
    "64 of 0-9 a-f",
    str.lower,
    lambda *_: 'Create it with: printf %s "$KEY" | sha256sum. The key itself does not belong here.',
    is_secret=True,
)
"""The SHA-256 of an API key, in hexadecimal. An invalid value is never shown: it may be the key."""
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


class Holders:
    """A list of API keys, or the word database. Invalid entries are never shown."""

    def read(self, value: object, path: Place, findings: Findings) -> list[dict[str, Any] | None] | None:
        one = f"{{sha256: DIGEST}} and any of {', '.join([*HOLDER.fields][1:])}"
        if value == OF_DATABASE:
            return []
        if type(value) is not list or not value:
            wrong = "has no key" if value == [] else "is not a list of API keys"
            findings.add(path, wrong, f"a list with {one} for each key; or {OF_DATABASE}")
            return None
        read = []
        for index, item in enumerate(value):
            if type(item) is dict and item.keys() <= HOLDER.fields.keys():
                read.append(HOLDER.read(item, (*path, index), findings))
            else:
                unknown = [key for key in item if key not in HOLDER.fields] if type(item) is dict else []
                hint = next(filter(None, (findings.near(key, HOLDER.fields) for key in unknown)), "")
                findings.add((*path, index), "is not the entry of an API key", one, hint)
        return read

    def schema(self) -> Schema:
        return {"anyOf": [{"const": OF_DATABASE}, {"type": "array", "minItems": 1, "items": HOLDER.schema()}]}


_CLAIMS = Field(
    MapOf(
        Scalar.text("the name of a claim", most=512),
        "claims by their meaning, such as {user: sub, tenant: org, tier: plan}",
        keys="(?!(?:apikey|endpoint|global|ip)$)[a-z][a-z0-9_]{0,31}",
    ),
    "The claims with the user, the tenant, the tier, or other attributes for rules; default: {user: sub}.",
)
_REALM = Field(
    Scalar.text("1 to 64 of A-Z a-z 0-9 . _ -", "[A-Za-z0-9._-]{1,64}", 64),
    "The prefix of its users' names; required with several issuers.",
)
ISSUER = Record(
    "an issuer",
    {
        "issuer": Field(
            Scalar.text("text, as in the claim iss", most=512), "The required value of the claim iss; default: any."
        ),
        "audience": Field(
            ListOf(Scalar.text("text, as in the claim aud", most=512), "a list such as [api]"),
            "One of these must be in the claim aud. Without it, tokens with an audience are not accepted.",
        ),
        "algorithms": Field(
            ListOf(Scalar.choice(FAMILIES.keys()), f"a list of {', '.join(FAMILIES)}"),
            "The algorithms that tokens may be signed with, such as [RS256].",
            required=True,
        ),
        "jwks": Field(_FILE, "A file with the keys, as a JWK set."),
        "pem": Field(_FILE, "Alternatively, a file with the only key, as PEM."),
        "claims": _CLAIMS,
        "realm": _REALM,
        "leeway_s": Field(Scalar.whole(0, 600), "By how many seconds clocks may differ; default: 60."),
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
        "hops": Field(Scalar.whole(1, MAX_HOPS), "Alternatively, the number of proxies, whatever their addresses."),
        "ipv6_prefix": Field(Scalar.whole(32, 128), "How many bits of an IPv6 address identify a client; default: 64."),
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
        "keys": Field(
            Holders(),
            "The accepted keys, by digest; or database: those of consumers only.",
            required=True,
        ),
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
    """Return the identifier that a file describes. Raises InvalidRules, with all problems.

    Args:
        path: of the YAML file. Files that it names are relative to its folder.
        trusted: networks of proxies set elsewhere; the file must not set others then.
        reading: called with each file that it names, before that is read.
        has_consumers: whether there is a database, which has keys of consumers.
    """
    name = fspath(path)
    document = Document(text_of(path), name, "an identity file", has_secrets=True)
    findings = Findings(document)
    read = FILE.read(document.data, (), findings)
    identifier = None
    if read is not None and not findings.count:
        building = _Building(Path(name).parent, findings, reading, has_consumers=has_consumers)
        identifier = building.identifier(read, trusted)
    if identifier is None or findings.count or document.problems:
        raise InvalidRules(without_secrets(findings, "api_keys"))
    return identifier


def without_secrets(findings: Findings, *places: str) -> list[Finding]:
    """Return problems, without the lines of those at some places: the lines may contain a key or a password."""
    return [replace(each, source="") if each.path.startswith(places) else each for each in findings.problems()]


class _Building:
    """Builds the parts of a well-formed file, and reports semantic errors."""

    def __init__(
        self, folder: Path, findings: Findings, reading: Callable[[Path], object], *, has_consumers: bool
    ) -> None:
        self._folder, self._findings, self._reading = folder, findings, reading
        self._has_consumers = has_consumers

    def identifier(self, read: Mapping[str, Any], trusted: Sequence[str]) -> Identifier | None:
        addresses = self._addresses(read.get("addresses", {}), trusted)
        api_keys = self._api_keys(read["api_keys"]) if "api_keys" in read else None
        tokens = self._tokens(read["tokens"]) if "tokens" in read else None
        verified = [
            self._made(("jwt_metadata", index), VerifiedClaims, **_with_user(given))
            for index, given in enumerate(read.get("jwt_metadata", ()))
        ]
        if addresses is None or self._findings.count:
            return None
        return self._made(("jwt_metadata",), Identifier, addresses, api_keys, tokens, verified)

    def _addresses(self, given: Mapping[str, Any], elsewhere: Sequence[str]) -> AddressReader | None:
        path, header = ("addresses",), given.get("header", FORWARDED_FOR)
        for said in ("trusted", "hops"):
            if said in given and elsewhere:
                message = "the option --trusted-proxies sets the trusted proxies, too"
                self._note((*path, said), message, "Set them in one of the two places.", at_key=True)
        trusted = given.get("trusted", () if given.get("hops") else (elsewhere or LOOPBACK))
        for index, network in enumerate(trusted):
            self._made((*path, "trusted", index), AddressReader, FORWARDED_FOR, [network])
        self._made((*path, "header"), header_name, header)
        if self._findings.count:
            return None
        others = {name: given[name] for name in ("hops", "ipv6_prefix") if name in given}
        return self._made(path, AddressReader, header, trusted, **others)

    def _api_keys(self, given: Mapping[str, Any]) -> ApiKeys | None:
        known: dict[str, Holder] = {}
        places: dict[str, Place] = {}
        for index, entry in enumerate(given["keys"]):
            path, digest = ("api_keys", "keys", index), entry["sha256"]
            if digest in known:
                self._note((*path, "sha256"), f"is that of {render(places[digest])}, too", "Remove one of the two.")
            holder = self._made(path, Holder, **{name: part for name, part in entry.items() if name != "sha256"})
            known[digest], places[digest] = holder or Holder(), path
        if "header" in given:
            self._made(("api_keys", "header"), header_name, given["header"])
        if not given["keys"] and not self._has_consumers:
            self._note(("api_keys", "keys"), "there is no database with consumers", "List the keys, or see --database.")
        if self._findings.count:
            return None
        where = {name: part for name, part in given.items() if name != "keys"}
        return self._made(("api_keys",), ApiKeys, known or NO_KEYS, **where)

    def _tokens(self, given: Sequence[Mapping[str, Any]]) -> TokenVerifier | None:
        issuers = [self._issuer(("tokens", index), issuer) for index, issuer in enumerate(given)]
        made = [issuer for issuer in issuers if issuer is not None]
        return self._made(("tokens",), TokenVerifier, made) if len(made) == len(given) else None

    def _issuer(self, path: Place, given: Mapping[str, Any]) -> Issuer | None:
        found = self._keys(path, given)
        if found is None:
            return None
        others = {name: part for name, part in given.items() if name not in {"algorithms", "jwks", "pem"}}
        return self._made(path, Issuer, found, **_with_user(others))

    def _keys(self, path: Place, given: Mapping[str, Any]) -> tuple[VerificationKey, ...] | None:
        sources = {"jwks": keys_from_jwks, "pem": keys_from_pem}
        named = [source for source in sources if source in given]
        if len(named) != 1:
            self._note(path, "must have exactly one file of keys", "Give either jwks or pem.")
            return None
        (source,) = named
        if not given["algorithms"]:
            self._note((*path, "algorithms"), "names no algorithm", "Give those that sign its tokens: [RS256].")
            return None
        file = self._folder / given[source]
        self._reading(file)
        return self._made((*path, source), sources[source], file, given["algorithms"])

    def _made(self, path: Place, make: Callable[..., T], *parts: Any, **others: Any) -> T | None:
        try:
            return make(*parts, **others)
        except InvalidSettings as error:
            self._note(path, str(error))
            return None

    def _note(self, path: Place, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self._findings.add(path, message, hint=hint, kind=ProblemKind.MEANING, at_key=at_key)


def _with_user(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given, with a claim that names the user."""
    return {**given, "claims": _USER | given.get("claims", {})}


def keys_from_jwks(path: Path, algorithms: Sequence[str]) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWK set that are for one of the algorithms. Raises InvalidSettings."""
    content = _content(path)
    try:
        return key_set(msgspec.json.decode(content), algorithms)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidSettings(f'{path} is not JSON; a JWK set looks like {{"keys": [...]}}') from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def keys_from_pem(path: Path, algorithms: Sequence[str]) -> tuple[VerificationKey, ...]:
    """Return the key of a PEM file. Raises InvalidSettings."""
    if len(algorithms) != 1:
        raise InvalidSettings(f"a PEM key is for one algorithm, not for {len(algorithms)}")
    (algorithm,) = algorithms
    if FAMILIES[algorithm] == "oct":
        raise InvalidSettings(f"{algorithm} has a shared secret rather than a PEM file: give it as a JWK set")
    content = _content(path)
    try:
        return (VerificationKey.load(algorithm, content),)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def _content(path: Path) -> bytes:
    try:
        return content_of(path, MAX_KEY_FILE)
    except UnreadableFile as error:
        raise InvalidSettings(f"{path} {error}") from None
