"""Header lines: found by exact name, and by no name that merely resembles it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.web.errors import InvalidSettings
from headgate.web.lines import collect, header_name

LOOKALIKES = [
    b"X_Forwarded_For",
    b"X-Forwarded_For",
    b"x_forwarded-for",
    b"X-Forwarded-For ",
    b" X-Forwarded-For",
    b"X-Forwarded-For\t",
    b"X-Forwarded-For\x00",
    b"X-Forwarded-For:",
    b"HTTP_X_FORWARDED_FOR",
    b"X-Forwarded-F\xc3\xb6r",
    b"X\xe2\x80\x90Forwarded\xe2\x80\x90For",
    b"X-Forwarded\r\n-For",
    b"",
]


def test_all_lines_of_a_header_are_kept_in_order_whatever_their_case() -> None:
    lines = [(b"X-A", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"X-a", b"")]
    assert collect(lines, {b"x-a"}) == {b"x-a": [b"1", b"3", b""]}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_name_that_resembles_another_is_not_it(name: bytes) -> None:
    assert collect([(name, b"6.6.6.6")], {b"x-forwarded-for"}) == {}


@pytest.mark.parametrize("name", ["X_Api_Key", "", "X Api", "X-Api:", "é", "x" * 65, None, 7, "X-\n"])
def test_settings_cannot_ask_for_a_name_that_is_none(name: object) -> None:
    with pytest.raises(InvalidSettings, match="header name"):
        header_name(name)


def test_a_name_is_looked_for_in_lower_case() -> None:
    assert header_name("X-Api-Key") == b"x-api-key"


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8))), st.sets(st.binary(max_size=3)))
def test_any_lines_can_be_collected(lines: list[tuple[bytes, bytes]], wanted: set[bytes]) -> None:
    found = collect(lines, wanted)
    assert found == {
        name: values for name in wanted if (values := [value for line, value in lines if line.lower() == name])
    }
