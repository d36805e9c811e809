"""What is said about metrics is so: the table in the docs, the dashboard and the alerts name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from headgate.observe.metrics import METRICS, MetricKind

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = yaml.safe_load((DOCS / "prometheus" / "alerts.yaml").read_text())
DASHBOARD = json.loads((DOCS / "grafana" / "headgate.json").read_text())
PAGE = (DOCS / "observe.md").read_text()
TARGETS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of buckets."""


def exposed() -> dict[str, set[str]]:
    """The names of all samples that are shown, each with its labels."""
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
    """All parts of an expression."""
    yield expression
    for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector"):
        part = getattr(expression, name, None)
        for each in part if isinstance(part, list) else [part]:
            if each is not None:
                yield from nodes(each)


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression names."""
    found = nodes(promql_parser.parse(expression))
    return {node.name for node in found if isinstance(node, promql_parser.VectorSelector) and node.name}


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_is_valid_and_names_metrics_and_labels_that_there_are(expression: str) -> None:
    known, named = exposed(), metrics_of(expression)
    assert named
    assert named <= known.keys()
    labels = set.union(*(known[name] for name in named))
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(filter(None, re.split(r",\s*", grouped))) <= labels
    for matched in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression):
        assert matched in labels


def test_the_parts_of_an_expression_are_all_looked_at() -> None:
    """So that the test above means something."""
    expression = (
        'topk(3, sum by (x) (rate(a{b="c"}[5m]))) > 10 * -(max(d offset 1d)) and histogram_quantile(0.9, e) > 1'
    )
    assert metrics_of(expression) == {"a", "d", "e"}


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        promql_parser.parse_duration(alert.get("for", "1m"))
        for label in re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())):
            assert re.search(rf"by \([^)]*\b{label}\b", alert["expr"]), (alert["alert"], label)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_a_section_that_says_what_it_means_what_to_look_at_and_what_to_do(
    alert: dict[str, Any],
) -> None:
    name = alert["alert"]
    assert alert["annotations"]["runbook_url"] == f"operate.md#{name.lower()}"
    sections = (DOCS / "operate.md").read_text().split("\n### ")
    (section,) = [section for section in sections if section.startswith(f"{name}\n")]
    assert re.findall(r"^\*\*(.+?):\*\* \S", section, re.MULTILINE) == ["Means", "Look at", "Do"]


def test_the_page_lists_the_alerts_there_are() -> None:
    assert re.findall(r"^\| `(Headgate\w+)` \|", PAGE, re.MULTILINE) == [alert["alert"] for alert in alerts()]


def test_the_page_lists_the_metrics_there_are() -> None:
    rows = re.findall(r"^\| `(headgate_\w+)` \| (\w+) \|(.*?)\| (.*) \|$", PAGE, re.MULTILINE)
    assert [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows] == [
        (family.shown_name, str(family.kind), family.labels, family.help) for family in METRICS.values()
    ]


def test_the_dashboard_is_one_that_grafana_can_draw() -> None:
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


def test_every_metric_that_tells_of_trouble_is_on_the_dashboard() -> None:
    drawn = set.union(
        *(
            metrics_of(target["expr"].replace("$__rate_interval", "5m"))
            for panel in panels()
            for target in panel["targets"]
        )
    )
    shown = {name.removesuffix("_bucket") for name in drawn}
    unseen = {family.shown_name for family in METRICS.values()} - shown
    assert unseen == {
        "headgate_build_info",
        "headgate_caller_last_request_timestamp_seconds",
        "headgate_nodes",
        "headgate_config_broken",
        "headgate_denials_unlogged_total",
        "headgate_peeks_total",
        "headgate_process_start_time_seconds",
        "headgate_refunds_total",
        "headgate_resets_total",
        "headgate_rule_degraded_total",
        "headgate_rules_broken",
        "headgate_rules_contact_timestamp_seconds",
        "headgate_rules_stale",
        "headgate_store_calls_total",
        "headgate_unmatched_principals_total",
        "headgate_worker_starts_total",
    }


def test_every_alert_fires_in_a_case_and_does_not_in_another() -> None:
    """Says Prometheus' own tool."""
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


def test_the_metrics_that_stand_for_those_of_envoyproxy_ratelimit_are_there_with_their_labels() -> None:
    known = exposed()
    page = (DOCS / "migrating-ratelimit.md").read_text()
    named = re.findall(r"(headgate_[a-z_]+)(?:\{([^}]*)\})?", page)
    assert len(named) > 15
    for name, labels in named:
        assert name in known or f"{name}_bucket" in known, name
        assert set(re.findall(r"(\w+)=", labels)) <= (known.get(name) or known[f"{name}_bucket"]), name
