"""Keys that verify tokens: bound to one algorithm, and refused when loaded rather than when used."""

from __future__ import annotations

import sys
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headgate.web.errors import InvalidSettings
from headgate.web.jwk import VerificationKey, _prepared, key_set
from tests.web.tokens import SECRET, jwk, private_key, public_pem

ASYMMETRIC = ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"]


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_public_key_is_loaded_from_pem_or_jwk(algorithm: str) -> None:
    assert VerificationKey.load(algorithm, public_pem(algorithm), key_id="k1").algorithm == algorithm
    (key,) = key_set({"keys": [jwk(algorithm, kid="k1", alg=algorithm)]}, [algorithm])
    assert (key.algorithm, key.key_id) == (algorithm, "k1")


def test_a_set_may_have_keys_for_other_purposes() -> None:
    entries = [
        jwk("RS256", kid="encryption", use="enc"),
        jwk("RS256", kid="wrap", key_ops=["wrapKey"]) | {"key_ops": ["wrapKey"]},
        jwk("RS256", kid="other", alg="RS512"),
        jwk("ES256", kid="curve"),
        jwk("RS256", kid="good", use="sig"),
        {"kty": "future", "kid": "unheard-of"},
    ]
    assert [key.key_id for key in key_set({"keys": entries}, ["RS256"])] == ["good"]


def test_the_curve_decides_which_algorithm_a_key_fits() -> None:
    keys = key_set({"keys": [jwk("ES384", kid="a"), jwk("ES256", kid="b")]}, ["ES256", "ES384"])
    assert [(key.key_id, key.algorithm) for key in keys] == [("a", "ES384"), ("b", "ES256")]


UNUSABLE: list[tuple[Any, str]] = [
    ({}, "a JWK set must be"),
    ([], "a JWK set must be"),
    ({"keys": {}}, "a JWK set must be"),
    ({"keys": ["x"]}, "a JWK set must be"),
    ({"keys": []}, "none of the 0 keys"),
    ({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}, "none of the 1 keys"),
    ({"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}, "not a key for RS256"),
    ({"keys": [{"kty": "RSA"}]}, "not a key for RS256"),
    ({"keys": [{"kty": "RSA", "kid": "../../etc/passwd"}]}, "key id"),
    ({"keys": [{"kty": "RSA", "kid": 7}]}, "key id"),
    ({"keys": [{"kty": "RSA", "d": "x"}]}, "private key"),
]


def test_a_set_without_a_usable_key_is_refused() -> None:
    for jwks, message in UNUSABLE:
        with pytest.raises(InvalidSettings, match=message):
            key_set(jwks, ["RS256"])
    with pytest.raises(InvalidSettings, match="RS256 and PS256"):  # a key that fits both is bound to neither
        key_set({"keys": [jwk("RS256")]}, ["RS256", "PS256"])


def test_only_known_algorithms_exist() -> None:
    names: list[Any] = ["none", "None", "nOnE", "", "HS1", "hs256", "ES256K", "RSA-OAEP", None, 7]
    for algorithm in names:
        with pytest.raises(InvalidSettings, match="unknown algorithm"):
            VerificationKey.load(algorithm, SECRET)
        with pytest.raises(InvalidSettings, match="unknown algorithm"):
            key_set({"keys": []}, [algorithm])


def test_a_public_key_is_never_a_shared_secret() -> None:
    """CVE-2022-29217, CVE-2024-33663, CVE-2026-102273."""
    for algorithm in ("RS256", "ES256", "EdDSA"):
        with pytest.raises(InvalidSettings, match="not a key for HS256"):
            VerificationKey.load("HS256", public_pem(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "key", "message"),
    [
        ("HS256", b"x" * 31, "at least 32 bytes"),
        ("HS512", b"x" * 63, "at least 64 bytes"),
        ("HS256", b"", "not a key|at least 32 bytes"),
        ("HS256", 7, "text or bytes, got int"),
        ("RS256", b"text", "not a key"),
        ("ES256", public_pem("RS256"), "not a key"),
        ("RS256", public_pem("ES256"), "not a key"),
        ("ES384", public_pem("ES256"), "not a key|curve"),
        ("EdDSA", public_pem("ES256"), "not a key"),
    ],
)
def test_a_key_that_is_not_for_the_algorithm_is_refused(algorithm: str, key: Any, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        VerificationKey.load(algorithm, key)


def test_a_private_key_does_not_belong_here() -> None:
    pem = private_key("RS256").private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(InvalidSettings, match="private key"):
        VerificationKey.load("RS256", pem)


def test_a_key_of_another_kind_is_refused_even_where_pyjwt_does_not_look() -> None:
    rs256 = jwt.get_algorithm_by_name("RS256")
    for material in (private_key("RS256"), private_key("ES256").public_key(), SECRET):
        with pytest.raises(InvalidSettings, match="not a key for RS256"):
            _prepared("RS256", "", rs256, lambda material=material: material)  # type: ignore[misc]
    with pytest.raises(InvalidSettings, match="ES384 needs a key on the curve P-384, got secp256r1"):
        _prepared("ES384", "", jwt.get_algorithm_by_name("ES384"), private_key("ES256").public_key)


def test_a_short_rsa_key_is_refused() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505  that is the point
    pem = short.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(InvalidSettings, match="at least 2048 bits, got 1024"):
        VerificationKey.load("RS256", pem)


def test_errors_and_representations_show_no_key() -> None:
    assert "secret" not in repr(VerificationKey.load("HS256", SECRET))
    with pytest.raises(InvalidSettings) as error:
        key_set({"keys": [{"kty": "oct", "k": "c2VjcmV0LXRoYXQtaXM"}]}, ["HS256"])
    assert "c2VjcmV0" not in str(error.value)
    assert error.value.__cause__ is None


def test_without_the_extra_or_a_part_of_it_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> None:
        raise NotImplementedError(name)

    monkeypatch.setattr(jwt, "get_algorithm_by_name", not_there)
    with pytest.raises(InvalidSettings, match=r"RS256: cryptography is not installed: pip install cryptography, "):
        VerificationKey.load("RS256", public_pem("EdDSA"))
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(InvalidSettings, match=r"pyjwt is not installed: pip install 'pyjwt\[crypto\]', "):
        VerificationKey.load("HS256", SECRET)
