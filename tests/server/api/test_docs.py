"""The requests of docs/api.md get the responses that it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format

from headgate.protos import message_class
from headgate.server import rpc
from headgate.server.wire.grpc.calls import UnaryCall, answer_of
from headgate.server.wire.messages import HttpResponse
from tests.server.serving import Service, fields, serving

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "api.md").read_text()
BLOCKS = re.findall(r"^```http\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^grpcurl .*$", PAGE, re.MULTILINE)]
CHARGE = re.compile(r"\bAgAAAA[\w-]{60,}")
"""Sealed, so each time another."""
INPUTS = {
    "CheckRateLimit": "CheckRequest",
    "GetRemainingQuota": "QuotaRequest",
    "ResetLimit": "ResetRequest",
    "RefundCharge": "RefundRequest",
    "CheckRateLimitBatch": "CheckBatchRequest",
    "GetRules": "RulesRequest",
}


@pytest.fixture
def service() -> Iterator[Service]:
    with serving((DOCS / "examples" / "api.yaml").read_text()) as service:
        yield service


def parts(block: str) -> tuple[str, list[tuple[str, str]], str]:
    head, _, body = block.partition("\n\n")
    first, *lines = head.splitlines()
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return first, headers, body


def test_every_request_of_the_page_gets_the_answer_that_follows_it(service: Service) -> None:
    response: HttpResponse | None = None
    answered, charge = 0, ""
    for block in BLOCKS:
        first, headers, body = parts(block)
        if not first.isdigit():
            method, path = first.split()
            response = service.send(method, path, CHARGE.sub(charge, body).encode(), headers)
            assert response.status in {200, 400, 429}
            continue
        assert response is not None
        answered += 1
        assert response.status == int(first)
        text = response.body.decode()
        if found := CHARGE.search(text):
            charge = found[0]
        assert json.loads(CHARGE.sub("", text)) == json.loads(CHARGE.sub("", body))
        assert fields(response).items() >= {(name.lower(), value) for name, value in headers}
    assert answered >= 7


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_every_call_of_the_page_is_answered(service: Service, words: list[str]) -> None:
    message, path = words[words.index("-d") + 1], words[-1]
    charge = service.check({"principal": {"user": "u3"}, "rule_id": "rule_001", "refundable": True})["charge"]
    message = CHARGE.sub(charge, message)
    message_ = message_class(f"headgate.v1.{INPUTS[path.rpartition('/')[2]]}")()
    encoded = json_format.Parse(message, message_).SerializeToString()
    method = rpc.methods(service.decisions, service.readiness).unary[f"/{path}".encode()]
    assert service.run(lambda: answer_of(method, UnaryCall(encoded)))


def test_every_path_of_the_page_is_there(service: Service) -> None:
    table = PAGE.split("## Check")[0]
    for path in re.findall(r"`(/[\w/-]+)`", table):
        if path not in {"/json", "/json/explain", "/rlconfig"}:  # they are given to the application
            assert service.send("GET", path).status != 404, path
