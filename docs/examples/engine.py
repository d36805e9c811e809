"""Rules, a store, and requests."""

from __future__ import annotations

from pathlib import Path

from headgate.engine import Engine
from headgate.policy.request import Request

here = Path(__file__).parent

with Engine(here / "rules.yaml") as engine:
    ruling = engine.check(Request({"user": "42", "ip": "203.0.113.9"}, "/api/v1/orders", "POST"))
    print(ruling.allowed, ruling.rule_id)  # True orders-user
    print({limit.rule_id: limit.decision.remaining for limit in ruling.limits})  # {'orders-user': 119, 'all-ip': 999}
    print(engine.check(Request({"user": "bot-7"}, "/")).reason)  # user bot-7 is on the deny list: bot-*
