"""Identity files: the identifiers that they describe, and the problems of invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization as form
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headgate.config.problems import Findings, InvalidRules, ProblemKind
from headgate.config.schema import DIALECT
from headgate.config.yaml_text import Document
from headgate.server.identity import FILE, load_identity
from headgate.server.proxied_clients import LOOPBACK
from headgate.web.apikey import digest
from headgate.web.identity import Identifier
from tests.web.tokens import NOW, NOW_S, SECRET, jwk, private_key, public_pem, signed

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "identity" / "identity.yaml"
DIGEST = digest("ak_1")
KEYS = f"version: 1\napi_keys:\n  keys:\n    - {{sha256: {DIGEST}"
ISSUER = "version: 1\ntokens:\n  - "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the keys of issuers are."""
    both = {"keys": [jwk("RS256", kid="rsa"), jwk("ES256", kid="ec"), jwk("EdDSA", kid="x", use="enc")]}
    (tmp_path / "jwks.json").write_text(json.dumps(both))
    (tmp_path / "es256.pem").write_bytes(public_pem("ES256"))
    (tmp_path / "text").write_text("[" * 100_000)
    (tmp_path / "large").write_bytes(b" " * 1_048_577)
    (tmp_path / "odd.json").write_text(json.dumps({"keys": [jwk("ES256") | {"key_ops": 5}]}))
    (tmp_path / "private.json").write_text(json.dumps({"keys": [jwk("ES256") | {"d": "AAAA"}]}))
    return tmp_path


def loaded(folder: Path, text: str, *trusted: str) -> Identifier:
    path = folder / "identity.yaml"
    path.write_text(text)
    return load_identity(path, trusted)


def identified(identifier: Identifier, *lines: tuple[str, str], peer: str = "127.0.0.1") -> tuple[dict[str, str], str]:
    identity = identifier.identify(peer, [(name.encode(), value.encode()) for name, value in lines], NOW)
    return dict(identity.principal), identity.tier


def test_the_example_of_the_documentation_can_be_loaded() -> None:
    identifier = load_identity(EXAMPLE)
    assert identifier.addresses.trusted == ("127.0.0.0/8", "::1", "10.0.0.0/8")
    assert identifier.tokens is not None
    assert [key.algorithm for key in identifier.tokens.issuers[0].keys] == ["ES256"]
    principal, tier = identified(identifier, ("x-api-key", "ak_another-random-key"), ("x-forwarded-for", "192.0.2.9"))
    assert (principal, tier) == ({"apikey": "search", "user": "42", "ip": "192.0.2.9"}, "pro")


def test_an_empty_file_identifies_by_address(folder: Path) -> None:
    identifier = loaded(folder, "version: 1\n")
    assert (identifier.addresses.source, identifier.addresses.trusted) == ("x-forwarded-for", LOOPBACK)
    assert identifier.credentials == set()


def test_proxies_headers_and_networks_are_those_of_the_option_and_the_file(folder: Path) -> None:
    identifier = loaded(folder, "version: 1\naddresses: {header: cf-connecting-ip}\n", "10.0.0.0/8")
    assert identified(identifier, ("cf-connecting-ip", "192.0.2.1"), peer="10.0.0.1")[0] == {"ip": "192.0.2.1"}
    assert identified(identifier, ("cf-connecting-ip", "192.0.2.1"))[0] == {"ip": "127.0.0.1"}
    identifier = loaded(folder, "version: 1\naddresses: {hops: 2, ipv6_prefix: 48}\n")
    lines = ("x-forwarded-for", "192.0.2.1, 2001:db8:1:2::3, 192.0.2.3")
    assert identified(identifier, lines, peer="192.0.2.4")[0] == {"ip": "2001:db8:1::/48"}


@pytest.mark.parametrize("addresses", ["trusted: [10.0.0.0/8]", "hops: 2"])
def test_trusted_proxies_cannot_be_set_by_option_and_file(folder: Path, addresses: str) -> None:
    with pytest.raises(InvalidRules, match=r"yaml:2:13: .*--trusted-proxies .* one of the two places"):
        loaded(folder, f"version: 1\naddresses: {{{addresses}}}\n", "10.0.0.0/8")


def test_keys_may_come_in_any_header_or_the_query_and_digests_be_in_capitals(folder: Path) -> None:
    text = f"version: 1\napi_keys:\n  header: Authorization\n  scheme: Key\n  keys:\n    - sha256: {DIGEST.upper()}\n"
    identifier = loaded(folder, text)
    assert identified(identifier, ("authorization", "Key ak_1"))[0] == {"apikey": DIGEST[:32], "ip": "127.0.0.1"}
    assert identified(identifier, ("authorization", "ak_1"))[0] == {"ip": "127.0.0.1"}
    identifier = loaded(folder, f"version: 1\napi_keys: {{query: key, keys: [{{sha256: {DIGEST}, name: a}}]}}\n")
    assert identifier.identify("127.0.0.1", [], NOW, b"b=c&key=ak_1").principal["apikey"] == "a"


def test_claims_of_envoy_become_principals(folder: Path) -> None:
    text = "version: 1\njwt_metadata:\n  - {key: one, realm: a}\n  - {key: two, realm: b, claims: {tier: plan}}\n"
    identifier = loaded(folder, text)
    address = identifier.addresses.attested("127.0.0.1", None)
    one = identifier.identify_at(address, [], NOW, b"", {"one": {"sub": "42", "plan": "pro"}})
    two = identifier.identify_at(address, [], NOW, b"", {"two": {"sub": "42", "plan": "pro"}})
    assert [(each.principal["user"], each.tier) for each in (one, two)] == [("a:42", ""), ("b:42", "pro")]


def test_tokens_are_verified_by_a_pem_file_or_a_shared_secret_in_a_jwk_set(folder: Path) -> None:
    hmac: Any = jwt.get_algorithm_by_name("HS256")
    secret = {**hmac.to_jwk(SECRET, as_dict=True), "kid": "s1"}
    (folder / "secret.json").write_text(json.dumps({"keys": [secret]}))
    for keys, token in (
        ("algorithms: [ES256], pem: es256.pem", signed(algorithm="ES256")),
        ("algorithms: [HS256], jwks: secret.json", signed(kid="s1")),
    ):
        identifier = loaded(folder, f"{ISSUER}{{{keys}}}\n")
        found = identified(identifier, ("authorization", f"Bearer {token.decode()}"))[0]
        assert found == {"user": "42", "ip": "127.0.0.1"}


def test_several_issuers_have_realms(folder: Path) -> None:
    text = """version: 1
tokens:
  - {issuer: one, realm: a, algorithms: [RS256], jwks: jwks.json, audience: [api, web], leeway_s: 0}
  - {issuer: two, realm: b, algorithms: [ES256], jwks: jwks.json, claims: {user: email, tier: plan}}
"""
    identifier = loaded(folder, text)
    expires = NOW_S + 1
    one = signed({"iss": "one", "sub": 7, "aud": "web", "exp": expires}, "RS256", kid="rsa").decode()
    two = signed({"iss": "two", "email": "u@x", "plan": "pro", "exp": expires}, "ES256", kid="ec").decode()
    assert identified(identifier, ("authorization", f"Bearer {one}")) == ({"user": "a:7", "ip": "127.0.0.1"}, "")
    assert identified(identifier, ("authorization", f"Bearer {two}")) == ({"user": "b:u@x", "ip": "127.0.0.1"}, "pro")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "yaml:1:1: is empty"),
        ("[]", "a list is not an identity file"),
        ("addresses: {}\n", "yaml:1:1: an identity file needs 'version'"),
        ("version: 1\n---\n", "an identity file must contain only one"),
        ("version: 1\napikeys: {}\n", "yaml:2:1: apikeys: .* Did you mean 'api_keys'"),
        ("version: 1\naddresses: {headr: a}\n", "yaml:2:13: addresses.headr: .* 'header'"),
        ("version: 1\naddresses: {header: X_Real_Ip}\n", "yaml:2:21: addresses.header: .* no underscore"),
        ("version: 1\naddresses: {header: peer}\n", "yaml:2:12: addresses: .* name one"),
        ("version: 1\naddresses:\n  trusted: [10.0.0.0/8, 10.0.0.1/8]\n", r"yaml:3:25: addresses.trusted\[1\]: .*host"),
        ("version: 1\naddresses: {trusted: [0.0.0.0/0]}\n", "trusts every client"),
        ("version: 1\naddresses: {trusted: []}\n", "name the trusted proxies"),
        ("version: 1\naddresses: {trusted: 10.0.0.0/8}\n", "is not a list. Accepted: a list such as"),
        ("version: 1\naddresses: {trusted: [10.0.0.0/8], hops: 1}\n", "not both"),
        ("version: 1\naddresses: {hops: 2, header: cf-connecting-ip}\n", "hops must be 1"),
        ("version: 1\naddresses: {hops: 0}\n", "from 1 to 20"),
        ("version: 1\napi_keys: {header: a}\n", "yaml:2:11: api_keys: api_keys needs 'keys'"),
        ("version: 1\napi_keys: {keys: []}\n", "has no key. Accepted: .*sha256.*; or database"),
        (f"{KEYS}, name: a}}\n    - {{sha256: {DIGEST}}}\n", r"yaml:5:16: .* already used by api_keys.keys\[0\]"),
        (f'{KEYS}, tier: "\\u0007"}}\n', r"yaml:4:7: api_keys.keys\[0\]: tier of .* printable"),
        (f"{KEYS}, tier: }}\n", r"yaml:4:.*: api_keys.keys\[0\].tier: has no value"),
        (
            f"version: 1\napi_keys: {{header: 'a b', keys: [{{sha256: {DIGEST}}}]}}",
            "api_keys.header: a header name must have",
        ),
        (f"version: 1\napi_keys: {{scheme: 'a b', keys: [{{sha256: {DIGEST}}}]}}", "word such as Bearer"),
        ("version: 1\ntokens: []\n", "yaml:2:9: tokens: at least one issuer"),
        (f"{ISSUER}issuer: a\n", r"yaml:3:5: tokens\[0\]: an issuer needs 'algorithms'"),
        (f"{ISSUER}algorithms: [none]\n", "yaml:3:18: .*'none' is unknown. Accepted: one of HS256"),
        (f"{ISSUER}algorithms: [RS265]\n", "Did you mean 'RS256'"),
        (f"{ISSUER}algorithms: []\n    pem: es256.pem\n", "names no algorithm"),
        (f"{ISSUER}algorithms: [RS256]\n", r"yaml:3:5: tokens\[0\]: .* Give either jwks or pem"),
        (f"{ISSUER}{{algorithms: [RS256], jwks: a, pem: b}}\n", "Give either jwks or pem"),
        (
            f"{ISSUER}algorithms: [RS256]\n    jwks: none.json\n",
            r"yaml:4:11: tokens\[0\].jwks: .*none.json cannot be read",
        ),
        (f'{ISSUER}algorithms: [RS256]\n    jwks: "a\\0b"\n', "jwks: .*cannot be read"),
        (f"{ISSUER}algorithms: [RS256]\n    jwks: text\n", "text is not JSON"),
        (f"{ISSUER}algorithms: [RS256]\n    jwks: large\n", "more than 1_048_576 bytes"),
        (f"{ISSUER}algorithms: [RS256]\n    pem: es256.pem\n", "es256.pem: this is not a key for RS256"),
        (f"{ISSUER}algorithms: [HS256]\n    pem: es256.pem\n", "as a JWK set"),
        (f"{ISSUER}algorithms: [RS256, ES256]\n    pem: es256.pem\n", "for one algorithm, not for 2"),
        (f"{ISSUER}algorithms: [ES384]\n    jwks: jwks.json\n", "none of the 3 keys .* is for ES384"),
        (f"{ISSUER}algorithms: [ES256]\n    jwks: odd.json\n", "none of the 1 keys"),
        (f"{ISSUER}algorithms: [ES256]\n    jwks: private.json\n", "private key"),
        (f"{ISSUER}algorithms: [RS256, ES256]\n    jwks: jwks.json\n", "keys must be of one type"),
        (f"{ISSUER}{{algorithms: [ES256], jwks: jwks.json, claims: {{ip: a}}}}\n", "'ip' cannot be a key here"),
        (f"{ISSUER}{{algorithms: [ES256], jwks: jwks.json, claims: [a]}}\n", "such as {user: sub"),
        (f"{ISSUER}{{algorithms: [ES256], jwks: jwks.json, realm: 'a b'}}\n", "1 to 64 of"),
        (f"{ISSUER}{{algorithms: [ES256], jwks: jwks.json, leeway_s: 601}}\n", "from 0 to 600"),
        ("version: 1\njwt_metadata: {key: a}\n", "yaml:2:15: jwt_metadata: .* such as .{claims: {user: sub}}"),
        ("version: 1\njwt_metadata: [{}, {key: b}]\n", "jwt_metadata: .* each needs a separate key and realm"),
        (
            "version: 1\njwt_metadata: [{realm: a}, {realm: b}]\n",
            "jwt_metadata: .* each needs a separate key and realm",
        ),
        ("version: 1\njwt_metadata: [{claims: {ip: a}}]\n", "'ip' cannot be a key here"),
        (f"version: 1\napi_keys: {{query: 'a b', keys: [{{sha256: {DIGEST}}}]}}", "a query parameter"),
        (f"{ISSUER}&a {{algorithms: [ES256], jwks: jwks.json}}\n  - *a\n", "with several issuers, each needs"),
    ],
)
def test_problems_are_reported_with_their_place_and_a_correction(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRules, match=message):
        loaded(folder, text)


def test_a_file_that_is_not_there_is_an_error_like_any_other(folder: Path) -> None:
    with pytest.raises(InvalidRules, match="cannot be read: No such file"):
        load_identity(folder / "none.yaml")


def test_all_problems_are_reported_at_once_in_order(folder: Path) -> None:
    text = "version: 1\naddresses: {hops: 99}\napi_keys: {}\ntokens: [{}]\nversion: 1\n"
    with pytest.raises(InvalidRules) as caught:
        loaded(folder, text)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "written",
    [
        "keys: ak_secret",
        "keys: [ak_secret]",
        "keys: {ak_secret: reporting}",
        "keys: [{sha256: ak_secret}]",
        "keys: [{ak_secret: reporting}]",
        "keys: [{key: ak_secret}]",
        f"keys: [{{sha256: {'ak_secret' * 100}}}]",
    ],
)
def test_a_key_that_was_written_in_place_of_its_digest_is_not_repeated(folder: Path, written: str) -> None:
    with pytest.raises(InvalidRules) as caught:
        loaded(folder, f"version: 1\napi_keys: {{{written}}}\n")
    assert "ak_secret" not in str(caught.value) + repr(caught.value.problems)
    assert "sha256" in str(caught.value)


def test_a_key_in_a_line_that_is_not_yaml_is_not_repeated(folder: Path) -> None:
    with pytest.raises(InvalidRules) as caught:
        loaded(folder, "version: 1\napi_keys: 'ak_secret' x\n")
    assert "ak_secret" not in str(caught.value) + repr(caught.value.problems)
    assert [problem.kind for problem in caught.value.problems] == ["syntax"]


def test_a_private_key_is_refused_and_not_repeated(folder: Path) -> None:
    pem = private_key("ES256").private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (folder / "private.pem").write_bytes(pem)
    with pytest.raises(InvalidRules, match="private key: verification needs only the public key") as caught:
        loaded(folder, f"{ISSUER}{{algorithms: [ES256], pem: private.pem}}\n")
    assert pem.decode().splitlines()[1] not in str(caught.value)


_WORDS = st.sampled_from(
    "version addresses api_keys tokens jwt_metadata query key header trusted hops keys sha256 name tier issuer "
    "audience algorithms jwks pem "
    f"claims user realm leeway_s x-a peer ES256 HS256 jwks.json es256.pem . 10.0.0.0/8 unix {DIGEST}".split()
)
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 130) | st.floats() | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)


SCHEMA = Draft202012Validator({"$schema": DIALECT, **FILE.schema()})


def test_the_schema_is_one_and_has_the_example() -> None:
    Draft202012Validator.check_schema(SCHEMA.schema)
    SCHEMA.validate(Document(EXAMPLE.read_text(), "identity.yaml").data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.dictionaries(_WORDS, _DATA, max_size=4), sections=st.lists(_DATA, min_size=4, max_size=4))
def test_any_file_is_loaded_or_refused_and_the_schema_agrees_about_its_form(
    folder: Path, data: dict[str, Any], sections: list[Any]
) -> None:
    names = ("addresses", "api_keys", "tokens", "jwt_metadata")
    every = {"version": 1, **data, **dict(zip(names, sections, strict=True))}
    for written in (every, {name: section for name, section in every.items() if section is not None}):
        findings = Findings()
        FILE.read(written, (), findings)
        is_well_formed = all(problem.kind is ProblemKind.MEANING for problem in findings.problems())
        assert SCHEMA.is_valid(written) is is_well_formed
        try:
            loaded(folder, json.dumps(written))
        except InvalidRules as error:
            assert error.problems  # noqa: PT017  it may be refused
