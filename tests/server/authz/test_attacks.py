"""Clients that try to be identified as others, or as anonymous, through a real Envoy with the example's filters.

Requests beyond a limit, malformed ones, and those with invalid credentials do not reach the upstream. The others have
headers with the caller that only Headgate can set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.web.apikey import digest
from tests.server.hostile import CONTROLS, NOT_UTF_8, hostile, post, sent, sent_over_http2
from tests.server.process.service import Service, service
from tests.server.rls.envoys import Envoy, envoy
from tests.web.tokens import forged, hand_signed, jwk, signed

KEY, OTHER = "ak_a-long-random-key", "ak_another-random-key"
IDENTITY = f"""
version: 1
api_keys:
  query: api_key
  keys:
    - {{sha256: {digest(KEY)}, name: reporting, user: ada}}
    - {{sha256: {digest(OTHER)}, name: search, tier: pro}}
jwt_metadata: [{{claims: {{user: sub}}}}]
"""
USED_UP = "version: 1\nrules: [{id: all-ip, dimension: ip, limit: 1, window: 365d}]"
PLENTY = "version: 1\nrules: [{id: all-ip, dimension: ip, limit: 1000000, window: 365d}]"
RAW, BEARER, KEY_ID = KEY.encode(), b"Authorization: Bearer ", "2026-11"
CLAIMS = {"iss": "https://id.example.com", "aud": "api", "sub": "root", "exp": 4_000_000_000}


def serving(folder: Path, rules: str) -> Iterator[tuple[Service, Envoy]]:
    (folder / "rules.yaml").write_text(rules)
    (folder / "identity.yaml").write_text(IDENTITY)
    (folder / "jwks.json").write_text(json.dumps({"keys": [jwk("ES256", kid="2026-11", alg="ES256")]}))
    options = "--rules", str(folder / "rules.yaml"), "--identity", str(folder / "identity.yaml")
    with (
        service(*options) as headgate,
        envoy(headgate.started().grpc_port, "authz.yaml", filename=f"{folder / 'jwks.json'}}}") as asking,
    ):
        yield headgate, asking


@pytest.fixture(scope="module")
def used_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    for _, asking in serving(tmp_path_factory.mktemp("used-up"), USED_UP):
        assert asking.get().status == 200
        yield asking


@pytest.fixture(scope="module")
def plenty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    for _, asking in serving(tmp_path_factory.mktemp("plenty"), PLENTY):
        yield asking


def attempt(asking: Envoy, data: bytes) -> tuple[bytes, list[bytes]]:
    asking.upstream.served.clear()
    asking.upstream.headers.clear()
    answer = sent(asking.port, data)
    return answer, asking.upstream.served[:]


UNPROVEN = {
    **{f"{control!r} in a key": [b"X-Api-Key: " + RAW[:5] + control + RAW[5:]] for control in CONTROLS},
    **{f"{control!r} after a key": [b"X-Api-Key: " + RAW + control] for control in CONTROLS},
    **{f"{value[:8]!r} in a key": [b"X-Api-Key: " + RAW + value] for value in NOT_UTF_8},
    **{f"{value[:8]!r} in a token": [b"Authorization: Bearer " + value] for value in NOT_UTF_8},
    **{f"{value[:8]!r} as a scheme": [b"Authorization: " + value + b" x"] for value in NOT_UTF_8},
    "no key": [b"X-Api-Key:"],
    "a space for a key": [b"X-Api-Key:  "],
    "another key": [b"X-Api-Key: ak_guessed"],
    "two keys": [b"X-Api-Key: " + RAW, b"x-api-key: " + RAW],
    "two keys, one of them good": [b"X-Api-Key: bad", b"X-Api-Key: " + RAW],
    "two keys in one": [b"X-Api-Key: " + RAW + b", " + OTHER.encode()],
    "a key of 7 KB": [b"X-Api-Key: " + b"k" * 7000],
    "a digest for a key": [b"X-Api-Key: " + digest(KEY).encode()],
    "a good key and a bad token": [b"X-Api-Key: " + RAW, b"Authorization: Bearer bad"],
    "no token": [b"Authorization: Bearer"],
    "no scheme": [b"Authorization: " + RAW],
    "two tokens": [b"Authorization: Bearer a", b"Authorization: Bearer b"],
    "a token of nobody": [BEARER + forged({"alg": "none"}, CLAIMS, b"")],
    "a token signed by itself": [BEARER + hand_signed({"alg": "HS256", "kid": KEY_ID}, CLAIMS)],
    "a token that demands an extension": [BEARER + signed(CLAIMS, "ES256", kid=KEY_ID, crit=["x"], x=1)],
    **{
        f"a token with {claims}": [BEARER + signed({**CLAIMS, **claims}, "ES256", kid=KEY_ID)]
        for claims in ({"iss": "https://evil"}, {"exp": 1}, {"aud": "web"}, {"sub": None}, {"sub": ""})
    },
}
"""Header lines with invalid credentials, by their error."""
TARGETS = [
    *[b"/?api_key" + rest for rest in (b"=bad", b"=", b"")],
    *[b"/?api_key=" + RAW + b"&api_key=" + other for other in (RAW, b"bad")],
    *(b"/?api_key=" + RAW + b"&api%5Fkey=bad", b"/?api_key=bad&%61pi_key=" + RAW),
    *[b"/?api_key=" + RAW + rest for rest in (b"%00", b"%ff", b";api_key=bad", b"%0d%0aX-Headgate-User:%20root")],
    *(b"//search?api_key=" + RAW, b"/a/../search?api_key=" + RAW, b"/a/%2e%2e/search", b"/a%2F..%2Fsearch"),
    *(b"/a/..%2fsearch", b"/a\\..\\search", b"/%00"),
]
"""Targets that are refused for their query, or because servers read them in different ways."""
FORGED = [
    *[name + b": root" for name in (b"X-Headgate-User", b"X_Headgate_User", b"X-Headgate_User", b"X-Headgate-")],
    b"x-headgate-user: root\r\nX-Headgate-User: root",
    b"X-Headgate-User: root\r\nConnection: X-Headgate-User",
    *(b"x_headgate-tier: unlimited", b"X-HEADGATE-APIKEY: search", b"X-Headgate-Tenant: acme"),
    *(b"X-Headgate-Role: admin", b"X-Headgate-Client-Address: 192.0.2.99"),
]


def test_no_hostile_request_passes_beyond_the_limit(used_up: Envoy) -> None:
    """Nor does a good credential help, where the limit is the address's."""
    ours = [(f"lines: {name}", post(lines=lines)) for name, lines in UNPROVEN.items()]
    ours += [(f"target {target!r}", post(target)) for target in TARGETS]
    ours += [(f"forged {line!r}", post(b"/", [line, b"X-Api-Key: " + RAW])) for line in FORGED]
    ours += [("absolute", post(b"http://other/?api_key=" + RAW)), ("good", post(b"/", [b"X-Api-Key: " + RAW]))]
    passed = []
    for name, data in (*ours, *hostile()):
        answer, served = attempt(used_up, data)
        if served or b" 200 OK" in answer:
            passed.append((name, served, answer[:200]))
    assert passed == []
    assert used_up.get().status == 429


def test_an_invalid_credential_never_passes_as_anonymous(plenty: Envoy) -> None:
    """Nor does a query or a path that can be read in two ways."""
    ours = [(name, post(b"/", lines)) for name, lines in UNPROVEN.items()]
    for name, data in (*ours, *((repr(target), post(target)) for target in TARGETS)):
        answer, served = attempt(plenty, data)
        assert (served, answer[9:12] in {b"400", b"401"}) == ([], True), (name, answer)


def test_upstreams_never_get_our_headers_from_a_client(plenty: Envoy) -> None:
    proven = [(b"x-headgate-user", b"ada"), (b"x-headgate-apikey", b"reporting")]
    for line in FORGED:
        for key, expected in (([], []), ([b"X-Api-Key: " + RAW], proven)):
            answer, served = attempt(plenty, post(b"/", [line, *key]))
            (fields,) = plenty.upstream.headers
            received = [(name, value) for name, value in fields if b"headgate" in name.replace(b"_", b"-")]
            assert (answer[9:12], len(served), received) == (b"200", 1, expected), line


def test_valid_requests_pass(plenty: Envoy) -> None:
    """So the refusals above are due to the errors."""
    good = [
        post(b"/"),
        post(b"/", [b"X-Api-Key: " + RAW]),
        post(b"/?api_key=" + RAW),
        post(b"/?a=%26&api%5fkey=" + RAW),
        post(b"/", [b"Authorization: Bearer " + signed(CLAIMS, "ES256", kid="2026-11")]),
        post(b"/", [b"Authorization: Basic dTpw"]),
    ]
    assert [len(attempt(plenty, each)[1]) for each in good] == [1] * len(good)


GOOD = {b":method": b"POST", b":scheme": b"http", b":path": b"/", b":authority": b"api"}
HTTP2: list[list[tuple[bytes, bytes]]] = [
    *[[*{**GOOD, b":path": path}.items()] for path in (b"/\xff", b"/a/%2e%2e/b", b"//b", b"", b"/\x00", b"b", b"/a b")],
    *[[*{**GOOD, b":method": method}.items()] for method in (b"\xff", b"", b"G T")],
    *[[*GOOD.items(), (b"x-api-key", RAW + value)] for value in NOT_UTF_8],
    *[[*GOOD.items(), (b"x-api-key", RAW + control)] for control in (b"\x00", b"\n", b"\r", b"\x01", b"\x7f")],
    [*GOOD.items(), (b":path", b"/other")],
    [*GOOD.items(), (b"x-api-key", RAW), (b"x-api-key", RAW)],
    [*GOOD.items(), (b"authorization", b"Bearer a"), (b"authorization", b"Basic b")],
    [*{**GOOD, b":path": b"/?api_key=\xff"}.items()],
]
"""Fields of requests that no parser of text has looked at."""


def test_over_http2_no_malformed_request_passes(plenty: Envoy) -> None:
    """All at once: Envoy needs a second to close a connection."""
    plenty.upstream.served.clear()
    with ThreadPoolExecutor(len(HTTP2)) as pool:
        statuses = [*pool.map(sent_over_http2, [plenty.port] * len(HTTP2), HTTP2)]
    assert plenty.upstream.served == []
    assert {*statuses} <= {b"", b"400", b"401"}
    assert sent_over_http2(plenty.port, [*GOOD.items(), (b"x-api-key", RAW)]) == b"200"
    assert plenty.upstream.served == [b"POST / HTTP/1.1"]
