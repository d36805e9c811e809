"""Labels as they are written in the text format."""

from __future__ import annotations

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
LONGEST = 200


def written(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return labels as text, such as ``rule="orders",outcome="denied"``. Long values are cut.

    What is not text in UTF-8, or a control character, is replaced: no value can end a line or another label.
    """
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)])


def _escaped(value: str) -> str:
    if len(value) > LONGEST:
        value = value[: LONGEST - 3] + "..."
    if not (value.isascii() and value.isprintable()):
        value = value.encode(errors="replace").decode()
        value = "".join([each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in value])
    return value.translate(_ESCAPES)
