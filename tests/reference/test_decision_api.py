"""The OpenAPI document of the decision plane agrees with docs/api.md, and with the responses of a service."""

from __future__ import annotations

import re
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jsonschema import Draft202012Validator

from headgate.reference import decision_api
from headgate.reference.decision_api import document
from headgate.reference.pages import DOCUMENT, PATHS
from headgate.web.apikey import digest
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

DOCS = Path(__file__).parents[2] / "docs" / "api.md"
RULES = """
version: 1
rules:
  - {id: orders, endpoint: /orders, limit: 1000, window: 1h}
  - {id: few, endpoint: /few, dimension: ip, limit: 1, window: 1h}
deny: [{ip: 192.0.2.1}]
"""
CHECK = "/api/v1/rate-limit"
QUESTION = {"principal": {"user": "u1"}, "endpoint": "/orders", "method": "POST"}
TOO_LARGE = "x" * 2_000_000
PROXY = {"X-Original-URI": "/few", "X-Original-Method": "GET"}
POSTS = [f"{CHECK}/check", f"{CHECK}/batch", f"{CHECK}/refund", f"{CHECK}/reset", "/json", "/json/explain"]
GETS = [f"{CHECK}/rules", "/rlconfig", "/healthz", "/readyz", "/healthcheck", "/hotkeys", "/metrics"]
KEPT = [*POSTS, f"{CHECK}/rules", "/rlconfig", "/hotkeys", "/api/v1/forward-auth"]
"""What callers may need a key for."""


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes
    etag: str


def asked(running: Service, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    connection = HTTPConnection("127.0.0.1", running.http_port, timeout=SECONDS)
    sent = body if body is None or isinstance(body, str) else msgspec.json.encode(body)
    try:
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        kind = response.getheader("content-type", "").partition(";")[0]
        return Answer(response.status, kind, response.read(), response.getheader("etag", ""))
    finally:
        connection.close()


class Checked:
    """Compares answers with the document, and knows which of it were seen."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, path: str, answer: Answer, *statuses: int) -> Answer:
        assert answer.status in statuses, (path, answer)
        self.seen.add((path, answer.status))
        (operation,) = self._found["paths"][path].values()
        found = operation["responses"][str(answer.status)]
        content = self._found["components"]["responses"].get(found.get("$ref", "")[-3:], found).get("content", {})
        assert (answer.kind in content) is bool(content), (path, answer)
        if content and "json" in answer.kind:
            schema = {**content[answer.kind]["schema"], "components": self._found["components"]}
            faults = list(Draft202012Validator(schema).iter_errors(msgspec.json.decode(answer.body)))
            assert not faults, (path, answer, faults[0].message)
        return answer


def test_a_service_answers_all_that_is_documented_and_as_it_is(tmp_path: Path) -> None:
    """But for the answer of a node that ends, which has tests of its own."""
    found = msgspec.json.decode(document())
    checked = Checked(found)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "callers").write_text(f"edge {digest('k' * 40)}\n")
    with service("--rules", str(tmp_path / "rules.yaml")) as running:
        ask_well(running.started(), checked)
        ask_badly(running, checked)
    with service("--caller-keys", str(tmp_path / "callers")) as running:
        ask_without_a_key(running.started(), checked)
    with service("--max-checks-per-second", "1", "--http-docs", "off") as running:
        ask_too_often(running.started(), checked)
        for path in ("/docs", DOCUMENT):  # which are refused as well now and then
            until(partial(is_missing, running, path), f"{path} is not there", SECONDS)
    documented = {
        (path, int(status))
        for path in decision_api.PATHS
        for operation in found["paths"][path].values()
        for status in operation["responses"]
    }
    assert documented - checked.seen == {("/readyz", 503), ("/healthcheck", 503)}


def is_missing(running: Service, path: str) -> bool:
    return asked(running, "GET", path).status == 404


def ask_well(plain: Service, checked: Checked) -> None:
    check = f"{CHECK}/check"
    questions: list[dict[str, Any]] = [
        QUESTION,
        {**QUESTION, "exact": True, "refundable": True, "address": "203.0.113.9", "consume": False},
        {"key_type": "user", "key_value": "u1", "rule_id": "orders", "request_count": 2},
        {"identifier": "u1", "dimension": "USER", "endpoint": "/orders"},
        {"identifier": "u1", "rule_id": "orders"},
        {"principal": {"ip": "192.0.2.1"}},
        {"principal": {}},
    ]
    for question in questions:
        assert not faults_of("question", question), question
        checked(check, asked(plain, "POST", check, question), 200)
    charge = msgspec.json.decode(asked(plain, "POST", check, {**QUESTION, "refundable": True}).body)["charge"]
    checked(f"{CHECK}/refund", asked(plain, "POST", f"{CHECK}/refund", {**QUESTION, "charge": charge}), 200)
    batch = {"requests": [QUESTION, {"key_type": "user", "key_value": "u1"}]}
    checked(f"{CHECK}/batch", asked(plain, "POST", f"{CHECK}/batch", batch), 200)
    checked(f"{CHECK}/reset", asked(plain, "POST", f"{CHECK}/reset", QUESTION), 200)
    for path in GETS:
        checked(path, asked(plain, "GET", path), 200)
    etag = asked(plain, "GET", f"{CHECK}/rules").etag
    checked(f"{CHECK}/rules", asked(plain, "GET", f"{CHECK}/rules", if_none_match=etag), 304)
    checked("/metrics", asked(plain, "GET", "/metrics", accept="application/openmetrics-text"), 200)
    entries = [{"key": "remote_address", "value": "203.0.113.5"}, {"key": "path", "value": "/few"}]
    for status in (200, 429):
        limited = {"domain": "edge", "descriptors": [{"entries": entries}]}
        checked("/json", asked(plain, "POST", "/json", limited), status)
        checked("/json/explain", asked(plain, "POST", "/json/explain", limited), 200)
        proxied = asked(plain, "GET", "/api/v1/forward-auth", **PROXY, **{"X-Forwarded-For": "203.0.113.9"})
        checked("/api/v1/forward-auth", proxied, status)
    banned = asked(plain, "GET", "/api/v1/forward-auth", **PROXY, **{"X-Forwarded-For": "192.0.2.1"})
    checked("/api/v1/forward-auth", banned, 403)


def ask_badly(plain: Service, checked: Checked) -> None:
    for path in POSTS:
        checked(path, asked(plain, "POST", path, '{"a": 1'), 400)
        checked(path, asked(plain, "POST", path, TOO_LARGE), 413)
        checked(path, asked(plain, "GET", path), 405)
    for path in GETS:
        checked(path, asked(plain, "POST", path, {}), 405)
        checked(path, asked(plain, "GET", path, TOO_LARGE), 413)
    both = {**PROXY, "X-Forwarded-Uri": "/other"}
    checked("/api/v1/forward-auth", asked(plain, "GET", "/api/v1/forward-auth", **both), 400)
    checked("/api/v1/forward-auth", asked(plain, "GET", "/api/v1/forward-auth", TOO_LARGE), 413)


def ask_without_a_key(closed: Service, checked: Checked) -> None:
    for path in KEPT:
        checked(path, asked(closed, "POST" if path in POSTS else "GET", path, {}), 401)
    for path in ("/healthz", "/readyz", "/healthcheck", "/metrics", *PATHS):
        assert asked(closed, "GET", path).status == 200


def ask_too_often(busy: Service, checked: Checked) -> None:
    for path in KEPT:
        method = "POST" if path in POSTS else "GET"

        def refused(method: str = method, path: str = path) -> bool:
            answer = asked(busy, method, path, QUESTION if method == "POST" else None)
            return answer.status == 503 and bool(checked(path, answer, 503))

        until(refused, f"it refuses {path}", SECONDS)


def test_docs_and_document_have_the_same_paths() -> None:
    table = DOCS.read_text().partition("\n\n## ")[0]
    first_cells = re.findall(r"^\| (`/[^|]*) \|", table, re.MULTILINE)
    paths = {path for cell in first_cells for path in re.findall(r"`([^`]+)`", cell)}
    assert paths == set(decision_api.PATHS)


def test_docs_and_document_have_the_same_members() -> None:
    section = DOCS.read_text().partition("\n## Check\n")[2].partition("\n### By rule")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    members = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    canonical = decision_api.COMPONENTS["question"]["anyOf"][0]["properties"]
    answered = decision_api.COMPONENTS["decision"]
    assert members == {*canonical, *answered["required"], "refusal"}
    assert set(answered["properties"]) - set(answered["required"]) == {"charge", "exact", "refusal"}


def faults_of(name: str, value: object) -> list[str]:
    """Return what is wrong with a value, by a schema of the document."""
    found = msgspec.json.decode(document())
    schema = {"$ref": f"#/components/schemas/{name}", "components": found["components"]}
    return [fault.message for fault in Draft202012Validator(schema).iter_errors(value)]
