"""Files of caller keys, and whose key a request has."""

from __future__ import annotations

import pytest

from headgate.core.errors import UsageError
from headgate.server.caller_keys import CallerKeys
from headgate.web.apikey import digest


@pytest.fixture
def keys() -> CallerKeys:
    text = f"# callers\n\nedge {digest('one')}  # first\nedge {digest('two').upper()}\nbilling {digest('three')}\n"
    return CallerKeys.parse(text, "callers")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ((b"authorization", b"Bearer one"), "edge"),
        ((b"authorization", b"bearer two"), "edge"),
        ((b"x-api-key", b"three"), "billing"),
        ((b"x-api-key", b"four"), ""),
        ((b"x-api-key", b""), ""),
        ((b"authorization", b"one"), ""),
        ((b"authorization", b"Basic one"), ""),
        ((b"accept", b"one"), ""),
    ],
)
def test_a_caller_is_known_by_its_key(keys: CallerKeys, header: tuple[bytes, bytes], name: str) -> None:
    assert keys.caller([(b":path", b"/x"), header])[0] == name


def test_two_credentials_are_none(keys: CallerKeys) -> None:
    assert keys.caller([(b"x-api-key", b"one"), (b"x-api-key", b"one")]) == ("", b"")
    assert keys.caller([(b"x-api-key", b"one"), (b"authorization", b"Bearer one")]) == ("", b"")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edge secret-key-in-plain", ":1: each line must be NAME"),
        (f"\nedge {'0' * 63}", ":2: each line must be NAME"),
        (f"edge one {'0' * 64}", ":1: each line must be NAME"),
        (f"a {'0' * 64}\nb {'0' * 64}", ":2: the same key"),
        ("# nobody", "every request would be refused"),
        ("\x00\x01", "each line must be NAME"),
        ("x" * 1_100_000, "more than"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_what_is_in_it(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        CallerKeys.parse(text, "callers")
    assert "secret" not in str(caught.value)
