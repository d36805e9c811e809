"""What the package promises to others: its names, its typing, and the direction of its imports."""

from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

import headgate
import headgate.testing

ROOT = Path(headgate.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MAY_IMPORT = {
    "core": set(),
    "clock": set(),
    "latency": set(),
    "stores": {"core", "clock", "latency"},
    "policy": {"core"},
    "waiting": {"core", "clock"},
    "binding": {"core"},
    "limiter": {"core", "clock", "stores", "waiting", "binding"},
    "aio": {"core", "clock", "stores", "waiting", "binding"},
    "testing": {"core", "clock", "stores"},
    "web": {"core"},
    "engine": {"core", "clock", "stores", "policy"},
    "observe": {"core", "clock", "latency", "stores", "policy", "engine"},
    "server": {"core", "clock", "stores", "policy", "engine", "web", "observe"},
    "load": {"core"},
    "cli": {"core", "clock", "stores", "policy", "engine", "web", "observe", "server", "load"},
}
"""Which parts of the package a part may import, besides itself."""
NOT_PURE = {"asyncio", "datetime", "logging", "os", "random", "socket", "threading", "time", "typing_extensions"}


def part_of(module: str) -> str:
    """Return the part that a dotted name belongs to: headgate.core.key is in core."""
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    """Return the full dotted names of all that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_public_surface_is_this_list() -> None:
    assert headgate.__all__ == sorted(headgate.__all__)
    assert set(headgate.__all__) == {
        "Algorithm",
        "AsyncLimiter",
        "Calendar",
        "Clock",
        "CostTooLarge",
        "Decision",
        "HeadgateError",
        "InvalidCost",
        "InvalidKey",
        "InvalidQuota",
        "InvalidRule",
        "InvalidStore",
        "LimitExceeded",
        "Limiter",
        "MemoryStore",
        "OutcomeUnknown",
        "Passed",
        "Pressure",
        "Quota",
        "StoreBusy",
        "StoreError",
        "StoreUnavailable",
        "SystemClock",
        "UsageError",
    }
    assert headgate.testing.__all__ == ["ManualClock"]


def test_every_public_name_exists_and_is_documented() -> None:
    for name in headgate.__all__:
        assert getattr(headgate, name).__doc__, name


def test_every_module_has_a_docstring() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_package_is_typed() -> None:
    assert resources.files("headgate").joinpath("py.typed").is_file()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).with_suffix("").parts[0]
    if part == "__init__":
        return
    ours = {part_of(name) for name in imports(path) if name.startswith("headgate.")}
    assert ours - {part} <= MAY_IMPORT[part], f"{path} imports too much"


@pytest.mark.parametrize("path", sorted((ROOT / "core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    """No I/O, no clock, no lock, no await in core."""
    allowed = (
        {"datetime"} if path.name == "calendar.py" else set()
    )  # it computes with dates, and never asks for today's
    assert not {name.split(".")[0] for name in imports(path)} & NOT_PURE - allowed
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.Global)]
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in {"open", "print"}
    ]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in {"today", "utcnow"}]


def test_the_core_has_no_floats() -> None:
    """Integers only; the seconds of a Decision are for people."""
    for path in (ROOT / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                assert not isinstance(node.value, float), path
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                assert path.name in {"decision.py", "quota.py"}, f"{path}:{node.lineno} divides"
