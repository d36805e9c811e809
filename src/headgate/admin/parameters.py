"""Parameters of paths and queries: those that are unknown are refused, and what is wrong is said in words.

What a route takes is read from the OpenAPI document, so that it and the answers cannot differ. A misspelt filter would
show everything, and a misspelt `dry_run` would change what it was to leave alone: a name that a route does not know is
refused, with the one that may be meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from headgate.config.times import length_of
from headgate.core.errors import UsageError
from headgate.web.problem import shown

Parameters = Mapping[tuple[str, str], Mapping[str, Any]]
"""What is known of each parameter, by its name; by the method and the path of a route."""
_LONGEST_NAME, _MOST_FAULTS = 64, 20
_LONGEST_WAIT = 60.0
"""Seconds for which a change may be waited for."""


class InvalidParameters(UsageError):
    """Parameters that a route does not have or take, or that are there twice, or not at all."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        names = ", ".join(shown(name) for name, _ in faults)
        super().__init__(f"not acceptable in the URL: {names}; nothing was changed")
        self.faults = faults
        """Pairs (name, what is wrong)."""


def parameters_of(document: Mapping[str, Any]) -> Parameters:
    """Return what routes take, by an OpenAPI document."""
    return {
        (method.upper(), path): {
            each["name"]: each for each in operation.get("parameters", ()) if each["in"] in {"path", "query"}
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def taken(connection: ASGIConnection[Any, Any, Any, Any]) -> Mapping[str, Any]:
    """Return what the route of a request takes."""
    known: Parameters = connection.app.state.parameters
    return known.get((str(connection.scope.get("method")), connection.scope["path_template"]), {})


async def query_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuse queries whose parameters are not those of the route, each once. Raises InvalidParameters."""
    if connection.scope.get("method") == "OPTIONS":
        return
    known = {name: each for name, each in taken(connection).items() if each["in"] == "query"}
    given = connection.query_params.dict()
    unknown, twice = sorted(given.keys() - known), [name for name in known if len(given.get(name, ())) > 1]
    faults = [(name, _unknown(name, known)) for name in unknown[:_MOST_FAULTS]]
    faults += [(name, "is there more than once") for name in twice]
    for name, each in known.items():
        if each["schema"].get("type") != "string" and any(value.lower() == "null" for value in given.get(name, ())):
            faults.append((name, f"is not {accepted(each['schema'])}"))  # Litestar would read it as not given
        if each.get("required") and name not in given:
            faults.append((name, f"is missing; it is {accepted(each['schema'])}"))
    if "wait" in known and (waits := given.get("wait")):
        try:
            connection.scope["state"]["wait"] = patience = length_of(waits[0]) / 1_000_000
        except ValueError:
            patience = _LONGEST_WAIT + 1
        if patience > _LONGEST_WAIT:
            faults.append(("wait", f"is not {accepted(known['wait']['schema'])}"))
    if faults:
        raise InvalidParameters(faults)


def unfit(known: Mapping[str, Any], faults: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return parameters whose values do not fit as pairs (name, what would be right), by what Litestar found."""
    names = [str(each.get("key", "")) for each in faults if each.get("source") in {"path", "query"}]
    return [(name, f"is not {accepted(known[name]['schema'])}") for name in names if name in known]


def accepted(schema: Mapping[str, Any]) -> str:
    """Return in words what a parameter may be, by its JSON Schema."""
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if schema["type"] == "boolean":
        return "true or false"
    note = str(schema.get("description", "")).rstrip(".")
    note = note[:1].lower() + note[1:]
    if "pattern" in schema:
        return note
    most = schema.get("maxLength")
    kind = f"text of {schema.get('minLength', 0)} to {most} characters" if most else "text"
    if schema["type"] == "integer":
        kind = f"a whole number from {schema.get('minimum', 0)} to {schema['maximum']}"
    return f"{kind} ({note})" if note else kind


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    if not known:
        return "is unknown; there are no parameters here"
    near = get_close_matches(name[:_LONGEST_NAME].lower().replace("-", "_"), known, 1)
    right = f"{near[0]} may be meant: {accepted(known[near[0]]['schema'])}" if near else f"there are {', '.join(known)}"
    return f"is unknown; {right}"
