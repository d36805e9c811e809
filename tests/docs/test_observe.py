"""The table of metrics in the docs, the dashboard and the alerts name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from headgate.observe.metrics import METRICS, MetricKind

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = yaml.safe_load((DOCS / "prometheus" / "alerts.yaml").read_text())
DASHBOARD = json.loads((DOCS / "grafana" / "headgate.json").read_text())
PAGE = (DOCS / "observe.md").read_text()
TARGETS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the label of buckets."""


def exposed() -> dict[str, set[str]]:
    """Return the labels of all exposed samples, by name."""
    found: dict[str, set[str]] = {}
    for family in METRICS.values():
        ends = ("_bucket", "_count", "_sum") if family.kind is MetricKind.HISTOGRAM else ("",)
        for end in ends:
            found[family.shown_name + end] = {*family.labels, *TARGETS}
    return {**found, "up": TARGETS}  # Prometheus' own


def alerts() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    found = [alert["expr"] for alert in alerts()]
    found += [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    return [text.replace("$__rate_interval", "5m") for text in found]


def nodes(expression: Any) -> Iterator[Any]:
    """Iterate over all parts of an expression."""
    yield expression
    for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector"):
        part = getattr(expression, name, None)
        for each in part if isinstance(part, list) else [part]:
            if each is not None:
                yield from nodes(each)


def metrics_of(expression: str) -> set[str]:
    """Return the metrics in an expression."""
    found = nodes(promql_parser.parse(expression))
    return {node.name for node in found if isinstance(node, promql_parser.VectorSelector) and node.name}


def test_every_expression_is_valid_with_known_metrics_and_labels() -> None:
    known = exposed()
    for expression in expressions():
        named = metrics_of(expression)
        assert named, expression
        assert named <= known.keys(), expression
        labels = set.union(*(known[name] for name in named))
        for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
            assert set(filter(None, re.split(r",\s*", grouped))) <= labels, expression
        for matched in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression):
            assert matched in labels, expression
    nested = 'topk(3, sum by (x) (rate(a{b="c"}[5m]))) > 10 * -(max(d offset 1d)) and histogram_quantile(0.9, e) > 1'
    assert metrics_of(nested) == {"a", "d", "e"}


def test_every_alert_has_a_severity_and_annotations() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        promql_parser.parse_duration(alert.get("for", "1m"))
        for label in re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())):
            assert re.search(rf"by \([^)]*\b{label}\b", alert["expr"]), (alert["alert"], label)


def test_every_alert_is_explained() -> None:
    sections = (DOCS / "operate.md").read_text().split("\n### ")
    for alert in alerts():
        name = alert["alert"]
        assert alert["annotations"]["runbook_url"] == f"operate.md#{name.lower()}"
        (section,) = [section for section in sections if section.startswith(f"{name}\n")]
        assert re.findall(r"^- \*\*(.+?):\*\* \S", section, re.MULTILINE) == ["Means", "Look at", "Do"], name
    assert re.findall(r"^\| `(Headgate\w+)` \|", PAGE, re.MULTILINE) == [alert["alert"] for alert in alerts()]


def test_the_page_lists_all_metrics() -> None:
    rows = re.findall(r"^\| `(headgate_\w+)` \| (\w+) \|(.*?)\| (.*) \|$", PAGE, re.MULTILINE)
    assert [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows] == [
        (family.shown_name, str(family.kind), family.labels, family.help) for family in METRICS.values()
    ]


def test_grafana_can_draw_the_dashboard() -> None:
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["type"] in {"timeseries", "stat"}
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "job", "instance"]


def test_the_dashboard_has_all_metrics_but_these() -> None:
    drawn = [target["expr"].replace("$__rate_interval", "5m") for panel in panels() for target in panel["targets"]]
    shown = {name.removesuffix("_bucket") for expression in drawn for name in metrics_of(expression)}
    unseen = {family.shown_name for family in METRICS.values()} - shown
    expected = """
        build_info caller_last_request_timestamp_seconds nodes config_broken denials_unlogged_total peeks_total
        process_start_time_seconds refunds_total resets_total rule_degraded_total rules_broken
        rules_contact_timestamp_seconds rules_stale store_calls_total unmatched_principals_total worker_starts_total
    """
    assert unseen == {f"headgate_{name}" for name in expected.split()}


def test_every_alert_fires_in_one_case_and_not_in_another() -> None:
    """Verified by promtool."""
    promtool = shutil.which("promtool")
    assert promtool, "promtool is needed: apt-get install prometheus"
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=DOCS / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tests = yaml.safe_load((DOCS / "prometheus" / "alerts.test.yaml").read_text())["tests"]
    cases = {(case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]}
    assert cases == {(alert["alert"], fires) for alert in alerts() for fires in (False, True)}


def test_the_metrics_of_the_migration_page_exist_with_their_labels() -> None:
    known = exposed()
    page = (DOCS / "migrating-ratelimit.md").read_text()
    named = re.findall(r"(headgate_[a-z_]+)(?:\{([^}]*)\})?", page)
    assert len(named) > 15
    for name, labels in named:
        assert name in known or f"{name}_bucket" in known, name
        assert set(re.findall(r"(\w+)=", labels)) <= (known.get(name) or known[f"{name}_bucket"]), name
