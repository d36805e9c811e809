"""Who callers are: the part of a gateway file about API keys and tokens, and what each side needs of it.

Envoy verifies tokens and passes their claims on, so it gets the keys of the issuers. Headgate knows API keys, by their
digests alone, and which claims name whom: that is an identity file, as `headgate serve --identity` reads it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headgate.config.problems import Findings, ProblemKind
from headgate.config.problems import Path as Place
from headgate.config.schema import Field, ListOf, Record, Scalar, Schema
from headgate.gateway.model import Gateway, TokenIssuer
from headgate.gateway.scalars import FILE, Folder
from headgate.server.identity.loading import API_KEYS as _KNOWN_KEYS
from headgate.server.identity.loading import ISSUER, OF_DATABASE, Holders
from headgate.web.errors import InvalidSettings
from headgate.web.jwk import FAMILIES, VerificationKey

__all__ = ["API_KEYS", "ISSUERS", "identity_file", "issuers_of"]
_SECRETS = tuple(name for name, family in FAMILIES.items() if family == "oct")
_SOURCES = ("jwks", "jwks_url", "secret_file")
_ANY = "any"
API_KEYS = Record(
    "api_keys",
    {
        **_KNOWN_KEYS.fields,
        "keys": Field(Holders(), "The keys that are accepted, by their digests."),
        "consumers": Field(
            Scalar.text("sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE", most=2000, numbers=False),
            "Or, or besides: the database with the consumers whose keys are accepted.",
        ),
    },
)
_TEXT = Scalar.text("text, as in the claim aud", most=512)


class Audience:
    """A list of names, or the word any."""

    def read(self, value: object, path: Place, findings: Findings) -> list[str] | None:
        if value == _ANY:
            return []
        read = ListOf(_TEXT, "a list such as [api], or any").read(value, path, findings)
        if read == []:
            findings.add(path, "names nobody", "a list such as [api], or any")
            return None
        return read

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": [_ANY]}, {"type": "array", "minItems": 1, "items": _TEXT.schema()}]}


_ISSUER = Record(
    "an issuer",
    {
        "issuer": ISSUER.fields["issuer"],
        "audience": Field(
            Audience(), "One of these must be in the claim aud; any where tokens have none.", required=True
        ),
        "jwks": Field(FILE, "A file with its keys, as a JWK set."),
        "jwks_url": Field(
            Scalar.text("an address such as https://id.example.com/keys", r"https?://[!-~]+", 2000, numbers=False),
            "Or where Envoy fetches them.",
        ),
        "ca": Field(FILE, "Authorities of the certificate there (PEM); default: those that this system trusts."),
        "secret_file": Field(FILE, "Or a file with the secret that is shared with it."),
        "algorithms": Field(
            ListOf(Scalar.choice(FAMILIES.keys()), f"a list of {', '.join(FAMILIES)}"),
            "By which its tokens may be signed, such as [RS256]; not for keys that are fetched, which say so.",
        ),
        "claims": ISSUER.fields["claims"],
        "realm": ISSUER.fields["realm"],
        "leeway_s": ISSUER.fields["leeway_s"],
    },
)
ISSUERS = ListOf(_ISSUER, "a list of issuers, each with audience and jwks, jwks_url or secret_file")


def issuers_of(
    written: Sequence[Any], given: Sequence[Mapping[str, Any] | None], folder: Folder, findings: Findings
) -> tuple[TokenIssuer, ...]:
    """Return the issuers of a file, as far as they are well formed; what makes no sense is noted.

    Args:
        written: them, as the file has them.
        given: what of that is well formed.
        folder: where the files are that they name.
        findings: where problems are noted.
    """
    issuers = []
    for index, read in enumerate(given):
        path: Place = ("identity", "tokens", index)
        if read is None or None in read.get("algorithms", ()):  # noted already
            continue
        if len(given) > 1 and "realm" not in read:
            hint = "Write realm: NAME, which is put before the names of its users."
            _note(findings, path, "with several issuers, each needs a realm: one could name the users of another", hint)
        misspelt = _ISSUER.misspelt(written[index], findings)
        named = [source for source in _SOURCES if source in {*written[index], *misspelt}]
        if len(named) == 1 and named[0] not in read:  # noted already
            continue
        if len(named) != 1:
            _note(findings, path, "its keys come from one place", f"Give one of {', '.join(_SOURCES)}.")
            continue
        jwks, authorities = "", ""
        if named == ["jwks_url"]:
            _check_url(read, path, findings)
            if read["jwks_url"].startswith("https:"):
                authorities = folder.authorities(path, read.get("ca", "")) or ""
        else:
            jwks = _key_set(read, named[0], path, folder, findings)
        claims = {"user": "sub"} | read.get("claims", {})
        issuers.append(
            TokenIssuer(
                f"issuer-{index}",
                read.get("issuer", ""),
                tuple(read.get("audience", ())),
                claims,
                read.get("realm", ""),
                read.get("leeway_s", 60),
                jwks,
                read.get("jwks_url", ""),
                authorities,
            )
        )
    return tuple(issuers)


def identity_file(gateway: Gateway) -> dict[str, Any]:
    """Return the identity file of the decision service that runs beside a gateway, as data."""
    addresses = {"trusted": ["unix"], "ipv6_prefix": gateway.ipv6_prefix}
    file: dict[str, Any] = {"version": 1, "addresses": addresses}
    if gateway.api_keys is not None:
        keys = {"keys": OF_DATABASE, **gateway.api_keys}
        file["api_keys"] = {name: value for name, value in keys.items() if name != "consumers"}
    if gateway.issuers:
        file["jwt_metadata"] = [
            {"key": each.name, "claims": each.claims} | ({"realm": each.realm} if each.realm else {})
            for each in gateway.issuers
        ]
    return file


def _check_url(read: Mapping[str, Any], path: Place, findings: Findings) -> None:
    if "algorithms" in read:
        _note(findings, (*path, "algorithms"), "keys that are fetched say it themselves", "Remove algorithms.")
    try:
        parts = urlsplit(read["jwks_url"])
        is_good = bool(parts.hostname) and (parts.port or 443) > 0 and not (parts.username or parts.fragment)
    except ValueError:
        is_good = False
    if not is_good:
        _note(findings, (*path, "jwks_url"), "has no host, or a user in it", "Write https://HOST/PATH.")


def _key_set(read: Mapping[str, Any], source: str, path: Place, folder: Folder, findings: Findings) -> str:
    """Return the keys of an issuer, each bound to its algorithm, as the text of a JWK set."""
    text = folder.text((*path, source), read[source])
    if text is None:
        return ""
    algorithms = read.get("algorithms", ["HS256"] if source == "secret_file" else [])
    try:
        keys = _secret(text, algorithms) if source == "secret_file" else _bound(text, algorithms)
    except InvalidSettings as error:
        _note(findings, (*path, source), str(error))
        return ""
    return msgspec.json.encode({"keys": keys}).decode()


def _secret(text: str, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    if len(algorithms) != 1 or algorithms[0] not in _SECRETS:
        raise InvalidSettings(f"a shared secret is for one algorithm of {', '.join(_SECRETS)}")
    secret = text.strip().encode()
    VerificationKey.load(algorithms[0], secret)
    encoded = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return [{"kty": "oct", "alg": algorithms[0], "k": encoded}]


def _bound(text: str, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    if not algorithms:
        raise InvalidSettings("say by which algorithms its tokens are signed: algorithms: [RS256]")
    try:
        found = msgspec.json.decode(text, type=_KeySet)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidSettings('a JWK set is JSON such as {"keys": [{"kty": "RSA", ...}]}') from None
    keys = [
        entry | {"alg": key.algorithm}
        for entry in found.keys
        if (key := VerificationKey.from_jwk(entry, algorithms)) is not None
    ]
    if not keys:
        raise InvalidSettings(f"none of the {len(found.keys)} keys is for {' or '.join(algorithms)}")
    return keys


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def _note(findings: Findings, path: Place, message: str, hint: str = "") -> None:
    findings.add(path, message, hint=hint, kind=ProblemKind.MEANING)
