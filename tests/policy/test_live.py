"""Policies of rules that change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headgate.engine import Engine
from headgate.policy.live import LivePolicy, rules_file
from headgate.policy.request import Request


def test_each_change_starts_afresh_that_says_when_it_was_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that makes the limit what it was before; without the time, what was counted before is found again."""
    file = tmp_path / "rules.yaml"

    def written(limit: int, day: int) -> None:
        updated = f", updated_at: 2026-01-{day:02}T00:00:00Z" if day else ""
        file.write_text(f"version: 1\nrules: [{{id: a, limit: {limit}, window: 1h, reset_on_change: true{updated}}}]\n")

    for days, passing in (((1, 2, 3), [2, 3, 2]), ((0, 0, 0), [2, 3, 0])):
        caplog.clear()
        written(2, days[0])
        live = LivePolicy(rules_file(file))
        counts = []
        with Engine(live) as engine:
            for limit, day in zip((2, 3, 2), days, strict=True):
                written(limit, day)
                live.reload()
                counts.append(sum(engine.check(Request({"user": "ada"})).allowed for _ in range(5)))
        assert counts == passing
        warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert ["rule a is again what it was before" in message for message in warned] == [True] * (passing[2] == 0)
