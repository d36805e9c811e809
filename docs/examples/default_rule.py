"""What no rule is for, and who is of no tier."""

from __future__ import annotations

from pathlib import Path

from headgate.engine import Engine
from headgate.policy.request import Request, UnknownRule

here = Path(__file__).parent

with Engine(here / "more-rules.yaml") as engine:
    print(engine.check(Request({"user": "42", "ip": "203.0.113.9"}, "/news")).rule_id)  # default
    print(engine.check(Request({"user": "42", "ip": "203.0.113.9"}, "/exports")).rule_id)  # exports
    print(engine.is_passed("42", "search").remaining)  # 599
    try:
        engine.is_passed("42", "serch")
    except UnknownRule as error:
        print(error)  # rule 'serch' does not exist; there are: webhooks, search, exports, default
