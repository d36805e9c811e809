"""Addresses: many spellings, one canonical form, and the key that limits are kept for."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.web.node import Node, key_of, parse

SPELLINGS = [
    ("203.0.113.9", "203.0.113.9"),
    ("203.0.113.9:4711", "203.0.113.9"),
    (" \t203.0.113.9 ", "203.0.113.9"),
    ("203.0.113.9:_secret", "203.0.113.9"),
    ("::ffff:203.0.113.9", "203.0.113.9"),
    ("::FFFF:cb00:7109", "203.0.113.9"),
    ("0:0:0:0:0:ffff:203.0.113.9", "203.0.113.9"),
    ("[::ffff:203.0.113.9]:443", "203.0.113.9"),
    ("::ffff:203.0.113.9%eth0", "203.0.113.9"),
    ("64:ff9b::203.0.113.9", "203.0.113.9"),
    ("64:ff9b::cb00:7109", "203.0.113.9"),
    ("2001:DB8:0:0::1", "2001:db8::1"),
    ("[2001:db8::1]", "2001:db8::1"),
    ("[2001:db8::1]:4711", "2001:db8::1"),
    ("fe80::1%eth0", "fe80::1"),
    ("[fe80::1%25eth0]:80", "fe80::1"),
    ("64:ff9b:1::cb00:7109", "64:ff9b:1::cb00:7109"),
    ("::", "::"),
]
NOT_ADDRESSES = [
    *("", " ", "unknown", "_hidden", "localhost", "example.com", "1.2.3", "1.2.3.4.5", "256.1.1.1", "01.2.3.4"),
    *(
        "0x7f.0.0.1",
        "2130706433",
        "1.2.3.4:",
        "1.2.3.4:65536",
        "1.2.3.4:x",
        "1.2.3.4:-1",
        "1.2.3.4:\u0664",
        "1.2.3.4:_",
    ),
    *("[1.2.3.4]", "[1.2.3.4]:80", "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]80", "[2001:db8::1]:", "[]", "[::1]]"),
    *("1.2.3.4%eth0", "1.2.3.4/32", "2001:db8::/64", "1.2.3.4 5.6.7.8", "1.2.3.4\x00", "1.2.3.4\r\n", "\u0661.2.3.4"),
    *("::ffff:1.2.3.256", "::ffff:01.2.3.4", "::1::", "12345::", "[" * 200, "1" * 1_000_000, "%", "%eth0", ":", ":::"),
]


@pytest.mark.parametrize(("text", "canonical"), SPELLINGS)
def test_every_spelling_leads_to_one_form(text: str, canonical: str) -> None:
    node = parse(text)
    assert node
    assert node.text == canonical


@pytest.mark.parametrize("text", NOT_ADDRESSES, ids=lambda text: ascii(text[:24]))
def test_anything_else_is_no_address(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "prefix", "key"),
    [
        ("203.0.113.9", 64, "203.0.113.9"),
        ("::ffff:203.0.113.9", 48, "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3:4:5:6", 56, "2001:db8:1::/56"),
        ("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48"),
        ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6/128"),
    ],
)
def test_the_key_is_the_address_or_its_network(text: str, prefix: int, key: str) -> None:
    node = parse(text)
    assert node
    assert key_of(node, prefix) == key


@given(st.ip_addresses(v=4))
def test_ipv4_inside_ipv6_has_the_key_of_ipv4(address: IPv4Address) -> None:
    """Masked before it is canonical, all of IPv4 would be one client (CVE-2026-30827)."""
    for text in (f"::ffff:{address}", f"64:ff9b::{address}", f"[::ffff:{address}]:1", f"{address}:65535"):
        node = parse(text)
        assert node == Node(str(address), 4, int(address))
        assert key_of(node) == str(address)


@given(st.ip_addresses(v=6), st.ip_addresses(v=6), st.integers(32, 128))
def test_two_addresses_share_a_key_exactly_if_they_share_a_network(
    one: IPv6Address, other: IPv6Address, prefix: int
) -> None:
    host_bits = 128 - prefix
    first, second = Node(str(one), 6, int(one)), Node(str(other), 6, int(other))
    same = int(one) >> host_bits == int(other) >> host_bits
    assert (key_of(first, prefix) == key_of(second, prefix)) == same


@given(st.text(st.characters(codec="latin-1"), max_size=60))
@example("[::1]:")
@example("::1%")
def test_any_text_is_an_address_or_not(text: str) -> None:
    node = parse(text)
    assert node is None or parse(node.text) == node
