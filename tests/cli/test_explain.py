"""``headgate explain``: readable for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.engine import Engine
from headgate.policy.request import Request
from tests.server.listening import listening
from tests.server.process.service import service
from tests.servers import free_port, redis_server

RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, methods: [POST], limit: 1, window: 1h}
  - {id: free-only, dimension: user, tier: free, limit: 10, window: 1m}
tiers:
  premium: {orders-user: {limit: 3}}
users:
  "42": {tier: premium}
deny: [{ip: 192.0.2.1}]
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


def test_for_people(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--rules", rules, "--user", "42", "--method", "post", "/orders//7"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "would pass: rule orders-user is the most restrictive",
        "as seen by the rules: user 42, endpoint /orders/7, tier premium",
        "",
        "orders-user applies",
        "  3/hour (tier premium): 3 of 3 left, normal",
        "  key orders-user@user|tb:3600000000 of 42",
        "",
        "free-only does not apply: it is for tier free, and the tier is premium",
    ]


def test_what_would_be_refused(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    with redis_server() as server:
        address = server.address
        with Engine(rules, store=address) as engine:
            assert engine.check(Request({"user": "7"}, "/orders", "POST"))
        asked = ["explain", "--rules", rules, "--store", address, "--user", "7", "--method", "POST", "/orders"]
        assert [main(asked), main(asked)] == [1, 1]
    out = capsys.readouterr().out
    assert "would be refused: rule orders-user, for another" in out
    assert "0 of 1 left, throttled, refused for another" in out


def test_for_programs(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--rules", rules, "--user", "x" * 200, "--attribute", "region=eu", "--json", "/"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["allowed"], data["verdict"], data["facts"]["region"]) == (True, "unlimited", "eu")
    assert [rule["applies"] for rule in data["rules"]] == [False, False]
    assert main(["explain", "--rules", rules, "--user", "x" * 200, "--tier", "free", "--json", "/"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["rules"][1]["limits"][0]["principal"] == f"blake2b:{blake2b(b'x' * 200, digest_size=16).hexdigest()}"
    assert data["rules"][1]["limits"][0]["remaining"] == 10


def test_lists_and_nothing(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--rules", rules, "--ip", "192.0.2.1", "/"]) == 1
    assert "deny list" in capsys.readouterr().out
    assert main(["explain", "--rules", rules, "/"]) == 0
    assert "no rule applies" in capsys.readouterr().out


def test_a_store_that_is_away_is_told(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "--rules", rules, "--user", "42", "--method", "POST", "/orders"]
    assert main([*asked, "--store", f"redis://127.0.0.1:{free_port()}?timeout=30"]) == 0
    told = "the store does not answer (storage_unavailable): the recorded usage and the decision are unknown"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/"], "--rules"),
        (["--rules", "/no/such/file", "/"], "cannot be read"),
        (["--rules", "RULES", "--attribute", "region", "/"], "NAME=VALUE"),
        (["--rules", "RULES", "/../etc"], ".."),
        (["--rules", "RULES", "--cost", "much", "/"], "--cost"),
        (["--rules", "RULES", "--store", "disk", "/"], "disk"),
    ],
)
def test_wrong_usage(rules: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *[rules if each == "RULES" else each for each in arguments]]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_the_environment_names_rules_and_store(
    rules: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_RULES", rules)
    monkeypatch.setenv("HEADGATE_STORE", "memory")
    assert main(["explain", "/"]) == 0
    assert "no rule applies" in capsys.readouterr().out


def test_without_rules_it_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADGATE_RULES", raising=False)
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    assert main(["explain", "/"]) == 2
    said = capsys.readouterr().err
    assert "--rules FILE" in said
    assert "--url" in said


def test_a_running_service_explains_by_its_rules_and_what_was_used_there(
    rules: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["--user", "42", "--method", "POST", "/orders/7"]
    with listening(RULES) as found:
        url = f"http://127.0.0.1:{found.http}"
        assert main(["explain", "--url", url, "--timeout", "60", *request]) == 0
        by_service = capsys.readouterr().out
        assert main(["explain", "--rules", rules, *request]) == 0
        assert by_service == capsys.readouterr().out
        for _ in range(3):
            assert main(["check", "--url", url, "--timeout", "60", *request]) == 0
        capsys.readouterr()
        monkeypatch.delenv("HEADGATE_RULES", raising=False)
        monkeypatch.setenv("HEADGATE_URL", url)
        assert main(["explain", "--timeout", "60", "--json", *request]) == 1
        assert json.loads(capsys.readouterr().out)["allowed"] is False
        assert main(["explain", "--timeout", "60", "--user", "7", *request[2:]]) == 0, "nothing of his was used"
        assert main(["explain", "--url", url, "--rules", rules, *request]) == 2
        assert "give one of them" in capsys.readouterr().err


def test_a_service_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", f"http://127.0.0.1:{free_port()}", "--timeout", "60", "/"]) == 2
    shown = capsys.readouterr().err
    assert "headgate serve" in shown
    assert "Traceback" not in shown


@pytest.fixture
def ratelimit(tmp_path: Path) -> str:
    folder = tmp_path / "ratelimit"
    folder.mkdir()
    limit = "{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}"
    banned = "{key: user, value: mallory, rate_limit: {unit: hour, requests_per_unit: 0}}"
    (folder / "edge.yaml").write_text(f"domain: edge\ndescriptors: [{limit}, {banned}]\n")
    return str(folder)


def test_a_folder_of_envoys_is_explained_by_descriptors(ratelimit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--rules", ratelimit, "--entry", "user=ada"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would pass (limited): edge.user",
        "  2/hour fixed_window: 2 of 2 left",
    ]
    assert main(["explain", "--rules", ratelimit, "--domain", "edge", "--entry", "user=mallory", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "banned"
    assert main(["explain", "--rules", ratelimit, "/orders"]) == 2
    assert "--entry KEY=VALUE of a descriptor" in capsys.readouterr().err


def test_such_a_folder_is_validated_and_listed_alike(ratelimit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "validate", ratelimit]) == 0
    capsys.readouterr()
    assert main(["rules", "list", ratelimit]) == 0
    assert capsys.readouterr().out.splitlines() == ["edge.user: 2 per HOUR", "edge.user_mallory: 0 per HOUR"]
    assert main(["rules", "list", f"{ratelimit}/edge.yaml", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["descriptors"]) == 2


def test_rules_are_explained_for_a_path(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--rules", rules, "--user", "42"]) == 2
    assert "give the PATH" in capsys.readouterr().err


def test_a_descriptor_is_explained_by_a_running_service(ratelimit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with service("--envoy-config", ratelimit) as running:
        url = f"http://127.0.0.1:{running.started().http_port}"
        words = ["explain", "--url", url, "--domain"]
        assert [main([*words, "edge", "--entry", "user=ada"]) for _ in range(3)] == [0, 0, 0]
        assert capsys.readouterr().out.splitlines()[-1] == "  2/hour fixed_window: 2 of 2 left"
        assert main([*words, "edge", "--entry", "user=ada", "--cost", "3", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["outcome"] == "too_many"
        assert main([*words, "other", "--entry", "user=ada"]) == 0
        assert "would pass (unmatched): no file has the domain 'other'" in capsys.readouterr().out
        assert main(["explain", "--url", url, "--domain", "edge"]) == 2
        assert "--entry KEY=VALUE of a descriptor" in capsys.readouterr().err


def test_a_service_without_descriptors_has_none_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    with service() as running:
        url = f"http://127.0.0.1:{running.started().http_port}"
        assert main(["explain", "--url", url, "--domain", "edge", "--entry", "user=ada"]) == 2
    assert "no files of envoyproxy/ratelimit" in capsys.readouterr().err
