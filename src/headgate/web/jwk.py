"""Keys that verify tokens: each is bound to one algorithm, and checked when it is loaded.

The algorithm belongs to the key, never to the token. A token that names another is rejected before anything is
computed, so a public RSA key cannot be used as an HMAC secret, and ``none`` is not an algorithm.

Keys come from the configuration: PEM text, a shared secret, or a JWK set from a file. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core.numbers import short
from headgate.messages import not_installed
from headgate.web.errors import InvalidSettings

FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""The type of key (``kty``) of each algorithm."""
CURVES = {"ES256": ("P-256", "secp256r1"), "ES384": ("P-384", "secp384r1"), "ES512": ("P-521", "secp521r1")}
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHORTEST_RSA = 2048


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key, its algorithm, and its id (``kid``)."""

    algorithm: str
    key_id: str
    """Empty for an issuer's only key, which then verifies tokens with any id."""
    material: Any = field(repr=False, compare=False)
    """PyJWT's form of the key."""
    is_signed: Callable[[bytes, Any, bytes], bool] = field(repr=False, compare=False)
    """PyJWT's verification: (message, material, signature) -> whether the signature is valid."""

    @classmethod
    def load(cls, algorithm: str, key: str | bytes, *, key_id: str = "") -> VerificationKey:
        """Load a public key from PEM text or, for HS256, HS384 and HS512, a shared secret.

        Raises:
            InvalidSettings: the key is not for `algorithm`, too short, or private.
        """
        checked = _algorithm(algorithm)
        if not isinstance(key, str | bytes):
            raise InvalidSettings(f"a key must be text or bytes, got {type(key).__name__}")
        if b"PRIVATE KEY" in (key.encode() if isinstance(key, str) else key):
            raise InvalidSettings("this is a private key: verification needs only the public key")
        return _prepared(algorithm, key_id, checked, lambda: checked.prepare_key(key))

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, Any], algorithms: Iterable[str]) -> VerificationKey | None:
        """Load a key of a JWK set; None if it does not verify signatures by one of `algorithms`.

        A key without an algorithm is bound to the only one of `algorithms` that it fits.
        """
        operations = jwk.get("key_ops", ["verify"])
        if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
            return None
        fits = [name for name in algorithms if _fits(jwk, name)]
        if not fits:
            return None
        if len(fits) > 1:
            raise InvalidSettings(
                f"a key fits {' and '.join(fits)}: set its algorithm ('alg'), or accept only one of them"
            )
        if "d" in jwk:
            raise InvalidSettings("the JWK set contains a private key: verification needs only the public keys")
        algorithm = _algorithm(fits[0])
        return _prepared(fits[0], jwk.get("kid", ""), algorithm, lambda: algorithm.from_jwk(dict(jwk)))


def key_set(jwks: Mapping[str, Any], algorithms: Iterable[str]) -> tuple[VerificationKey, ...]:
    """Load the keys for one of `algorithms` from a JWK set (RFC 7517), decoded from JSON. Raises InvalidSettings."""
    entries = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidSettings('a JWK set must be a JSON object such as {"keys": [{"kty": "RSA", ...}]}')
    names = tuple(algorithms)
    for name in names:
        _algorithm(name)
    keys = tuple(key for entry in entries if (key := VerificationKey.from_jwk(entry, names)))
    if not keys:
        raise InvalidSettings(f"none of the {len(entries)} keys of the JWK set is for {' or '.join(names)}")
    return keys


def _fits(jwk: Mapping[str, Any], algorithm: str) -> bool:
    if jwk.get("kty") != FAMILIES[algorithm] or jwk.get("alg", algorithm) != algorithm:
        return False
    return algorithm not in CURVES or jwk.get("crv") == CURVES[algorithm][0]


def _prepared(name: str, key_id: object, algorithm: Any, prepare: Callable[[], Any]) -> VerificationKey:
    if not isinstance(key_id, str) or (key_id and not KEY_ID.fullmatch(key_id)):
        raise InvalidSettings(f"a key id must have 1 to 64 of A-Z a-z 0-9 . _ -, got {short(key_id)}")
    try:
        material = prepare()
    except Exception:  # noqa: BLE001  its text may contain the key
        raise InvalidSettings(f"this is not a key for {name}") from None
    family = FAMILIES[name]
    if not _is_of(family, material):  # not every version of PyJWT checks
        raise InvalidSettings(f"this is not a key for {name}")
    if family == "oct" and len(material) * 8 < int(name[2:]):
        raise InvalidSettings(f"a secret for {name} must have at least {int(name[2:]) // 8} bytes, got {len(material)}")
    if family == "RSA" and material.key_size < _SHORTEST_RSA:
        raise InvalidSettings(f"an RSA key must have at least {_SHORTEST_RSA} bits, got {material.key_size}")
    if family == "EC" and material.curve.name != CURVES[name][1]:
        raise InvalidSettings(f"{name} needs a key on the curve {CURVES[name][0]}, got {material.curve.name}")
    return VerificationKey(name, key_id, material, algorithm.verify)


def _is_of(family: str, material: object) -> bool:
    if family == "oct":
        return isinstance(material, bytes)
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa  # noqa: PLC0415  the same extra

    types: dict[str, tuple[type, ...]] = {
        "RSA": (rsa.RSAPublicKey,),
        "EC": (ec.EllipticCurvePublicKey,),
        "OKP": (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey),
    }
    return isinstance(material, types[family])


def _algorithm(name: object) -> Any:
    if not isinstance(name, str) or name not in FAMILIES:
        raise InvalidSettings(f"unknown algorithm {short(name)}: use one of {', '.join(FAMILIES)}")
    try:
        import jwt  # noqa: PLC0415  an extra

        return jwt.get_algorithm_by_name(name)
    except ImportError:
        raise InvalidSettings(not_installed("jwt", "jwt")) from None
    except NotImplementedError:
        raise InvalidSettings(f"{name}: {not_installed('cryptography', 'jwt')}") from None
