"""``headgate rules``: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import CachedStore, MemoryStore
from headgate.cli.__main__ import main
from headgate.policy.forms import rules_schema
from tests.policy.written import BAD, FILES, GOOD

Printed = pytest.CaptureFixture[str]
DESIGN, SEED = str(FILES / "good" / "design.yaml"), str(FILES / "good" / "seed.yaml")


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_file_is_valid(path: Path, capsys: Printed) -> None:
    assert main(["rules", "validate", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("and it can be used\n" if told.err else "nothing wrong\n")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_explained(path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word for word. After a change: HEADGATE_GOLDEN=write pytest tests/cli/test_rules.py, and read the difference."""
    monkeypatch.chdir(path.parent)
    assert main(["rules", "validate", path.name]) == 1
    told = capsys.readouterr()
    golden = path.with_suffix(".txt")
    if os.environ.get("HEADGATE_GOLDEN") == "write":
        golden.write_text(told.err)
    assert told.err == golden.read_text()
    assert told.out == ""


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_explained_to_programs(path: Path, capsys: Printed) -> None:
    assert main(["rules", "validate", "--json", str(path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["valid"] is False
    for problem in told["problems"]:
        assert problem["file"] == str(path)
        assert problem["line"] >= 1
        assert problem["column"] >= 1
        assert problem["message"]


def test_of_a_file_with_too_many_problems_the_rest_is_not_looked_at(tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nrules:\n" + "  - 5\n" * 1200)
    assert main(["rules", "validate", str(path)]) == 1
    told = capsys.readouterr().err
    assert f"{path}:1003:5: error: rules[1000]: not looked at, after 1000 problems: 200 from here on" in told
    assert told.endswith(f"{path}: 1000 problems; these rules would not be used\n")


def test_warnings_do_not_make_a_file_invalid(capsys: Printed) -> None:
    assert main(["rules", "validate", SEED]) == 0
    told = capsys.readouterr()
    assert told.err.count("warning") == 5
    assert told.out == f"{SEED}: 4 rules, 5 warnings, and it can be used\n"
    assert main(["rules", "validate", "--json", SEED]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["valid"], len(written["warnings"])) == (True, 5)


def test_unless_they_are_asked_to(capsys: Printed) -> None:
    assert main(["rules", "validate", "--strict", SEED, DESIGN]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{SEED}: 4 rules, 5 warnings, which --strict does not accept"
    assert main(["rules", "validate", "--strict", "--json", SEED]) == 1
    written = json.loads(capsys.readouterr().out)
    assert (written["valid"], len(written["warnings"])) == (False, 5)
    assert main(["rules", "validate", "--strict", str(FILES / "good" / "other_spellings.yaml")]) == 0


def test_what_is_said_about_caches_is_so(capsys: Printed) -> None:
    """The service has none, and the library's is a store around a store."""
    main(["rules", "validate", SEED])
    told = capsys.readouterr().err
    assert "by itself" not in told.replace("probes by itself", "")
    assert "The service repeats what a peek was told for 50 ms" in told
    advised = re.search(r"in Python, CachedStore\(store, peeks=([0-9.]+)\)", told)
    assert advised is not None
    CachedStore(MemoryStore(), peeks=float(advised[1])).close()


def test_a_file_that_does_not_exist_is_wrong_usage(capsys: Printed) -> None:
    assert main(["rules", "validate", "no-such.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("no-such.yaml: error: cannot be read: No such file")
    assert "would not be used" not in told


def test_the_standard_input(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in ((b"version: 1", 0), (b"version: 2", 1), (b"\xff", 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert main(["rules", "validate", "-"]) == code
        told = capsys.readouterr()
        assert (told.out + told.err).startswith("stdin:")


def test_a_file_for_envoy(tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text("domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: second, requests_per_unit: 1}}\n")
    assert main(["rules", "validate", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: descriptors of edge, nothing wrong\n"
    path.write_text("domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: secnd, requests_per_unit: 1}}\n")
    assert main(["rules", "validate", str(path)]) == 1
    assert f"{path}:3:" in capsys.readouterr().err


def test_diff_knows_a_file_for_envoy_when_it_sees_one(tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text("domain: edge\ndescriptors: []\n")
    assert main(["rules", "diff", DESIGN, str(path)]) == 1
    told = capsys.readouterr().err
    assert "this is a file of envoyproxy/ratelimit" in told
    assert "`headgate rules validate` reads it" in told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, domain in (("one.yaml", "edge"), ("two.yml", "mesh"), ("notes.txt", "none")):
        (tmp_path / name).write_text(
            f"domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: second, requests_per_unit: 1}}}}]\n"
        )
    return tmp_path


def test_files_for_envoy_are_validated_together(folder: Path, capsys: Printed) -> None:
    one, two = str(folder / "one.yaml"), str(folder / "two.yml")
    for given in ([str(folder)], [one, two]):
        assert main(["rules", "validate", *given]) == 0
        assert capsys.readouterr().out == f"{one}, {two}: descriptors of edge, mesh, nothing wrong\n"
    (folder / "two.yml").write_text("domain: edge\ndescriptors: [{key: b}]\n")
    assert main(["rules", "validate", str(folder)]) == 1
    assert f"the domain 'edge' is that of {one}, too" in capsys.readouterr().err
    assert main(["rules", "validate", "--merge-domains", str(folder)]) == 0


def test_many_files_are_summed_up(folder: Path, capsys: Printed) -> None:
    for number in range(9):
        (folder / f"{number}.yaml").write_text(f"domain: d{number}\n")
    assert main(["rules", "validate", str(folder)]) == 0
    assert "2.yaml and 8 more: descriptors of " in capsys.readouterr().out


def test_files_of_both_kinds_and_all_their_problems(folder: Path, capsys: Printed) -> None:
    assert main(["rules", "validate", DESIGN, str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{DESIGN}: 1 rule, 2 warnings, and it can be used"
    assert len(lines) == 2
    (folder / "one.yaml").write_text("domain: edge\ndescriptors: 5\n")
    bad = str(FILES / "bad" / "list.yaml")
    assert main(["rules", "validate", bad, DESIGN, str(folder)]) == 1
    assert capsys.readouterr().err.endswith("2 files: 2 problems; these rules would not be used\n")
    assert main(["rules", "validate", bad, "no-such.yaml"]) == 2


def test_a_folder_without_files_is_wrong_usage(tmp_path: Path, capsys: Printed) -> None:
    assert main(["rules", "validate", str(tmp_path)]) == 2
    assert "no file in this folder ends in .yaml or .yml" in capsys.readouterr().err


def test_a_list_for_people(capsys: Printed) -> None:
    assert main(["rules", "list", str(FILES / "good" / "everything.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ID", "COUNTS", "BY", "ENDPOINT", "FOR", "LIMIT"]
    (line,) = (line for line in lines if line.startswith("404"))
    assert "disabled, shadow, enforced for 5%, replaces several, text" in line
    assert lines[-1] == "tiers: 3, users: 3, allowed: 3, denied: 2"


def test_a_list_for_programs_can_be_read_back(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["rules", "list", "--json", DESIGN]) == 0
    listed = capsys.readouterr().out.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listed)))
    assert main(["rules", "diff", DESIGN, "-"]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_an_empty_list(capsys: Printed) -> None:
    assert main(["rules", "list", str(FILES / "good" / "empty.yaml")]) == 0
    assert capsys.readouterr().out == "no rules\n"


@pytest.fixture
def newer(tmp_path: Path) -> str:
    text = Path(DESIGN).read_text().replace("limit: 100\n", "limit: 200\n").replace("window: 1m", "window: 2m")
    text = text.replace("premium: {orders-user: {limit: 1000}}", "premium: {orders-user: {limit: 1000, window: 1h}}")
    path = tmp_path / "newer.yaml"
    path.write_text(text + "allow: [{ip: 10.0.0.0/8}]\ndefault: 5/s\n")
    return str(path)


def test_a_difference_for_people(newer: str, capsys: Printed) -> None:
    assert main(["rules", "diff", DESIGN, newer]) == 1
    assert capsys.readouterr().out == (
        "+ rule default: 5/second by user\n"
        "~ rule orders-user\n"
        "    limit: 100 -> 200\n"
        "    window: 1m -> 2m\n"
        "    starts afresh: its usage is lost (the algorithm or the window is another)\n"
        '~ tiers.premium.orders-user: {"limit": 1000} -> {"limit": 1000, "window": "1h"}\n'
        "    starts afresh: its usage is lost\n"
        '+ allow: {"ip": "10.0.0.0/8"}\n'
        "\nrules: 1 added, 0 removed, 1 changed; other changes: 2\n"
    )


def test_a_difference_for_programs(newer: str, capsys: Printed) -> None:
    assert main(["rules", "diff", "--json", DESIGN, newer]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == [
        {
            "id": "orders-user",
            "state": "afresh",
            "because": "the algorithm or the window is another",
            "fields": [
                {"field": "limit", "before": 100, "after": 200},
                {"field": "window", "before": "1m", "after": "2m"},
            ],
        }
    ]
    assert [rule["id"] for rule in told["added"]] == ["default"]
    assert not told["same"]


def test_no_difference_is_0(capsys: Printed) -> None:
    assert main(["rules", "diff", DESIGN, DESIGN]) == 0
    assert main(["rules", "diff", "--json", DESIGN, DESIGN]) == 0
    assert capsys.readouterr().out.startswith("no difference\n{")


def test_a_difference_needs_two_good_files(capsys: Printed) -> None:
    assert main(["rules", "diff", DESIGN, str(FILES / "bad" / "list.yaml")]) == 1
    assert "a list is not a file of rules" in capsys.readouterr().err


def test_the_schema(capsys: Printed) -> None:
    assert main(["rules", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == rules_schema()


@pytest.mark.parametrize(("name", "code"), [("good/design.yaml", 0), ("bad/misspelt.yaml", 1), ("none.yaml", 2)])
def test_as_a_program(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate.cli", "rules", "validate", str(FILES / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "LANG": "C", "PYTHONUTF8": "0"},
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "\033[" not in done.stdout + done.stderr
