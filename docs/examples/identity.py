"""Who asks: by API key, by token, and by address."""

from __future__ import annotations

from time import time

import jwt

from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.identity import Identifier
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier

SECRET = "a secret that the issuer shares with us"  # noqa: S105  of nobody
API_KEY_DIGEST = digest("ak_a-long-random-key")
NOW = int(time() * 1_000_000)
told = {"iss": "https://id.example.com", "aud": "api", "sub": "42", "plan": "free", "exp": NOW // 1_000_000 + 300}
token = jwt.encode(told, SECRET, "HS256").encode()
peer = "203.0.113.9"

keys = ApiKeys({API_KEY_DIGEST: Holder("reporting", tenant="acme")})

tokens = TokenVerifier(
    [
        Issuer(
            [VerificationKey.load("HS256", SECRET)],
            issuer="https://id.example.com",
            audience=["api"],
            claims={"user": "sub", "tier": "plan"},
        )
    ]
)

identifier = Identifier(AddressReader(), keys, tokens)
lines = [(b"x-api-key", b"ak_a-long-random-key"), (b"authorization", b"Bearer " + token)]
identity = identifier.identify(peer, lines, NOW)
print(identity.principal)  # {'user': '42', 'apikey': 'reporting', 'tenant': 'acme', 'ip': '203.0.113.9'}
print(identity.tier)  # free

unknown = identifier.identify(peer, [(b"x-api-key", b"ak_guessed")], NOW)
print(unknown.principal, unknown.reasons["apikey"])  # {'ip': '203.0.113.9'} unknown key
