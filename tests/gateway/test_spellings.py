"""What is routed, what is counted and what a service sees are the same, however a client spells it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest

from headgate.gateway.filters import FORBIDDEN, OF_PROXIES
from headgate.web.apikey import digest
from tests.gateway.gateways import SECONDS, Gateway, gateway, minimal
from tests.server.hostile import Upstream, post, sent, upstream
from tests.servers import until

KEY, SECRET = "ak_reporting-0123456789", "a secret that the issuer shares with us"
PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


@pytest.fixture(scope="module")
def behind() -> Iterator[Upstream]:
    with upstream() as server:
        yield server


@pytest.fixture(scope="module")
def running(behind: Upstream) -> Iterator[Gateway]:
    """Routes that require a user, within one that requires nobody, to a service that reads paths in its own way."""
    private: dict[str, Any] = {"service": "orders", "require": "user"}
    paths = ("/orders/private", "/%C3%A9t%C3%A9", "/@admin", "/a%20b%5B1%5D", "/x.y")
    file = minimal(
        behind.port,
        routes=[
            {"path": "/", "service": "orders"},
            *[{"path": path, **private} for path in paths],
            {"path": "/", "hosts": ["admin.example.com.", "*.private.example.com", "2001:db8:0::5"], **private},
            {"path": "/(new)", "service": "orders", "rewrite": "/v2"},
            {"path": "/", "hosts": ["moved.example.com"], "service": "orders", "rewrite": "/v3"},
        ],
        identity={"api_keys": {"keys": [{"sha256": digest(KEY), "user": "ada"}]}},
        rules={
            "ignore_case": True,
            "rules": [{"id": "all", "dimension": "ip", "limit": 100_000, "window": "1h"}],
        },
    )
    with gateway(file) as found:
        yield found.started()


def status(running: Gateway, target: bytes, host: bytes = b"api", lines: Sequence[bytes] = ()) -> int:
    return int(sent(running.port, post(target, lines, method=b"GET").replace(b"Host: api", b"Host: " + host))[9:12])


REFUSED = rb"""
/orders/private;x /orders/private; /orders;x/private /orders/;/private /orders/private%3bx /orders%2Fprivate
/orders%5cprivate /orders/%2570rivate /orders/private%00 /orders/private%0a /orders/private%7f /orders/%c0%afprivate
/orders/%e0%80%afprivate /orders/%ff /orders/%ed%a0%80 /orders/%f4%90%80%80 /orders/private% /orders/%u0070rivate
/orders#/private * orders/private
""".split()
PRIVATE = rb"""
/orders/private /orders/private/ /ORDERS/Private /orders//private //orders/private /orders/x/../private
/orders/..;/orders/private /orders/%2e/private /%6frders/priv%61te /orders\private http://api/orders/private
/orders/private?a;b=%2f%3b /%c3%a9t%C3%A9/7 /@admin /%40admin /a%20b[1]/ /a%20b%5b1%5d /X.y
""".split()


@pytest.mark.parametrize("target", [*REFUSED, "/été".encode(), b"/orders/ private"])
def test_what_servers_read_differently_is_refused(running: Gateway, behind: Upstream, target: bytes) -> None:
    before = len(behind.served)
    assert status(running, target) == 400
    assert len(behind.served) == before


@pytest.mark.parametrize("target", PRIVATE)
def test_every_other_spelling_of_a_path_has_its_route(running: Gateway, target: bytes) -> None:
    assert status(running, target) == 401
    assert status(running, target, lines=[f"X-Api-Key: {KEY}".encode()]) == 200


@pytest.mark.parametrize(
    "target", [b"/orders/privatex", b"/orders/private%3Fx", b"/orders/private%23", b"/xzy", b"/a%20b"]
)
def test_other_paths_do_not(running: Gateway, target: bytes) -> None:
    assert status(running, target) == 200


@pytest.mark.parametrize(
    ("host", "told"),
    [
        *((host, 401) for host in (b"admin.example.com", b"admin.example.com.", b"ADMIN.example.com.:80")),
        *((host, 401) for host in (b"a.private.example.com.", b"[2001:db8::5]", b"[2001:db8::5]:8000")),
        *((host, 400) for host in (b"admin.example.com..", b".admin.example.com", b"a@admin.example.com", b"")),
        *((host, 400) for host in (b"admin.example.com:", b"admin.example.com:80:80", b"admin%2eexample.com")),
        *(
            (host, 400)
            for host in (b"[2001:DB8:0:0::5]", b"[::ffff:1]", b"a, admin.example.com", b"admin.example.com/")
        ),
        (b"api\r\nHost: admin.example.com", 400),
        (b"private.example.com", 200),
    ],
)
def test_a_host_has_its_routes_in_every_spelling(running: Gateway, host: bytes, told: int) -> None:
    assert status(running, b"/any", host) == told


def test_the_host_of_an_absolute_target_counts(running: Gateway, behind: Upstream) -> None:
    assert status(running, b"http://ADMIN.example.com./any") == 401
    assert status(running, b"http://api./absolute", b"admin.example.com") == 200
    (header,) = [head for line, head in zip(behind.served, behind.headers, strict=True) if b"/absolute" in line]
    assert [value for name, value in header if name == b"host"] == [b"api"]


def test_a_path_is_rewritten_in_every_spelling(running: Gateway, behind: Upstream) -> None:
    assert [status(running, target) for target in (b"/%28NEW%29/1", b"/(new)")] == [200, 200]
    assert [b"/v2/1" in behind.served[-2], b"GET /v2 " in behind.served[-1]] == [True, True]
    assert status(running, b"/2", b"moved.example.com") == 200
    assert b"GET /v3/2 " in behind.served[-1]


def test_more_headers_than_can_be_sent_on_are_refused_and_not_counted() -> None:
    rules = {"rules": [{"id": "one", "dimension": "ip", "limit": 2, "window": "1h"}]}
    with upstream() as behind, gateway(minimal(behind.port, rules=rules)) as running:
        running.started()
        for number in (89, 96, 120):
            assert status(running, b"/", lines=[b"X-%d: a" % each for each in range(number)]) == 431
        for size in (16_384, 30_000, 50_000):
            assert status(running, b"/", lines=[b"X-Long: " + b"a" * size]) == 431
        assert status(running, b"/", lines=[b"X-%d: a" % each for each in range(85)]) == 200
        assert status(running, b"/", lines=[b"X-Long: " + b"a" * 16_000]) == 200
        assert status(running, b"/") == 429


def listed(after: str) -> list[str]:
    """The names that the page has in the paragraph after a sentence."""
    return re.findall(r"`([^`]+)`", PAGE.read_text().partition(after)[2].split("\n\n")[1])


def test_the_page_lists_the_headers_that_are_removed(running: Gateway, behind: Upstream) -> None:
    always, of_proxies = (
        listed("headers with an underscore in their name:"),
        listed("headers that they do not write:"),
    )
    assert (tuple(always), tuple(of_proxies)) == (FORBIDDEN, OF_PROXIES)
    names = [name.replace("*", made) for name in (*always, *of_proxies) for made in ("User-Of-Mine", "1")]
    names += [name.replace("-", sign) for name in names for sign in "_.|" if "-" in name]
    for some in (names[at : at + 80] for at in range(0, len(names), 80)):
        assert status(running, b"/open", lines=[f"{name}: forged".encode() for name in (*some, "X-Kept")]) == 200
        assert [name for name, value in behind.headers[-1] if value == b"forged"] == [b"x-kept"]


def test_credentials_are_removed_while_nobody_decides() -> None:
    keys = {"header": "X-Key", "query": "api_key", "keys": [{"sha256": digest(KEY), "user": "ada"}]}
    tokens = [{"audience": "any", "secret_file": "secret"}]
    with upstream() as behind:
        file = minimal(
            behind.port,
            routes=[
                {"path": "/kept", "service": "orders"},
                {"path": "/removed", "service": "orders", "credentials": "remove"},
            ],
            identity={"api_keys": keys, "tokens": tokens},
            on_headgate_failure="allow",
            decisions={"timeout": "1s"},
        )
        with gateway(file, files={"secret": SECRET}) as running:
            (worker,) = running.started().children("headgate.server.worker")
            until(lambda: status(running, b"/removed?api_key=ak_guessed") == 401, "it decides", SECONDS)
            os.kill(worker, signal.SIGSTOP)
            try:
                until(lambda: status(running, b"/removed") == 200, "nobody does", SECONDS)
                token = jwt.encode({"sub": "ada", "exp": int(time.time()) + 600}, SECRET, "HS256")
                credentials = [f"X-Key: {KEY}".encode(), f"Authorization: Bearer {token}".encode()]
                for query in (b"", b"?a=%26b&api_keys=7&b=?api_key=7", b"?" + b"a" * 9000):
                    assert status(running, b"/removed" + query, lines=credentials) == 200
                    assert behind.served[-1] == b"GET /removed%b HTTP/1.1" % query
                    assert not {b"x-key", b"authorization"} & {name for name, _ in behind.headers[-1]}
                for query in (b"?api_key=7", b"?a=1&ap%69%5fkey=7&b", b"?api_key", b"?api_key&" + b"a" * 9000):
                    assert status(running, b"/removed" + query) == 503
                assert status(running, b"/kept?api_key=7", lines=credentials) == 200
                assert behind.served[-1] == b"GET /kept?api_key=7 HTTP/1.1"
                assert {b"x-key", b"authorization"} < {name for name, _ in behind.headers[-1]}
            finally:
                os.kill(worker, signal.SIGCONT)
