"""Every field of an identity file: its name, its kind, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headgate.policy.kinds import Choice, Constant, Many, Schema, Table, Text, Whole
from headgate.policy.problems import Findings, Path
from headgate.policy.shapes import Field, Shape
from headgate.web.address import MAX_HOPS
from headgate.web.jwk import FAMILIES

_DIGEST = "[0-9A-Fa-f]{64}"
_HEADER = Text("the name of a header, such as x-api-key", most=64, numbers=False)
_PRINCIPAL = Text("printable text, up to 512 bytes", most=512)
_FILE = Text("a file, from the folder of this one", most=4096, numbers=False)


@dataclass(frozen=True, slots=True)
class Digest:
    """The SHA-256 of an API key, in hexadecimal. What stands there instead is never repeated: it may be the key."""

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if isinstance(value, str) and re.fullmatch(_DIGEST, value):
            return value.lower()
        findings.add(
            path,
            "is no digest" if value is not None else "has no value",
            "64 of 0-9 a-f",
            'Make it with: printf %s "$KEY" | sha256sum. The key itself does not belong here.',
        )
        return None

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{_DIGEST}$"}


HOLDER = Shape(
    "an API key",
    {
        "sha256": Field(Digest(), "The SHA-256 of the key, in hexadecimal.", required=True),
        "name": Field(_PRINCIPAL, "What rules and logs call the key; default: some digits of its digest."),
        "user": Field(_PRINCIPAL, "The user whose key it is."),
        "tenant": Field(_PRINCIPAL, "The tenant whose key it is."),
        "tier": Field(_PRINCIPAL, "The tier of its holder."),
    },
)


@dataclass(frozen=True, slots=True)
class Holders:
    """A list of API keys. What has another form is not repeated either."""

    def read(self, value: object, path: Path, findings: Findings) -> list[dict[str, Any] | None] | None:
        one = f"{{sha256: DIGEST}}, and any of {', '.join([*HOLDER.fields][1:])}"
        if type(value) is not list or not value:
            findings.add(path, "is not a list of API keys", f"a list, with for each key {one}")
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
        return {"type": "array", "minItems": 1, "items": HOLDER.schema()}


ISSUER = Shape(
    "an issuer",
    {
        "issuer": Field(Text("text, as in the claim iss", most=512), "What the claim iss must be; default: any."),
        "audience": Field(
            Many(Text("text, as in the claim aud", most=512), "a list such as [api]"),
            "One of these must be in the claim aud. Where it is not given, no token for an audience is accepted.",
        ),
        "algorithms": Field(
            Many(Choice(tuple(FAMILIES)), f"a list of {', '.join(FAMILIES)}"),
            "By which tokens may be signed, such as [RS256].",
            required=True,
        ),
        "jwks": Field(_FILE, "A file with the keys, as a JWK set."),
        "pem": Field(_FILE, "Or a file with the only key, as PEM."),
        "claims": Field(
            Table(
                Text("the name of a claim", most=512),
                "claims by what they tell, such as {user: sub, tenant: org, tier: plan}",
                keys="(?!(?:apikey|endpoint|global|ip)$)[a-z][a-z0-9_]{0,31}",
            ),
            "Which claims name the user, the tenant, the tier, or others that rules know; default: {user: sub}.",
        ),
        "realm": Field(
            Text("1 to 64 of A-Z a-z 0-9 . _ -", "[A-Za-z0-9._-]{1,64}", 64),
            "Put before the names of its users; needed where there are several issuers.",
        ),
        "leeway_s": Field(Whole(0, 600), "By how many seconds clocks may differ; default: 60."),
    },
)
ADDRESSES = Shape(
    "addresses",
    {
        "header": Field(_HEADER, "Where proxies write the address of their client; default: x-forwarded-for."),
        "trusted": Field(
            Many(Text("a network such as 10.0.0.0/8, or unix", most=64), "a list such as [10.0.0.0/8, unix]"),
            "The networks of the proxies, which alone may ask; default: this machine.",
        ),
        "hops": Field(Whole(1, MAX_HOPS), "Instead: how many proxies there are, whoever they are."),
        "ipv6_prefix": Field(Whole(32, 128), "How many bits of an IPv6 address make one client; default: 64."),
    },
)
API_KEYS = Shape(
    "api_keys",
    {
        "header": Field(_HEADER, "Where clients send their key; default: x-api-key."),
        "scheme": Field(
            Text("a word such as Bearer", "[A-Za-z0-9-]{1,32}", 32, numbers=False), "The word before it, if any."
        ),
        "keys": Field(Holders(), "The keys that are accepted, by their digests.", required=True),
    },
)
FILE = Shape(
    "an identity file",
    {
        "version": Field(Constant(1), "The version of this form: write version: 1.", required=True),
        "addresses": Field(ADDRESSES, "Which proxies are believed about the addresses of their clients."),
        "api_keys": Field(API_KEYS, "The API keys that clients may have."),
        "tokens": Field(
            Many(ISSUER, "a list of issuers, each with algorithms and jwks or pem"),
            "Whose tokens (JWT) clients may have.",
        ),
    },
    extensions=True,
)
