"""What no rule is for, and who is of no tier."""

from __future__ import annotations

from pathlib import Path

from headgate.engine import Engine
from headgate.policy.request import InvalidRequest, Request

here = Path(__file__).parent

with Engine(here / "more-rules.yaml") as engine:
    print(engine.check(Request({"user": "42", "ip": "203.0.113.9"}, "/news")).rule_id)  # default
    print(engine.check(Request({"user": "42", "ip": "203.0.113.9"}, "/exports")).rule_id)  # exports
    try:
        engine.check_rule("serch", "42")
    except InvalidRequest as error:
        print(error)  # rule 'serch' does not exist
