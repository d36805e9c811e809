"""What docs/conformance.md claims is in the report; docs/h2spec.py makes the report, with a program in Go."""

from __future__ import annotations

import re

from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text()
REPORT = (ROOT / "docs" / "conformance" / "h2spec.txt").read_text()


def test_the_table_is_that_of_the_report() -> None:
    found = re.findall(r"^HTTP/2 (.+): (\d+) cases, (\d+) passed", REPORT, re.MULTILINE)
    assert len(found) == 2
    for how, cases, passed in found:
        assert f"| {how} | {cases} | {passed} |" in PAGE


def test_the_report_lists_every_case() -> None:
    lines = [line for line in REPORT.splitlines() if line.startswith(("passed", "FAILED"))]
    assert len(lines) == sum(int(cases) for cases in re.findall(r"(\d+) cases", REPORT))


def test_only_what_the_page_explains_fails() -> None:
    failed = re.findall(r"^FAILED +(.+)$", REPORT, re.MULTILINE)
    assert failed == ["http2/3.5        Sends invalid connection preface"]
