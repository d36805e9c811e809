"""``headgate rules``: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.policy.forms import rules_schema
from tests.cli.conftest import Cli
from tests.policy.written import BAD, FILES, GOOD

DESIGN, SEED = str(FILES / "good" / "design.yaml"), str(FILES / "good" / "seed.yaml")


def test_good_files_are_valid(cli: Cli) -> None:
    for path in GOOD:
        output = cli("rules validate", str(path))
        assert output.out.endswith("and it can be used\n" if output.err else "nothing wrong\n"), path


def test_a_bad_file_is_explained(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "version: 1\nrules:\n  - {id: a, quota: 1/s, methds: [GET]}\n  - {id: b, limit: 10}\n"
    Path("rules.yaml").write_text(text, encoding="utf-8")
    expected = """\
rules.yaml:3:25: error: rules[0].methds: a rule has no 'methds'
     3 |   - {id: a, quota: 1/s, methds: [GET]}
       |                         ^
       Did you mean 'methods'?

rules.yaml:4:5: error: rules[1]: 'window' missing
     4 |   - {id: b, limit: 10}
       |     ^
       accepted: limit and window together

rules.yaml: 2 problems; these rules would not be used
"""
    assert cli("rules validate rules.yaml", code=1) == ("", expected)


def test_bad_files_are_explained_as_json(cli: Cli) -> None:
    for path in BAD:
        output = json.loads(cli("rules validate --json", str(path), code=1).out)
        assert output["valid"] is False
        for problem in output["problems"]:
            assert problem["file"] == str(path)
            assert min(problem["line"], problem["column"]) >= 1, problem
            assert problem["message"]


def test_after_too_many_problems_the_rest_of_a_file_is_ignored(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nrules:\n" + "  - 5\n" * 1200)
    output = cli("rules validate", str(path), code=1).err
    assert f"{path}:1003:5: error: rules[1000]: not checked, after 1000 problems: 200 from here on" in output
    assert output.endswith(f"{path}: 1,000 problems; these rules would not be used\n")


def test_warnings_make_a_file_invalid_only_with_strict(cli: Cli) -> None:
    output = cli("rules validate", SEED)
    assert output.err.count("warning") == 5
    assert output.out == f"{SEED}: 4 rules, 5 warnings, and it can be used\n"
    written = json.loads(cli("rules validate --json", SEED).out)
    assert (written["valid"], len(written["warnings"])) == (True, 5)
    lines = cli("rules validate --strict", SEED, DESIGN, code=1).out.splitlines()
    assert lines[0] == f"{SEED}: 4 rules, 5 warnings, which --strict does not accept"
    written = json.loads(cli("rules validate --strict --json", SEED, code=1).out)
    assert (written["valid"], len(written["warnings"])) == (False, 5)
    cli("rules validate --strict", str(FILES / "good" / "other_spellings.yaml"))


def test_a_file_that_does_not_exist_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    output = cli("rules validate no-such.yaml", code=2).err
    assert output.startswith("no-such.yaml: error: cannot be read: No such file")
    assert "would not be used" not in output
    assert "no file in this folder ends in .yaml or .yml" in cli("rules validate", str(tmp_path), code=2).err


def test_the_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in ((b"version: 1", 0), (b"version: 2", 1), (b"\xff", 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        output = cli("rules validate -", code=code)
        assert (output.out + output.err).startswith("stdin:")


def test_a_file_for_envoy(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text("domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: second, requests_per_unit: 1}}\n")
    assert cli("rules validate", str(path)).out == f"{path}: descriptors of edge, nothing wrong\n"
    output = cli("rules diff", DESIGN, str(path), code=1).err
    assert "this is a file of envoyproxy/ratelimit" in output
    assert "`headgate rules validate` reads it" in output
    path.write_text("domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: secnd, requests_per_unit: 1}}\n")
    assert f"{path}:3:" in cli("rules validate", str(path), code=1).err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, domain in (("one.yaml", "edge"), ("two.yml", "mesh"), ("notes.txt", "none")):
        (tmp_path / name).write_text(
            f"domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: second, requests_per_unit: 1}}}}]\n"
        )
    return tmp_path


def test_files_for_envoy_are_validated_together(folder: Path, cli: Cli) -> None:
    one, two = str(folder / "one.yaml"), str(folder / "two.yml")
    for given in ([str(folder)], [one, two]):
        assert cli("rules validate", *given).out == f"{one}, {two}: descriptors of edge, mesh, nothing wrong\n"
    (folder / "two.yml").write_text("domain: edge\ndescriptors: [{key: b}]\n")
    assert f"the domain 'edge' is already used by {one}" in cli("rules validate", str(folder), code=1).err
    cli("rules validate --merge-domains", str(folder))


def test_files_of_both_kinds_and_all_their_problems(folder: Path, cli: Cli) -> None:
    lines = cli("rules validate", DESIGN, str(folder)).out.splitlines()
    assert lines[0] == f"{DESIGN}: 1 rule, 2 warnings, and it can be used"
    assert len(lines) == 2
    (folder / "one.yaml").write_text("domain: edge\ndescriptors: 5\n")
    bad = str(FILES / "bad" / "list.yaml")
    output = cli("rules validate", bad, DESIGN, str(folder), code=1).err
    assert output.endswith("2 files: 2 problems; these rules would not be used\n")
    cli("rules validate", bad, "no-such.yaml", code=2)
    for number, name in enumerate(("one", *range(9))):
        (folder / f"{name}.yaml").write_text(f"domain: d{number}\n")
    assert "2.yaml and 8 more: descriptors of " in cli("rules validate", str(folder)).out


def test_a_list_as_text(cli: Cli) -> None:
    lines = cli("rules list", str(FILES / "good" / "everything.yaml")).out.splitlines()
    assert lines[0].split() == ["ID", "COUNTS", "BY", "ENDPOINT", "FOR", "LIMIT"]
    (line,) = (line for line in lines if line.startswith("404"))
    assert "disabled, shadow, enforced for 5%, replaces several, text" in line
    assert lines[-1] == "tiers: 3, users: 3, allowed: 3, denied: 2"
    assert cli("rules list", str(FILES / "good" / "empty.yaml")).out == "no rules\n"


def test_a_list_as_json_is_a_rules_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = cli("rules list --json", DESIGN).out.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listed)))
    assert cli("rules diff", DESIGN, "-").out == "no difference\n"


@pytest.fixture
def newer(tmp_path: Path) -> str:
    text = Path(DESIGN).read_text().replace("limit: 100\n", "limit: 200\n").replace("window: 1m", "window: 2m")
    text = text.replace("premium: {orders-user: {limit: 1000}}", "premium: {orders-user: {limit: 1000, window: 1h}}")
    path = tmp_path / "newer.yaml"
    path.write_text(text + "allow: [{ip: 10.0.0.0/8}]\ndefault: 5/s\n")
    return str(path)


def test_a_difference_as_text(newer: str, cli: Cli) -> None:
    assert cli("rules diff", DESIGN, newer, code=1).out == (
        "+ rule default: 5/second by user\n"
        "~ rule orders-user\n"
        "    limit: 100 -> 200\n"
        "    window: 1m -> 2m\n"
        "    starts afresh: its usage is lost (the algorithm or the window changed)\n"
        '~ tiers.premium.orders-user: {"limit": 1000} -> {"limit": 1000, "window": "1h"}\n'
        "    starts afresh: its usage is lost\n"
        '+ allow: {"ip": "10.0.0.0/8"}\n'
        "\nrules: 1 added, 0 removed, 1 changed; other changes: 2\n"
    )


def test_a_difference_as_json(newer: str, cli: Cli) -> None:
    output = json.loads(cli("rules diff --json", DESIGN, newer, code=1).out)
    assert output["changed"] == [
        {
            "id": "orders-user",
            "state": "afresh",
            "because": "the algorithm or the window changed",
            "fields": [
                {"field": "limit", "before": 100, "after": 200},
                {"field": "window", "before": "1m", "after": "2m"},
            ],
        }
    ]
    assert [rule["id"] for rule in output["added"]] == ["default"]
    assert not output["same"]


def test_no_difference_is_0_and_a_bad_file_1(cli: Cli) -> None:
    assert cli("rules diff", DESIGN, DESIGN).out == "no difference\n"
    assert json.loads(cli("rules diff --json", DESIGN, DESIGN).out)["same"]
    assert "a list is not a file of rules" in cli("rules diff", DESIGN, str(FILES / "bad" / "list.yaml"), code=1).err


def test_the_schema(cli: Cli) -> None:
    assert json.loads(cli("rules schema").out) == rules_schema()


def test_as_a_program_in_another_locale() -> None:
    command = [sys.executable, "-m", "headgate.cli", "rules", "validate", str(FILES / "bad" / "misspelt.yaml")]
    environment = {**os.environ, "LANG": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "\033[" not in done.stdout + done.stderr
