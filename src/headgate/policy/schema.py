"""The JSON Schema of a file of rules, for editors. It is made of the same table as the loader: `headgate.policy.forms`.

It knows the form of single fields and which go together. What needs the whole file (whether a rule that is named
exists) or arithmetic (whether a quota can be computed exactly) only the loader knows.
"""

from __future__ import annotations

from typing import Any

from headgate.policy.forms import CHANGE, FILE, LIMIT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema of the YAML and the JSON form."""
    return {
        "$schema": DIALECT,
        "title": "Rules of Headgate",
        "description": "Rate limits: whom and what they are for, and how much may pass.",
        **FILE.schema(),
        "$defs": {form.name: form.definition() for form in (LIMIT, CHANGE)},
    }
