"""Files of protobuf. That protoc reads the same in ours is tested with each of the services."""

from __future__ import annotations

import pytest

from headgate.server.proto_text import read


@pytest.mark.parametrize(
    "text",
    ["message A { B b = 1; }", "message A { string b 1; }", "union A {}", "service S { stream A(B) returns (C); }"],
)
def test_what_is_not_understood_in_a_file_is_an_error(text: str) -> None:
    with pytest.raises(SyntaxError):
        read({"a.proto": text}, {})
