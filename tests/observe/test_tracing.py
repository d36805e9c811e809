"""Spans, exported by OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.core.errors import UsageError
from headgate.observe import tracing
from headgate.observe.tracing import Tracing
from tests.observe.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def test_spans_are_sent_to_the_endpoint_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    tracing = Tracing()
    with tracing.call("POST /check", [], {"http.request.method": "POST"}) as span:
        span.set_attribute("http.response.status_code", 200)
    tracing.close()
    assert [span.name for span in collector.spans()] == ["POST /check"]
    (sent,) = collector.sent()
    names = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert names["service.name"] == "headgate"


def test_a_missing_opentelemetry_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")

    monkeypatch.setattr(tracing, "_exporting", missing)
    with pytest.raises(UsageError, match=r"opentelemetry-exporter-otlp-proto-http is not installed: .* '.\[otel\]'"):
        Tracing()
