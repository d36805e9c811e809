"""Text in messages: untrusted values on one line, and packages that are not installed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.messages import not_installed, printable


def test_control_characters_are_escaped_and_long_text_is_cut() -> None:
    for text, shown in {
        "": "",
        "orders für alle": "orders für alle",
        "a\tb\n": "a\\tb\\n",
        "\x1b[31m": "\\x1b[31m",
        "left\u202eright": "left\\u202eright",
        "x" * 30: "x" * 30,
        "x" * 100: f"{'x' * 10}... (100 characters)",
    }.items():
        assert printable(text, 30) == shown


@given(st.text())
def test_any_text_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("hpack", "hpack is not installed: pip install hpack, or in a checkout of Headgate pip install '.[server]'"),
        ("google.protobuf", "protobuf is not installed: pip install protobuf, or"),
        ("grpc", "grpcio is not installed: pip install grpcio, or"),
        ("yaml", "pyyaml is not installed: pip install pyyaml, or"),
        ("jwt", "pyjwt is not installed: pip install 'pyjwt[crypto]', or"),
        ("opentelemetry.sdk.trace", "opentelemetry-exporter-otlp-proto-http is not installed"),
        (None, "a required package is not installed: in a checkout of Headgate pip install '.[server]'"),
    ],
)
def test_a_missing_package_has_the_name_that_pip_knows(module: str | None, message: str) -> None:
    assert not_installed(module, "server").startswith(message)
