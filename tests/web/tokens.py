"""Keys and tokens for tests: signed properly, or forged by hand."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

NOW_S = 1_800_000_000
NOW = NOW_S * 1_000_000
SECRET = b"a shared secret of 64 bytes, which is enough for each of the HS*"
CLAIMS = {"sub": "42", "exp": NOW_S + 300}


@cache
def private_key(algorithm: str) -> Any:
    """Return a private key for an algorithm, made once."""
    if algorithm in {"RS256", "PS256"}:
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curves: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.generate_private_key(curves[algorithm])


def public_pem(algorithm: str) -> bytes:
    public = private_key(algorithm).public_key()
    pem: bytes = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def jwk(algorithm: str, **more: Any) -> dict[str, Any]:
    """Return the public key as a JWK."""
    known: Any = jwt.get_algorithm_by_name(algorithm)
    entry: dict[str, Any] = known.to_jwk(private_key(algorithm).public_key(), as_dict=True)
    return {key: value for key, value in (entry | more).items() if key != "key_ops"}


def signed(claims: dict[str, Any] | None = None, algorithm: str = "HS256", *, key: Any = None, **headers: Any) -> bytes:
    """Return a token that PyJWT signed."""
    material = key or (SECRET if algorithm.startswith("HS") else private_key(algorithm))
    return jwt.encode(CLAIMS if claims is None else claims, material, algorithm, headers).encode()


def forged(header: Any, payload: Any, signature: bytes = b"sig") -> bytes:
    """Return a token with any header, payload and signature; bytes are taken as they are."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (*parts, signature))


def hand_signed(header: Any, payload: Any, secret: bytes = SECRET) -> bytes:
    """Return a token with any header and payload, properly signed by HMAC-SHA-256."""
    unsigned = forged(header, payload, b"").removesuffix(b".")
    return unsigned + b"." + urlsafe_b64encode(hmac.digest(secret, unsigned, "sha256")).rstrip(b"=")
