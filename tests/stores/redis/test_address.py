"""Addresses of Redis servers are read strictly, and never show a secret."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidStore, open_store
from headgate.stores.redis.address import Address, Cluster, Location, Role, Service, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://", Address()),
        ("redis://cache", Address("cache")),
        ("redis://cache:1234/5", Address("cache", 1234, database=5)),
        ("redis://[::1]:1234", Address("::1", 1234)),
        ("redis://:secret@cache", Address("cache", password="secret")),  # noqa: S106
        ("redis://me:s%40%2F%25@cache", Address("cache", user="me", password="s@/%")),  # noqa: S106
        ("redis+unix:///run/a%20b.sock?database=3", Address(path="/run/a b.sock", database=3)),
        (
            "redis://h?timeout=0.5&connect_timeout=2&connections=4",
            Address("h", timeout=0.5, connect_timeout=2, connections=4),
        ),
        ("redis://h?evicting=allow", Address("h", may_evict=True)),
        ("redis://h?replicas=2", Address("h", replicas=2)),
        (
            "redis+cluster://me:pw@a:1,b,[::1]:3?timeout=1",
            Cluster(
                tuple(
                    Address(host, port, user="me", password="pw", timeout=1, role=Role.NODE)  # noqa: S106
                    for host, port in (("a", 1), ("b", 6379), ("::1", 3))
                )
            ),
        ),
        (
            "redis+sentinel://:pw@a,b:1/main/3?sentinel_user=s&sentinel_password=p%40",
            Service(
                "main",
                tuple(
                    Address(host, port, user="s", password="p@", role=Role.SENTINEL)  # noqa: S106
                    for host, port in (("a", 26379), ("b", 1))
                ),
                Address("a", 26379, database=3, password="pw", role=Role.PRIMARY, label="the service 'main'"),  # noqa: S106
            ),
        ),
    ],
)
def test_addresses(text: str, expected: Location) -> None:
    assert parse(text) == expected


BAD = """
redis http://cache redis//cache redis://cache:port redis://cache:0 redis://cache:65536 redis://[::1
redis://cache/one redis://cache/-1 redis://cache#1 redis://a,b redis+teleport://a
redis://cache?timeout=0 redis://cache?timeout=nan redis://cache?timeout=soon redis://cache?timeout=1&timeout=2
redis://cache?connections=0 redis://cache?evicting=perhaps redis://cache?colour=red redis://cache?sentinel_password=x
redis://cache?replicas=-1 redis://cache?replicas=many redis://cache?ca=/etc/ssl/ca.pem rediss://cache?ca=/no/such/file
redis+unix://host/path redis+unix:// rediss+unix:///path
redis+cluster://a:0 redis+cluster://a,b/1 redis+cluster://a:1,b:port
redis+sentinel://a redis+sentinel://a//0 redis+sentinel://a/main/one
"""


@pytest.mark.parametrize("text", [*BAD.split(), "redis://cache/" + "9" * 5000])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidStore):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://h?timout=1", "unknown option 'timout' in a store address: did you mean 'timeout'?"),
        (
            "redis://h?colour=red",
            "the options are timeout, connect_timeout, connections, replicas, evicting, ca, cert, key",
        ),
        ("redis//localhost", "a store address must contain ://: use"),
        ("mongodb://x", r"redis\+sentinel://, redis\+cluster://"),
    ],
)
def test_errors_show_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(InvalidStore, match=message):
        open_store(text)


@pytest.mark.parametrize("scheme", ["rediss", "rediss+sentinel", "rediss+cluster"])
def test_every_topology_has_tls(scheme: str) -> None:
    match parse(f"{scheme}://cache/{'main' if 'sentinel' in scheme else ''}"):
        case Service(_, (sentinel,), primary):
            servers = [sentinel, primary]
        case Cluster(seeds):
            servers = [*seeds]
        case Address() as address:
            servers = [address]
    assert all(server.tls for server in servers)
    assert str(servers[0]).startswith("rediss://cache")


@pytest.mark.parametrize("trap", ["/", "?", "#", "@", ":", "%", "[", "]", "?x=", "/0?timeout=", "@host/", "\\"])
def test_no_error_shows_a_piece_of_a_password_that_is_not_escaped(trap: str) -> None:
    with pytest.raises(InvalidStore) as caught:
        parse(f"redis://user:qqq{trap}zzz@cache:bad/one?colour=red")
    assert "qqq" not in str(caught.value)
    assert "zzz" not in str(caught.value)


REFUSED = """
valkey://user:hunter2@host redis+teleport://user:hunter2@host redis+sentinal://host/main?sentinel_password=hunter2
redis://a,b?sentinel_password=hunter2 rediss+unix:///x?sentinel_password=hunter2 Redis://u:hunter2@h:0
"""


@pytest.mark.parametrize("address", REFUSED.split())
def test_no_address_that_is_refused_shows_its_password(address: str) -> None:
    with pytest.raises(InvalidStore) as caught:
        open_store(address)
    assert "hunter2" not in str(caught.value)


def test_ipv6_addresses_in_lists_and_a_plus_in_a_password() -> None:
    cluster = parse("redis+cluster://[::1],[::2]:7000,h:7001")
    assert isinstance(cluster, Cluster)
    assert [(seed.host, seed.port) for seed in cluster.seeds] == [("::1", 6379), ("::2", 7000), ("h", 7001)]
    service = parse("redis+sentinel://h/main?sentinel_password=a+b")
    assert isinstance(service, Service)
    assert service.sentinels[0].password == "a+b"  # noqa: S105
    assert str(service.primary) == "the service 'main'"
    assert str(service.primary.at("h", 1)) == "redis://h:1"


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(_TEXT, _TEXT)
def test_any_user_and_password_can_be_escaped(user: str, password: str) -> None:
    address = parse(f"redis://{quote(user, safe='')}:{quote(password, safe='')}@cache")
    assert isinstance(address, Address)
    assert (address.user, address.password) == (user, password)


def test_an_address_is_shown_without_its_secret() -> None:
    address = parse("redis://user:hunter2@[::1]:7000/3")
    assert str(address) == "redis://[::1]:7000"
    assert "hunter2" not in repr(address)
    assert str(parse("redis+unix:///run/redis.sock")) == "redis+unix:///run/redis.sock"


def test_an_encrypted_key_is_refused_without_asking_on_the_terminal(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text(
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=\n-----END ENCRYPTED PRIVATE KEY-----\n"
        )
    with pytest.raises(InvalidStore, match="certificates"):
        parse(f"rediss://cache?cert={tmp_path}/cert&key={tmp_path}/key")
