"""The JSON form of a `Decision` for Pydantic, so that a route of FastAPI can return one."""

from __future__ import annotations

from typing import Any

from pydantic_core import core_schema as schema

from headgate.core.decision import Decision

_MEMBERS = {
    "allowed": (bool, schema.bool_schema()),
    "limit": (int, schema.int_schema()),
    "remaining": (int, schema.int_schema()),
    "retry_after": (float, schema.float_schema()),
    "reset_after": (float, schema.float_schema()),
    "delay": (float, schema.float_schema()),
    "state": (str, schema.str_schema()),
    "quota": (str, schema.str_schema()),
    "degraded": (str, schema.str_schema()),
}
"""The members and their types; times are in seconds."""


def decision_schema() -> schema.CoreSchema:
    """Return the schema for Pydantic: a decision's members, and those of each limit."""
    fields = {name: schema.typed_dict_field(kind[1]) for name, kind in _MEMBERS.items()}
    limits = schema.typed_dict_field(schema.list_schema(schema.typed_dict_schema(fields)))
    shown = schema.plain_serializer_function_ser_schema(
        lambda decision: _members(decision) | {"limits": [_members(each) for each in decision.limits]},
        return_schema=schema.typed_dict_schema({**fields, "limits": limits}),
    )
    return schema.is_instance_schema(Decision, serialization=shown)


def _members(decision: Decision) -> dict[str, Any]:
    return {name: make(getattr(decision, name)) for name, (make, _) in _MEMBERS.items()}
