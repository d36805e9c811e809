"""Header lines: found by exact name, and by no name that resembles it; those of proxies are read from the right."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.web.errors import InvalidSettings
from headgate.web.lines import LONGEST, collect, forwarded_elements, header_name, plain_elements, right_end

LOOKALIKES = [
    *(b"X_Forwarded_For", b"X-Forwarded_For", b"x_forwarded-for", b"HTTP_X_FORWARDED_FOR", b"X-Forwarded-F\xc3\xb6r"),
    *(b"X-Forwarded-For ", b" X-Forwarded-For", b"X-Forwarded-For\t", b"X-Forwarded-For\x00", b"X-Forwarded-For:"),
    *(b"X\xe2\x80\x90Forwarded\xe2\x80\x90For", b"X-Forwarded\r\n-For", b""),
]


def test_all_lines_of_a_header_are_kept_in_order_whatever_their_case() -> None:
    lines = [(b"X-A", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"X-a", b"")]
    assert collect(lines, {b"x-a"}) == {b"x-a": [b"1", b"3", b""]}
    assert collect([(name, b"6.6.6.6") for name in LOOKALIKES], {b"x-forwarded-for"}) == {}


def test_settings_cannot_ask_for_a_name_that_is_none() -> None:
    assert header_name("X-Api-Key") == b"x-api-key"
    for name in ("X_Api_Key", "", "X Api", "X-Api:", "é", "x" * 65, None, 7, "X-\n"):
        with pytest.raises(InvalidSettings, match="header name"):
            header_name(name)


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8))), st.sets(st.binary(max_size=3)))
def test_any_lines_can_be_collected(lines: list[tuple[bytes, bytes]], wanted: set[bytes]) -> None:
    found = collect(lines, wanted)
    assert found == {
        name: values for name in wanted if (values := [value for line, value in lines if line.lower() == name])
    }


ELEMENTS = [
    ("for=192.0.2.60", "192.0.2.60"),
    ("For=192.0.2.60;Proto=https;BY=203.0.113.43", "192.0.2.60"),
    ("by=203.0.113.43;for=192.0.2.60", "192.0.2.60"),
    (' for="[2001:db8::1]:4711" ', "[2001:db8::1]:4711"),
    ('for="192.0.2.60:8080"', "192.0.2.60:8080"),
    ('for="\\1.2.3.4"', "1.2.3.4"),
    ('for=1.2.3.4;host="a,b;c=\\"d\\""', "1.2.3.4"),
    ("for=unknown", "unknown"),
    ("for=_hidden", "_hidden"),
    ("proto=https", ""),
    ("for=", ""),
    ('for=""', ""),
    ("for=1.2.3.4;", ""),
    (";for=1.2.3.4", ""),
    ("for=1.2.3.4;for=5.6.7.8", ""),
    ("for = 1.2.3.4", ""),
    ("for=1.2.3.4 proto=https", ""),
    ("for=[2001:db8::1]", ""),
    ('for="1.2.3.4', ""),
    ('for=1.2.3.4"', ""),
    ('"', ""),
    ("1.2.3.4", ""),
    ("", ""),
]
tokens = st.from_regex(r"[A-Za-z0-9._-]{1,8}", fullmatch=True)
quoted = st.text('ab,;=\\" ', max_size=8).map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
written = st.builds("for={};host={}".format, tokens, quoted)


def test_an_element_has_the_address_that_the_proxy_saw() -> None:
    for element, value in ELEMENTS:
        assert next(forwarded_elements(element)) == value, element


def test_lists_are_read_from_right_to_left() -> None:
    assert list(plain_elements("a, b,,c ")) == ["c ", "", " b", "a"]
    assert list(forwarded_elements('for=a, for="b,c", proto=http , for=d')) == ["d", "", "b,c", "a"]


def test_an_open_quote_swallows_nothing() -> None:
    """Read from the left, what a proxy appends would be part of the client's string."""
    appended = 'for=192.0.2.60;host="x,for=6.6.6.6;y=\\"z"'
    for prefix in ('for="', 'for="a\\', "for=6.6.6.6", '"""', "\\", ',",', 'for="6.6.6.6', ""):
        assert next(forwarded_elements(f"{prefix}, {appended}")) == "192.0.2.60", prefix


@given(st.lists(written, min_size=1, max_size=4), st.text(st.characters(codec="latin-1"), max_size=40))
def test_elements_of_proxies_are_read_behind_any_prefix(elements: list[str], prefix: str) -> None:
    hosts = [element.partition(";")[0].removeprefix("for=") for element in elements]
    found = forwarded_elements(", ".join([prefix, *elements]))
    assert [next(found) for _ in elements] == hosts[::-1]


@given(st.text('"\\,;=for1. ', max_size=60))
@example('"' * 41)
@example('\\"' * 40)
def test_any_text_is_read_to_its_end(text: str) -> None:
    assert len(list(forwarded_elements(text))) <= text.count(",") + 1


def test_lines_are_one_list_of_which_only_the_right_end_is_read() -> None:
    assert right_end([b"a, b", b"c"]) == ("a, b,c", False)
    assert right_end([]) == ("", False)
    text, was_cut = right_end([b"6.6.6.6," * 100_000, b"1.2.3.4"])
    assert was_cut
    assert len(text) <= LONGEST
    assert text.endswith(",1.2.3.4")
    assert right_end([b"x" * (LONGEST + 1)]) == ("", True)
    assert right_end([b"x" * LONGEST]) == ("x" * LONGEST, False)
