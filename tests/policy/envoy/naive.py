"""The descriptor tree as one would explain it: no preparation, patterns as regular expressions, plain recursion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Tree = list[dict[str, Any]]


def name_of(descriptor: dict[str, Any]) -> str:
    value = descriptor.get("value")
    return f"{descriptor['key']}_{value}" if value else str(descriptor["key"])


def fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def find(tree: Tree, entries: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the descriptor that the entries lead to."""
    if not entries:
        return None
    (key, value), rest = entries[0], entries[1:]
    name = f"{key}_{value}"
    candidates = [descriptor for descriptor in tree if name_of(descriptor) == name]
    candidates += [descriptor for descriptor in tree if "*" in name_of(descriptor) and fits(name_of(descriptor), name)]
    candidates += [descriptor for descriptor in tree if name_of(descriptor) == key]
    if not candidates:
        return None
    first = candidates[0]
    return find(first.get("descriptors", []), rest) if rest else first
