"""``headgate replay``: text, JSON and an HTML report."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.replay.logs import MergedLogs
from tests.cli.conftest import Cli
from tests.replay.samples import line

RULES = """
version: 1
rules:
  - {id: per-user, dimension: user, limit: 3, window: 1m}
  - {id: login-ip, dimension: ip, endpoint: /login, limit: 1, window: 1m, shadow: true}
  - {id: admin, dimension: user, endpoint: /admin/**, limit: 1, window: 1m}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "new.yaml").write_text(RULES.replace("limit: 3", "limit: 4").replace(", shadow: true", ""))
    lines = [line(second, user="ada") for second in range(5)]
    lines += [*(line(second, path="/login") for second in (5, 6)), line(7), "what\n"]
    lines += [line(second, user="bob") for second in (8, 9)]
    (tmp_path / "access.log").write_text("".join([*lines, line(49, user="bob")]))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_text(cli: Cli) -> None:
    out = cli("replay --rules rules.yaml access.log").out
    assert out.startswith("11 requests from 2026-10-26 07:33:20 to 2026-10-26 07:34:09 UTC\n")
    assert "rules.yaml: 9 admitted, 2 refused (18.2 %), of 1 principal; shadow rules would refuse 1 more\n" in out
    rows = {row.split()[0]: row for row in out.splitlines() if row}
    assert rows["per-user"].split()[1:7] == ["3/minute", "user", "8", "2", "25.0", "%"]
    assert rows["login-ip"].split()[1:7] == ["(shadow)", "1/minute", "ip", "2", "1", "50.0"]
    assert "applied to no request: admin\n" in out
    assert "most refused by per-user\n  ada: 2\n  first at 2026-10-26 07:33:23 UTC: GET / by ada\n" in out
    assert "1 request (9.1 %) matched no rule." in out
    assert "1 line could not be read, such as:\n  access.log, line 9: " in out
    assert "\033" not in out
    assert "█" in out


@pytest.mark.usefixtures("folder")
def test_in_a_terminal_without_unicode_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["replay", "--rules", "rules.yaml", "access.log"]) == 0
    out.seek(0)
    shown = out.read()
    assert "\\u" not in shown
    assert "|##" in shown
    assert max(map(len, shown.splitlines())) <= 110


@pytest.mark.usefixtures("folder")
def test_json(cli: Cli) -> None:
    output = json.loads(cli("replay --rules rules.yaml access.log --json").out)
    assert (output["is_complete"], output["lines"], output["unread"]) == (True, 11, 1)
    assert output["unread_first"][0][:2] == ["access.log", 9]
    (rules,) = output["rules"]
    assert (rules["requests"], rules["refused"]) == (11, 2)
    assert rules["rules"][0]["refused"]["top"] == [{"principal": "ada", "count": 2}]


@pytest.mark.usefixtures("folder")
def test_two_rule_files_are_compared(cli: Cli) -> None:
    out = cli("replay --rules rules.yaml --compare new.yaml access.log").out
    totals = "  1 newly refused, of 1 principal\n  1 newly admitted, of 1 principal\n"
    assert f"with new.yaml instead of rules.yaml\n{totals}" in out
    assert "newly refused by login-ip: 1, of 1 principal\n  192.0.2.1: 1\n" in out
    assert "no longer refused by per-user: 1, of 1 principal\n  ada: 1\n" in out


def test_a_report_is_written_atomically(folder: Path, cli: Cli) -> None:
    words = "replay --rules rules.yaml access.log --html"
    cli(f"{words} report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert "--html nowhere/report.html: No such file or directory" in cli(f"{words} nowhere/report.html", code=2).err
    assert {path.name for path in folder.iterdir()} == {"access.log", "new.yaml", "report.html", "rules.yaml"}


def test_the_standard_input_may_be_compressed_and_lines_are_chosen_by_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    packed = gzip.compress((folder / "access.log").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(packed))))
    period = "--since 2026-10-26T09:33:21+02:00 --until 2026-10-26T07:33:24Z"
    output = json.loads(cli(f"replay --rules rules.yaml - --json {period}").out)
    assert (output["lines"], output["outside"], output["rules"][0]["refused"]) == (3, 8, 0)


def test_columns_of_a_log_become_principals_attributes_and_tiers(folder: Path, cli: Cli) -> None:
    rules = "version: 1\nrules: [{id: per-tenant, dimension: tenant, when: {agent: curl}, limit: 1, window: 1m}]\n"
    (folder / "rules.yaml").write_text(f"{rules}tiers: {{gold: {{per-tenant: {{limit: 2}}}}}}")
    row = {"when": 1_793_000_000, "path": "/", "org": "acme", "plan": "gold", "user_agent": "curl"}
    (folder / "access.json").write_text(f"{json.dumps(row)}\n" * 3)
    columns = "--principal tenant=org --attribute agent=agent --tier plan --column at=when"
    (output,) = json.loads(cli(f"replay --rules rules.yaml access.json --json {columns}").out)["rules"]
    assert (output["requests"], output["refused"]) == (3, 1)
    assert output["rules"][0]["refused"]["top"] == [{"principal": "acme", "count": 1}]


def test_wrong_usage(folder: Path, cli: Cli) -> None:
    (folder / "bad.yaml").write_text("version: 1\nrules: [{id: a, limit: -1, window: 1m}]")
    (folder / "envoy.yaml").write_text("domain: edge\ndescriptors: []")
    for words, code, message in (
        ("access.log", 2, "set --rules FILE or HEADGATE_RULES"),
        ("--rules rules.yaml missing.log", 2, "missing.log: No such file or directory"),
        ("--rules missing.yaml access.log", 2, "missing.yaml"),
        ("--rules bad.yaml access.log", 1, "these rules would not be used"),
        ("--rules envoy.yaml access.log", 2, "envoy.yaml is for envoyproxy/ratelimit"),
        ("--rules rules.yaml --since noon access.log", 2, "--since takes a day or a time"),
        ("--rules rules.yaml --principal user access.log", 2, "--principal takes NAME=VALUE"),
        ("--rules - -", 2, "only one of --rules, --compare and the logs can be -"),
        ("--rules rules.yaml --max-keys 0 access.log", 2, "max_keys must be a whole number from 1"),
        ("--rules rules.yaml --since 2030-01-01 access.log", 1, "No request was replayed."),
        ("--rules rules.yaml --format gzip access.log", 2, "unknown format 'gzip'"),
    ):
        assert message in "".join(cli(f"replay {words}", code=code))


@pytest.mark.usefixtures("folder")
def test_an_interrupted_replay_shows_its_results(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    whole = MergedLogs.__iter__

    def interrupted(logs: MergedLogs) -> object:
        for number, entry in enumerate(whole(logs)):
            if number == 4:
                raise KeyboardInterrupt
            yield entry

    monkeypatch.setattr(MergedLogs, "__iter__", interrupted)
    out = cli("replay --rules rules.yaml access.log", code=130).out
    assert out.startswith("4 requests from ")
    assert "Interrupted: these are the results until then." in out
