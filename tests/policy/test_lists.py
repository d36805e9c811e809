"""Allow and deny lists: exact values, wildcards, networks."""

from __future__ import annotations

import re
import time
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRule
from headgate.networks import canonical, key_of
from headgate.policy.addresses import address_of, counted_by
from headgate.policy.lists import Entries, Pattern
from headgate.policy.model import Entry
from headgate.policy.request import InvalidRequest
from headgate.web.address import parse


def found(entries: list[tuple[str, str]], address: str = "", **facts: str) -> str | None:
    entry = Entries([Entry(*entry) for entry in entries]).find(facts, address)
    return entry.value if entry is not None else None


def test_values_and_wildcards() -> None:
    cases: list[tuple[list[str], str, str | None]] = [
        (["42"], "42", "42"),
        (["42"], "421", None),
        (["*"], "42", "*"),
        (["bot-*"], "bot-", "bot-*"),
        (["bot-*"], "robot-1", None),
        (["*@example.com"], "eve@example.com", "*@example.com"),
        (["*@example.com"], "eve@example.com.org", None),
        (["a*b*c"], "abc", "a*b*c"),
        (["a*b*c"], "acb", None),
        (["a*bc*cd"], "abcd", None),
        (["a**c"], "ac", "a**c"),
        (["ü*日"], "üx日", "ü*日"),
        (["a.*"], "ab", None),
        (["a*"], "a\n", "a*"),
        (["a*a"], "a", None),
        (["*bot*"], "a robot", "*bot*"),
        (["u*", "*1", "u1"], "u1", "u1"),
        (["[a-z]", "?"], "a", None),
        (["U1"], "u1", None),
    ]
    for listed, value, expected in cases:
        assert found([("user", entry) for entry in listed], user=value) == expected


def test_networks() -> None:
    cases: list[tuple[list[str], str, str | None]] = [
        (["10.0.0.0/8"], "10.255.0.1", "10.0.0.0/8"),
        (["10.0.0.0/8"], "11.0.0.1", None),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", "10.0.0.0/8"),
        (["::ffff:10.0.0.0/104"], "10.1.2.3", "::ffff:10.0.0.0/104"),
        (["64:ff9b::/96"], "203.0.113.9", "64:ff9b::/96"),
        (["0.0.0.0/0"], "203.0.113.9", "0.0.0.0/0"),
        (["0.0.0.0/0"], "2001:db8::1", None),
        (["::/0"], "2001:db8::1", "::/0"),
        (["::/0"], "203.0.113.9", None),
        (["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16"], "10.1.2.3", "10.1.0.0/16"),
        (["2001:db8::/32"], "2001:DB8:0::1%eth0", "2001:db8::/32"),
        (["2001:db8::1"], "2001:db8:0:0:0:0:0:1", "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::/64", None),
        (["2001:db8::/32"], "2001:db8::/64", "2001:db8::/32"),
        (["10.1.*"], "10.1.2.3", "10.1.*"),
        (["0.0.0.0/0", "::/0"], "unknown", None),
    ]
    for listed, value, expected in cases:
        assert found([("ip", entry) for entry in listed], ip=address_of(value).text) == expected
        assert found([("ip", entry) for entry in listed], value, ip="192.0.2.1") == expected


addresses = st.ip_addresses().map(str) | st.sampled_from(["10.0.0.1", "10.0.0.2", "::1", "::2"])
networks = st.builds(
    lambda address, length: str(Entry("ip", f"{ip_address(address)}").network.supernet(new_prefix=length)),  # type: ignore[union-attr]
    st.sampled_from(["10.0.0.1", "10.0.0.2", "10.128.0.1"]),
    st.integers(0, 32),
)


@given(st.lists(networks, max_size=6), addresses.filter(lambda text: ":" not in text))
def test_the_smallest_network_with_an_address_is_found(listed: list[str], value: str) -> None:
    having = [Entry("ip", text).network for text in listed]
    having = [network for network in having if network is not None and ip_address(value) in network]
    smallest = max(having, key=lambda network: network.prefixlen) if having else None  # type: ignore[union-attr]
    expected = next((text for text in listed if Entry("ip", text).network == smallest), None) if smallest else None
    assert found([("ip", text) for text in listed], ip=value) == expected


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_wildcard_matches_as_a_regular_expression_would(pattern: str, text: str) -> None:
    pattern += "*"
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert Pattern(pattern).matches(text) == bool(re.fullmatch(expression, text))


def test_an_evil_wildcard_is_harmless() -> None:
    """As a regular expression this would take longer than there is time."""
    evil, text = Pattern("*a" * 200 + "*b"), "a" * 50_000
    start = time.thread_time()
    assert not evil.matches(text)
    assert not evil.matches(text + "c")
    assert time.thread_time() - start < 0.1


def test_endpoints_are_listed_in_canonical_form() -> None:
    assert found([("endpoint", "/health//")], endpoint="/health") == "/health//"
    assert found([("endpoint", "/static/*")], endpoint="/static/a/b") == "/static/*"
    with pytest.raises(InvalidRule, match=r"an entry of a list: the path '/a/\.\.' is not accepted"):
        Entries([Entry("endpoint", "/a/..")])


def test_every_dimension_is_compared() -> None:
    entries = [("user", "u1"), ("ip", "10.0.0.0/8"), ("agent", "*bot*")]
    assert found(entries, user="u2", ip="192.0.2.1", agent="robot") == "*bot*"
    assert found(entries, user="u2") is None


def test_an_invalid_address_is_refused() -> None:
    for text in ("", "10.0.0", "10.0.0.1:80", "[::1]", "010.0.0.1", "1.2.3.4%eth0", "::1%", "x", "1/2/3"):
        with pytest.raises(InvalidRequest, match=r"ip must be an address such as 203\.0\.113\.9"):
            address_of(text)


OCTETS = st.integers(0, 300).map(str) | st.text("0123456789/", max_size=4)


@given(st.ip_addresses().map(str) | st.lists(OCTETS, min_size=3, max_size=5).map(".".join))
def test_addresses_are_parsed_like_in_the_standard_library(text: str) -> None:
    try:
        expected = canonical(ip_network(text, strict=False))
    except ValueError:
        with pytest.raises(InvalidRequest):
            address_of(text)
    else:
        assert address_of(text) == expected


@given(st.ip_addresses().map(str) | st.ip_addresses(v=4).map(lambda four: f"::ffff:{four}"))
def test_policy_and_web_count_addresses_alike(text: str) -> None:
    node = parse(text)
    assert node is not None
    assert counted_by(text) == key_of(node) == counted_by(key_of(node))


def test_an_address_is_counted_by_its_network_if_it_is_ipv6() -> None:
    for text, counted in (
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("64:ff9b::203.0.113.9", "203.0.113.9"),
        ("2001:DB8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("2001:db8:1::/48", "2001:db8:1::/48"),
        ("2001:db8::1/128", "2001:db8::1"),
        ("unknown", "unknown"),
    ):
        assert counted_by(text) == counted
