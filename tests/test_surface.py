"""What the package promises to others: its names, its typing, and the direction of its imports."""

from __future__ import annotations

import ast
import inspect
import pydoc
import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any, get_type_hints

import pytest
from fastapi import Depends, FastAPI

import headgate
import headgate.engine
import headgate.pacing
import headgate.policy.envoy
import headgate.sdk
import headgate.testing
import headgate.web
from headgate.stores.base import Store
from tests.integrations.clients import TestClient

ROOT = Path(headgate.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MAY_IMPORT = {
    part: set(names.split())
    for part, names in {
        "core": "",
        "cache": "",
        "clock": "",
        "eager": "",
        "flows": "",
        "locks": "",
        "messages": "",
        "networks": "",
        "protobuf": "",
        "protos": "",
        "files": "core",
        "live": "core",
        "config": "core files messages",
        "stores": "cache clock core flows locks messages",
        "policy": "cache config core files live locks networks",
        "waiting": "clock core locks",
        "limiter": "clock core flows stores waiting",
        "testing": "clock core flows locks stores",
        "web": "cache core messages networks",
        "reference": "web",
        "engine": "clock core eager flows live policy stores",
        "observe": "cache clock core engine files live messages policy stores",
        "server": "cache clock config core eager engine files live messages networks observe policy protobuf protos "
        "reference stores web",
        "sdk": "clock core engine flows locks messages policy protobuf protos stores",
        "pacing": "clock core flows locks stores waiting web",
        "integrations": "cache clock core engine flows limiter policy protobuf sdk stores waiting web",
        "gateway": "clock config core files live messages observe policy server stores web",
        "admin": "config core engine limiter messages networks observe policy reference stores web",
        "replay": "clock config core engine messages observe policy stores",
        "cli": "admin clock config core engine files gateway live messages observe policy replay sdk server stores web",
        "__main__": "cli",
    }.items()
}
"""Which parts of the package a part may import, besides itself."""
SERVER_MAY_IMPORT = {
    part: set(names.split())
    for part, names in {
        "wire": "",
        "decisions": "settings",
        "readiness": "",
        "recurring": "",
        "admission": "caller_keys ceiling wire",
        "caller_keys": "wire",
        "ceiling": "",
        "proxied_clients": "",
        "tracing": "wire",
        "api": "decisions proxied_clients readiness recurring wire",
        "identity": "proxied_clients",
        "authz": "api decisions proxied_clients wire",
        "rls": "api decisions recurring wire",
        "rpc": "api decisions readiness wire",
    }.items()
}
"""Which parts of `headgate.server` a part of it may import, besides itself; others may import all."""
LIMITER = headgate.Limiter("1/minute; 5/hour")
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


def public_names() -> list[tuple[str, Any]]:
    """All that users may import from short paths, by its full name."""
    packages = (
        headgate,
        headgate.engine,
        headgate.pacing,
        headgate.policy.envoy,
        headgate.sdk,
        headgate.testing,
        headgate.web,
    )
    found = [(f"{package.__name__}.{name}", getattr(package, name)) for package in packages for name in package.__all__]
    return [(name, thing) for name, thing in found if not isinstance(thing, str)]


def members_of(kind: type) -> list[tuple[str, Any]]:
    """The methods and properties of a class that are ours, its constructor included."""
    found: list[tuple[str, Any]] = [("__init__", kind.__init__)] if isinstance(kind.__init__, FunctionType) else []  # type: ignore[misc]
    for name, value in inspect.getmembers(kind):
        function = value.fget if isinstance(value, property) else inspect.unwrap(value) if callable(value) else None
        if not name.startswith("_") and (getattr(function, "__module__", "") or "").startswith("headgate"):
            found.append((name, function))
    return found


def test_the_public_surface_is_this_list() -> None:
    assert headgate.__all__ == sorted(headgate.__all__)
    names = """
        AddressReader Algorithm AsyncCachedStore AsyncEngine AsyncFailoverStore AsyncLimiter CachedStore Calendar Clock
        CostTooLarge Decision Engine FailoverStore HeadgateError InvalidCost InvalidKey InvalidQuota InvalidRequest
        InvalidRule InvalidRules InvalidStore LimitExceeded Limiter LivePolicy MemoryStore OutcomeUnknown Passed
        Pressure Quota Request Reset ResponseHeaders Rule Ruleset Ruling StoreBusy StoreError StoreUnavailable
        SystemClock UnknownRule UsageError load_rules open_async_store open_store
    """
    assert set(headgate.__all__) == set(names.split())
    assert headgate.sdk.__all__ == ["AsyncClient", "CallerRefused", "Client"]
    assert headgate.pacing.__all__ == [
        "AiohttpMiddleware",
        "AsyncHttpxTransport",
        "HttpxTransport",
        "Pacer",
        "RequestsAdapter",
        "WaitTooLong",
    ]
    assert headgate.testing.__all__ == ["ManualClock"]
    assert set(headgate.__all__) <= set(dir(headgate))


def test_other_names_are_not_found_by_accident() -> None:
    """`load` is not the sub-package."""
    for name in ("load", "Engin"):
        with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
            exec(f"from headgate import {name}")  # noqa: S102  as users write it


def test_nothing_but_the_library_is_imported_before_its_first_use() -> None:
    code = "import headgate, sys; print(sorted({name.split('.')[1] for name in sys.modules if 'headgate.' in name}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = "clock core flows limiter locks messages stores waiting"
    assert eval(shown.stdout) == expected.split()  # noqa: S307


def test_all_names_exist_without_extras_and_errors_name_the_extra() -> None:
    """As after a plain `pip install headgate`: the packages of all extras are missing."""
    code = """if True:
        import sys
        for name in ("yaml", "hiredis", "jwt", "cryptography", "httptools", "hpack", "uvloop", "google"):
            sys.modules[name] = None
        import headgate, headgate.web
        for package in (headgate, headgate.web):
            for name in package.__all__:
                getattr(package, name)
        for use in (
            lambda: headgate.load_rules("version: 1"),
            lambda: headgate.open_store("redis://localhost"),
            lambda: headgate.web.VerificationKey.load("HS256", "x" * 32),
        ):
            try:
                use()
            except (ImportError, ValueError) as error:
                print(error)
    """
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line, (package, extra) in zip(
        shown.stdout.splitlines(), [("pyyaml", "policy"), ("hiredis", "redis"), ("pyjwt", "jwt")], strict=True
    ):
        assert package in line
        assert f"pip install '.[{extra}]'" in line


def test_every_public_name_has_help_a_signature_and_types_that_can_be_resolved() -> None:
    for name, thing in public_names():
        assert thing.__doc__, name
        assert pydoc.render_doc(thing), name
        assert isinstance(thing, ModuleType) or get_type_hints(thing) is not None, name
        if not isinstance(thing, type):
            continue
        assert inspect.signature(thing), name
        for member, function in members_of(thing):
            assert inspect.signature(function), f"{name}.{member}"
            get_type_hints(function)
            explained = [function, *(getattr(protocol, member, None) for protocol in (Store, headgate.Clock))]
            assert member == "__init__" or any(each.__doc__ for each in explained if each), f"{name}.{member}"


@pytest.mark.parametrize("kind", [headgate.Limiter, headgate.AsyncLimiter])
@pytest.mark.parametrize("quotas", ["1/minute", "1/minute; 5/hour"])
def test_what_a_store_binds_is_shown_as_the_method_that_it_is(kind: Any, quotas: str) -> None:
    check = kind(quotas).check
    assert check.__doc__ == kind.check.__doc__
    assert list(inspect.signature(check).parameters) == ["key", "cost"]
    with pytest.raises(TypeError, match=rf"{kind.__name__}.check\(\) missing 1 required"):
        check()


def test_the_help_of_the_package_shows_its_main_methods() -> None:
    shown = pydoc.plain(pydoc.render_doc(headgate)).replace("'", "")  # Python 3.14 quotes no annotations
    for line in (
        "check(self, key: str, cost: int = 1) -> Decision",
        "check(self, key: str, cost: int = 1) -> Awaitable[Decision]",
        "check(self, request: Request) -> Ruling",
    ):
        assert line in shown
    assert [*inspect.signature(headgate.Decision).parameters][:3] == ["allowed", "limit", "remaining"]
    assert get_type_hints(headgate.Decision)["quota"] is headgate.Quota


def limited() -> headgate.Decision:
    return LIMITER.check("ada")


def remaining(decision: Annotated[headgate.Decision, Depends(limited)]) -> int:
    return decision.remaining


def test_a_route_of_fastapi_may_return_a_decision() -> None:
    app = FastAPI()
    app.get("/decision")(limited)
    app.get("/remaining")(remaining)
    client = TestClient(app)
    answer = client.get("/decision").json()
    assert (answer["allowed"], answer["limit"], answer["quota"]) == (True, 1, "1/minute")
    assert [(part["quota"], part["remaining"]) for part in answer["limits"]] == [("1/minute", 0), ("5/hour", 4)]
    assert client.get("/remaining").json() == 0
    schema = client.get("/openapi.json").json()["paths"]["/decision"]["get"]["responses"]["200"]
    assert schema["content"]["application/json"]["schema"]["properties"]["retry_after"]["type"] == "number"


def test_every_module_has_a_docstring() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_package_is_typed() -> None:
    assert resources.files("headgate").joinpath("py.typed").is_file()


def test_imports_go_one_way() -> None:
    for path in MODULES:
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        ours = {part_of(name) for name in imports(path) if name.startswith("headgate.")}
        assert part == "__init__" or ours - {part} <= MAY_IMPORT[part], f"{path} imports too much"


def test_imports_inside_the_server_go_one_way() -> None:
    """The wire knows nothing of what is served on it, nor the APIs of the process that serves them."""
    for path in (ROOT / "server").rglob("*.py"):
        part = path.relative_to(ROOT / "server").with_suffix("").parts[0]
        ours = {name for name in imports(path) if name.startswith("headgate.")}
        inside = {name.split(".")[2] for name in ours if part_of(name) == "server"}
        assert inside - {part} <= SERVER_MAY_IMPORT.get(part, inside), f"{path} imports too much"
        if part == "wire":
            assert {part_of(name) for name in ours} <= {"cache", "eager", "live", "server", "web"}, (
                f"{path} imports too much"
            )


def test_the_core_is_pure() -> None:
    """No I/O, no clock, no lock, no await in core."""
    for path in (ROOT / "core").glob("*.py"):
        # It computes with dates, and never asks for today's.
        allowed = {"datetime"} if path.name == "calendar.py" else set()
        assert not {name.split(".")[0] for name in imports(path)} & NOT_PURE - allowed, path
        nodes = list(ast.walk(ast.parse(path.read_text())))
        assert not [node for node in nodes if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.Global)], path
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert not called & {"open", "print"}, path
        assert not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"today", "utcnow"}, path


def test_the_core_has_no_floats() -> None:
    """Integers only; the seconds of a Decision are for people."""
    for path in (ROOT / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                assert not isinstance(node.value, float), path
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                assert path.name in {"decision.py", "quota.py"}, f"{path}:{node.lineno} divides"
