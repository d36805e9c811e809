"""Addresses of clients: only trusted proxies can set them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.networks import IpAddress, key_of
from headgate.web.address import MAX_HOPS, AddressFinding, AddressReader, parse
from headgate.web.errors import InvalidSettings

CLIENT = "203.0.113.9"
PROXY = "10.0.0.1"
TRUSTED = ["10.0.0.0/8", "2001:db8:53::/48"]
XFF = AddressReader("x-forwarded-for", TRUSTED)
READERS = [
    XFF,
    AddressReader("X-Forwarded-For", hops=1),
    AddressReader("forwarded", TRUSTED),
    AddressReader("Forwarded", hops=1),
]


def xff(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", value.encode("latin-1")) for value in values]


def appended(reader: AddressReader, address: str) -> bytes:
    """Return what a proxy appends for a client."""
    return address.encode() if reader.header == b"x-forwarded-for" else f'for="{address}"'.encode()


TABLE: list[tuple[str | None, list[str], str, AddressFinding]] = [
    # peer, lines, key, finding
    (PROXY, [CLIENT], CLIENT, AddressFinding.HEADER),
    (PROXY, [f"6.6.6.6, {CLIENT}"], CLIENT, AddressFinding.HEADER),
    (PROXY, ["6.6.6.6", CLIENT], CLIENT, AddressFinding.HEADER),
    (PROXY, [f"{CLIENT}, 10.2.3.4, 2001:db8:53::7"], CLIENT, AddressFinding.HEADER),
    (PROXY, [f"{CLIENT}, ::ffff:10.2.3.4"], CLIENT, AddressFinding.HEADER),
    (f"::ffff:{PROXY}", [CLIENT], CLIENT, AddressFinding.HEADER),
    (PROXY, [f"::ffff:{CLIENT}"], CLIENT, AddressFinding.HEADER),
    (PROXY, [f"{CLIENT}:4711"], CLIENT, AddressFinding.HEADER),
    (PROXY, ["[2001:db8:9:9::1]:80"], "2001:db8:9:9::/64", AddressFinding.HEADER),
    (PROXY, ["10.9.9.9, 10.8.8.8"], "10.9.9.9", AddressFinding.HEADER),
    ("198.51.100.1", [CLIENT], "198.51.100.1", AddressFinding.UNTRUSTED_PEER),
    ("198.51.100.1", [], "198.51.100.1", AddressFinding.UNTRUSTED_PEER),
    (None, [CLIENT], "unknown", AddressFinding.UNTRUSTED_PEER),
    ("", [CLIENT], "unknown", AddressFinding.UNTRUSTED_PEER),
    ("/run/app.sock", [CLIENT], "unknown", AddressFinding.UNTRUSTED_PEER),
    (PROXY, [], PROXY, AddressFinding.ABSENT),
    (PROXY, ["", " , "], PROXY, AddressFinding.ABSENT),
    (PROXY, ["unknown"], PROXY, AddressFinding.MALFORMED),
    (PROXY, [f"{CLIENT}, unknown"], PROXY, AddressFinding.MALFORMED),
    (PROXY, [f"{CLIENT},"], PROXY, AddressFinding.MALFORMED),
    (PROXY, [f"{CLIENT}, garbage, 10.7.7.7"], "10.7.7.7", AddressFinding.MALFORMED),
    (PROXY, [f"garbage, {CLIENT}"], CLIENT, AddressFinding.HEADER),
    (PROXY, ["\xff\xfe"], PROXY, AddressFinding.MALFORMED),
    (PROXY, [f"{CLIENT}" + ", 10.1.1.1" * MAX_HOPS], "10.1.1.1", AddressFinding.TOO_LONG),
    (PROXY, [f"{CLIENT}" + ", 10.1.1.1" * (MAX_HOPS - 1)], CLIENT, AddressFinding.HEADER),
    (PROXY, [CLIENT + f",{' ' * 400}10.1.1.1" * 12], "10.1.1.1", AddressFinding.TOO_LONG),
    (PROXY, ["x" * 5000], PROXY, AddressFinding.MALFORMED),
]


HOPS = [
    # hops, line, key, finding
    (1, f"6.6.6.6, {CLIENT}", CLIENT, AddressFinding.HEADER),
    (2, f"6.6.6.6, {CLIENT}, 10.0.0.2", CLIENT, AddressFinding.HEADER),
    (2, f"{CLIENT}, unknown", CLIENT, AddressFinding.HEADER),
    (2, CLIENT, "198.51.100.1", AddressFinding.SHORT),
    (2, f"unknown, {CLIENT}", "198.51.100.1", AddressFinding.MALFORMED),
    (1, "", "198.51.100.1", AddressFinding.ABSENT),
]
SINGLE = [
    # lines, key, finding
    ([CLIENT], CLIENT, AddressFinding.HEADER),
    ([f" [::ffff:{CLIENT}]:1 "], CLIENT, AddressFinding.HEADER),
    ([f"6.6.6.6, {CLIENT}"], PROXY, AddressFinding.MALFORMED),
    (["6.6.6.6", CLIENT], PROXY, AddressFinding.REPEATED),
    (["", CLIENT], PROXY, AddressFinding.REPEATED),
    ([""], PROXY, AddressFinding.ABSENT),
    ([], PROXY, AddressFinding.ABSENT),
]
SUSPECT = {"short", "repeated", "malformed", "too_long"}


def test_the_first_untrusted_address_from_the_right_is_the_client() -> None:
    for peer, lines, key, finding in TABLE:
        found = XFF.read(peer, xff(*lines))
        assert (found.key, found.finding, found.is_suspect) == (key, finding, finding in SUSPECT), (peer, lines)


def test_with_hops_the_nth_from_the_right_is_the_client() -> None:
    for hops, line, key, finding in HOPS:
        found = AddressReader("x-forwarded-for", hops=hops).read("198.51.100.1", xff(line))
        assert (found.key, found.finding, found.is_suspect) == (key, finding, finding in SUSPECT), (hops, line)


def test_a_header_with_one_address_has_one() -> None:
    reader = AddressReader("X-Real-IP", TRUSTED)
    for values, key, finding in SINGLE:
        found = reader.read(PROXY, [(b"X-Real-Ip", value.encode()) for value in values])
        assert (found.key, found.finding, found.is_suspect) == (key, finding, finding in SUSPECT), values
    assert reader.read("198.51.100.1", [(b"x-real-ip", b"6.6.6.6")]).key == "198.51.100.1"


def test_forwarded_is_read_as_rfc_7239_has_it() -> None:
    reader = AddressReader("forwarded", TRUSTED)
    lines = [
        (b"forwarded", b'for="6.6.6.6, for=7.7.7.7'),
        (b"forwarded", b'for="[2001:db8:1:2::3]:4711";proto=https;host="a,b", For=10.1.1.1'),
    ]
    assert reader.read(PROXY, lines).key == "2001:db8:1:2::/64"
    assert reader.read(PROXY, [(b"forwarded", b"for=_hidden, for=10.1.1.1")]).key == "10.1.1.1"


def test_only_the_configured_source_counts_and_none_by_default() -> None:
    found = AddressReader().read("198.51.100.1", xff("6.6.6.6"))
    assert (found.key, found.finding, found.is_suspect) == ("198.51.100.1", AddressFinding.PEER, False)
    assert found.client == found.peer
    others = [(name, b"6.6.6.6") for name in (b"x-real-ip", b"cf-connecting-ip", b"true-client-ip", b"x_forwarded_for")]
    assert XFF.read(PROXY, [*others, (b"forwarded", b"for=6.6.6.6"), *xff(CLIENT)]).key == CLIENT


def test_a_unix_socket_can_be_trusted() -> None:
    reader = AddressReader("x-forwarded-for", ["unix"])
    assert reader.read(None, xff(CLIENT)).key == CLIENT
    found = reader.read(None, xff("junk"))
    assert found.key == found.text == found.network(48) == "unknown"
    assert reader.read(PROXY, xff(CLIENT)).key == PROXY


def test_addresses_of_ipv6_have_networks() -> None:
    mapped = AddressReader("x-forwarded-for", ["::ffff:10.0.0.0/104"])
    assert mapped.read(PROXY, xff(CLIENT)).key == CLIENT
    address = "2001:db8:1:2:3:4:5:6"
    found = XFF.read(PROXY, xff(address))
    assert (found.text, found.key, found.network(48)) == (address, "2001:db8:1:2::/64", "2001:db8:1::/48")


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"source": "x-forwarded-for"}, "any client can send"),
    ({"source": "x-real-ip"}, "any client can send"),
    ({"trusted": TRUSTED}, "reads no header"),
    ({"hops": 1}, "reads no header"),
    ({"source": "forwarded", "trusted": TRUSTED, "hops": 1}, "not both"),
    ({"source": "x-real-ip", "hops": 2}, "hops must be 1"),
    ({"source": "x-forwarded-for", "trusted": ["0.0.0.0/0"]}, "trusts every client"),
    ({"source": "x-forwarded-for", "trusted": ["::/0"]}, "trusts every client"),
    ({"source": "x-forwarded-for", "trusted": ["::ffff:0:0/96"]}, "trusts every client"),
    ({"source": "x-forwarded-for", "trusted": ["10.0.0.1/8"]}, "not a network"),
    ({"source": "x-forwarded-for", "trusted": ["proxy.example"]}, "not a network"),
    ({"source": "x-forwarded-for", "trusted": [7]}, "text such as"),
    ({"source": "x-forwarded-for", "trusted": "10.0.0.0/8"}, "list of networks"),
    ({"source": "x-forwarded-for", "hops": 21}, "hops must be"),
    ({"source": "x-forwarded-for", "hops": -1}, "hops must be"),
    ({"source": "X_Forwarded_For", "hops": 1}, "header name"),
    ({"ipv6_prefix": 129}, "ipv6_prefix must be"),
]


def test_settings_that_cannot_work_are_refused() -> None:
    for settings, message in MISTAKES:
        with pytest.raises(InvalidSettings, match=message):
            AddressReader(**settings)


lines_of_anything = st.lists(
    st.tuples(
        st.sampled_from([b"x-forwarded-for", b"forwarded", b"X-Forwarded-For", b"connection", b"x-real-ip"]),
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([b"6.6.6.6", b"10.0.0.9", b'for="', b"10.0.0.9,,", b"6.6.6.6, 10.1.1.1"]),
        ),
    ),
    max_size=6,
)


@given(st.sampled_from(READERS), lines_of_anything)
def test_nothing_a_client_sends_changes_its_key(reader: AddressReader, sent: list[tuple[bytes, bytes]]) -> None:
    """The proxy appends what it saw, as a line of its own or to the last line there is."""
    seen = appended(reader, CLIENT)
    assert reader.read(PROXY, [*sent, (reader.header, seen)]).key == CLIENT
    own = [value for name, value in sent if name.lower() == reader.header]
    rest = [(name, value) for name, value in sent if name.lower() != reader.header]
    assert reader.read(PROXY, [*rest, (reader.header, b", ".join([*own, seen]))]).key == CLIENT


@given(st.sampled_from([*READERS[::2], AddressReader()]), lines_of_anything)
def test_an_untrusted_peer_is_its_own_key(reader: AddressReader, sent: list[tuple[bytes, bytes]]) -> None:
    assert reader.read("198.51.100.1", sent).key == "198.51.100.1"


@given(st.sampled_from(READERS), st.one_of(st.none(), st.text(max_size=20)), lines_of_anything)
def test_any_request_has_a_key(reader: AddressReader, peer: str | None, sent: list[tuple[bytes, bytes]]) -> None:
    assert reader.read(peer, sent).key


def test_connection_cannot_remove_the_header() -> None:
    """CVE-2024-45410, CVE-2026-29054: hop-by-hop headers that the client chose."""
    for named in (b"close, X-Forwarded-For", b"x-forwarded-for", b"X-FORWARDED-FOR, x-real-ip", b"\x00"):
        for lines in ([(b"connection", named), *xff(CLIENT)], [*xff(CLIENT), (b"Connection", named)]):
            assert XFF.read(PROXY, lines).key == CLIENT, named


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


def test_every_spelling_leads_to_one_form_and_anything_else_is_no_address() -> None:
    for text, canonical in SPELLINGS:
        address = parse(text)
        assert address, text
        assert address.text == canonical
    for text in NOT_ADDRESSES:
        assert parse(text) is None, ascii(text[:24])


@given(st.ip_addresses(v=4))
def test_ipv4_inside_ipv6_has_the_key_of_ipv4(address: IPv4Address) -> None:
    """Masked before it is canonical, all of IPv4 would be one client (CVE-2026-30827)."""
    for text in (f"::ffff:{address}", f"64:ff9b::{address}", f"[::ffff:{address}]:1", f"{address}:65535"):
        found = parse(text)
        assert found == IpAddress(str(address), 4, int(address), 32)
        assert key_of(found) == str(address)


@given(st.ip_addresses(v=6), st.ip_addresses(v=6), st.integers(32, 128))
def test_two_addresses_share_a_key_exactly_if_they_share_a_network(
    one: IPv6Address, other: IPv6Address, prefix: int
) -> None:
    host_bits = 128 - prefix
    first, second = IpAddress(str(one), 6, int(one), 128), IpAddress(str(other), 6, int(other), 128)
    same = int(one) >> host_bits == int(other) >> host_bits
    assert (key_of(first, prefix) == key_of(second, prefix)) == same


@given(st.text(st.characters(codec="latin-1"), max_size=60))
@example("[::1]:")
@example("::1%")
def test_any_text_is_an_address_or_not(text: str) -> None:
    address = parse(text)
    assert address is None or parse(address.text) == address
