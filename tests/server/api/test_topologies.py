"""Checks run without a task of their own, also over stores of several servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from headgate.server.api.routes import BATCH
from tests.clusters import redis_cluster
from tests.sentinels import redis_sentinels
from tests.server.serving import LASTING, Service, serving

ORDER = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/orders/7", "method": "POST"}


@pytest.fixture(params=[lambda: redis_cluster(3, 0), lambda: redis_sentinels(1, 1)], ids=["cluster", "sentinel"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    made: AbstractContextManager[Any] = request.param()
    with made as servers, serving(LASTING, store=servers.address) as service:
        yield service


def test_checks_batches_and_readiness(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of a user and of an address may be on different servers."""
    monkeypatch.setattr("headgate.server.readiness._PROBE_SECONDS", 60.0)  # on a busy machine too
    answers = [service.check(ORDER) for _ in range(4)]
    assert [(answer["allowed"], answer["degraded"]) for answer in answers] == [(True, False)] * 3 + [(False, False)]
    assert service.check(ORDER | {"principal": {"user": "u2"}}, Idempotency_Key="k")["remaining"] == 2
    assert service.check(ORDER | {"principal": {"user": "u2"}, "consume": False})["remaining"] == 2
    response = service.post({"requests": [ORDER] * 50}, BATCH.decode())
    assert response.body.count(b'"degraded":false') == 50
    assert json.loads(service.send("GET", "/readyz").body)["status"] == "ready"
