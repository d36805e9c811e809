"""Addresses: one form for whatever is the same client, and networks that are found without going through them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.networks import IpAddress, NetworkMap, canonical, key_of

V4, V6 = st.integers(0, 2**32 - 1), st.integers(0, 2**128 - 1)


def address(text: str) -> IpAddress:
    return canonical(ip_network(text))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("203.0.113.9", ("203.0.113.9", 4, 0xCB007109, 32)),
        ("203.0.113.0/24", ("203.0.113.0/24", 4, 0xCB007100, 24)),
        ("::ffff:203.0.113.9", ("203.0.113.9", 4, 0xCB007109, 32)),
        ("64:ff9b::cb00:7109", ("203.0.113.9", 4, 0xCB007109, 32)),
        ("::ffff:203.0.113.0/120", ("203.0.113.0/24", 4, 0xCB007100, 24)),
        ("64:ff9b:1::cb00:7109", ("64:ff9b:1::cb00:7109", 6, int(IPv6Address("64:ff9b:1::cb00:7109")), 128)),
        ("2001:db8::/32", ("2001:db8::/32", 6, 0x20010DB8 << 96, 32)),
        ("::/0", ("::/0", 6, 0, 0)),
    ],
)
def test_what_is_the_same_has_one_form(written: str, expected: tuple[str, int, int, int]) -> None:
    assert address(written) == expected


@pytest.mark.parametrize(
    ("written", "prefix", "key"),
    [
        ("203.0.113.9", 64, "203.0.113.9"),
        ("::ffff:203.0.113.9", 48, "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48"),
        ("2001:db8::1", 128, "2001:db8::1/128"),
    ],
)
def test_a_client_is_its_address_or_its_network(written: str, prefix: int, key: str) -> None:
    assert key_of(address(written), prefix) == key


@given(st.lists(st.tuples(V4, st.integers(0, 32)) | st.tuples(V6, st.integers(0, 128)), max_size=30), V4 | V6)
def test_the_smallest_network_is_found_that_has_an_address(networks: list[tuple[int, int]], number: int) -> None:
    """As by asking each of them in turn."""
    known = []
    for each, length in networks:
        host = IPv4Address(each) if each < 2**32 and length <= 32 else IPv6Address(each)
        known.append(canonical(ip_network((host, length), strict=False)))
    asked = canonical(ip_network(IPv4Address(number) if number < 2**32 else IPv6Address(number)))
    having = [
        each
        for each in known
        if each.version == asked.version and each.number == asked.number >> (size := asked.length - each.length) << size
    ]
    found = NetworkMap((each, each) for each in known).find(asked)
    assert found == max(having, key=lambda each: each.length, default=None)


def test_a_network_is_found_if_all_of_it_is_in_another() -> None:
    networks = NetworkMap([(address("10.0.0.0/8"), "all"), (address("10.1.0.0/16"), "part"), (address("::1"), "here")])
    texts = ("10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "::1", "2001:db8::1")
    assert [networks.find(address(text)) for text in texts] == ["part", "part", "all", None, "here", None]
    assert networks.find(IpAddress("unknown", 0, 0, 0)) is None
