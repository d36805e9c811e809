"""Rules that come from elsewhere, and change while the engine runs."""

from __future__ import annotations

from headgate.engine import Engine
from headgate.policy.live import LivePolicy
from headgate.policy.loading import load
from headgate.policy.model import Ruleset
from headgate.policy.request import Request


class Table:
    """Rules in a table of yours; here, in a variable."""

    name = "the table of rules"

    def __init__(self, text: str) -> None:
        self.text = self._read = text

    def read(self) -> Ruleset:
        self._read = self.text
        return load(self.text, name=self.name)

    def changed(self) -> Ruleset | None:
        return self.read() if self.text != self._read else None


table = Table("{version: 1, rules: [{id: uploads, limit: 100, window: 1h}]}")
request = Request({"user": "42"}, "/uploads")

live = LivePolicy(table)
with Engine(live) as engine:
    print(engine.check(request).limits[0].decision.remaining)  # 99

    table.text = table.text.replace("100", "200")
    print(live.refresh(), engine.check(request).limits[0].decision.remaining)  # True 198

    table.text = "rules: ["
    print(live.refresh(), engine.check(request).limits[0].decision.remaining)  # False 197
    print(live.statistics().failures)  # 1
