"""``headgate replay``: readable for people, JSON for programs, a page for colleagues."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.replay.logs import MergedLogs
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
    lines += [
        line(5, path="/login"),
        line(6, path="/login"),
        line(7),
        "what\n",
        line(8, user="bob"),
        line(9, user="bob"),
    ]
    (tmp_path / "access.log").write_text("".join([*lines, line(49, user="bob")]))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--rules", "rules.yaml", "access.log"]) == 0
    out = capsys.readouterr().out
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
def test_in_a_terminal_without_unicode_and_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["replay", "--rules", "rules.yaml", "access.log"]) == 0
    out.seek(0)
    shown = out.read()
    assert "\\u" not in shown
    assert "|##" in shown
    assert max(map(len, shown.splitlines())) <= 110


@pytest.mark.usefixtures("folder")
def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--rules", "rules.yaml", "access.log", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["is_complete"], told["lines"], told["unread"]) == (True, 11, 1)
    assert told["unread_first"][0][:2] == ["access.log", 9]
    (rules,) = told["rules"]
    assert (rules["requests"], rules["refused"]) == (11, 2)
    assert rules["rules"][0]["refused"]["top"] == [{"principal": "ada", "count": 2}]


@pytest.mark.usefixtures("folder")
def test_two_files_of_rules_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--rules", "rules.yaml", "--compare", "new.yaml", "access.log"]) == 0
    out = capsys.readouterr().out
    assert (
        "with new.yaml instead of rules.yaml\n  1 newly refused, of 1 principal\n  1 newly admitted, of 1 principal\n"
        in out
    )
    assert "newly refused by login-ip: 1, of 1 principal\n  192.0.2.1: 1\n" in out
    assert "no longer refused by per-user: 1, of 1 principal\n  ada: 1\n" in out


def test_a_report_is_written_whole_or_not_at_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["replay", "--rules", "rules.yaml", "access.log", "--html"]
    assert main([*asked, "report.html"]) == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert main([*asked, "nowhere/report.html"]) == 2
    assert "--html nowhere/report.html: No such file or directory" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"access.log", "new.yaml", "report.html", "rules.yaml"}


def test_logs_are_chosen_by_time_and_come_compressed_or_by_the_standard_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress((folder / "access.log").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(packed))))
    period = ["--since", "2026-10-26T09:33:21+02:00", "--until", "2026-10-26T07:33:24Z"]
    assert main(["replay", "--rules", "rules.yaml", "-", "--json", *period]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lines"], told["outside"], told["rules"][0]["refused"]) == (3, 8, 0)


def test_columns_of_a_log_become_principals_attributes_and_tiers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = "version: 1\nrules: [{id: per-tenant, dimension: tenant, when: {agent: curl}, limit: 1, window: 1m}]\n"
    (folder / "rules.yaml").write_text(f"{rules}tiers: {{gold: {{per-tenant: {{limit: 2}}}}}}")
    row = {"when": 1_793_000_000, "path": "/", "org": "acme", "plan": "gold", "user_agent": "curl"}
    (folder / "access.json").write_text(f"{json.dumps(row)}\n" * 3)
    asked = ["replay", "--rules", "rules.yaml", "access.json", "--json", "--principal", "tenant=org"]
    more = ["--attribute", "agent=agent", "--tier", "plan", "--column", "at=when"]
    assert main([*asked, *more]) == 0
    (rules_told,) = json.loads(capsys.readouterr().out)["rules"]
    assert (rules_told["requests"], rules_told["refused"]) == (3, 1)
    assert rules_told["rules"][0]["refused"]["top"] == [{"principal": "acme", "count": 1}]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["access.log"], 2, "give --rules FILE, or set HEADGATE_RULES"),
        (["--rules", "rules.yaml", "missing.log"], 2, "missing.log: No such file or directory"),
        (["--rules", "missing.yaml", "access.log"], 2, "missing.yaml"),
        (["--rules", "bad.yaml", "access.log"], 1, "these rules would not be used"),
        (["--rules", "envoy.yaml", "access.log"], 2, "envoy.yaml is for envoyproxy/ratelimit"),
        (["--rules", "rules.yaml", "--since", "noon", "access.log"], 2, "--since takes a day or a time"),
        (["--rules", "rules.yaml", "--principal", "user", "access.log"], 2, "--principal takes NAME=VALUE"),
        (["--rules", "-", "-"], 2, "only one of --rules, --compare and the logs can be -"),
        (["--rules", "rules.yaml", "--max-keys", "0", "access.log"], 2, "max_keys must be a whole number from 1"),
        (["--rules", "rules.yaml", "--since", "2030-01-01", "access.log"], 1, "No request was replayed."),
        (["--rules", "rules.yaml", "--format", "gzip", "access.log"], 2, "unknown format 'gzip'"),
    ],
)
def test_what_is_wrong_is_said(
    folder: Path, arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text("version: 1\nrules: [{id: a, limit: -1, window: 1m}]")
    (folder / "envoy.yaml").write_text("domain: edge\ndescriptors: []")
    assert main(["replay", *arguments]) == code
    captured = capsys.readouterr()
    assert told in captured.err + captured.out


@pytest.mark.usefixtures("folder")
def test_an_interrupted_replay_shows_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = MergedLogs.__iter__

    def interrupted(logs: MergedLogs) -> object:
        for number, entry in enumerate(whole(logs)):
            if number == 4:
                raise KeyboardInterrupt
            yield entry

    monkeypatch.setattr(MergedLogs, "__iter__", interrupted)
    assert main(["replay", "--rules", "rules.yaml", "access.log"]) == 130
    out = capsys.readouterr().out
    assert out.startswith("4 requests from ")
    assert "Interrupted: these are the results until then." in out
