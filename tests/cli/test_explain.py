"""``headgate explain``: text, JSON and exit codes."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from headgate.engine import Engine
from headgate.policy.request import Request
from tests.cli.conftest import Cli
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
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


def test_text(rules: str, cli: Cli) -> None:
    out = cli(f"explain --rules {rules} --user 42 --method post /orders//7").out
    assert out.splitlines() == [
        "would pass: rule orders-user is the most restrictive",
        "the request, for the rules: user 42, endpoint /orders/7, tier premium",
        "",
        "orders-user applies",
        "  3/hour (tier premium): 3 of 3 left, normal",
        "  key orders-user@user|tb:3600000000 of 42",
        "",
        "free-only does not apply: it is for tier free, and the tier is premium",
    ]


def test_refusals(rules: str, cli: Cli) -> None:
    with redis_server() as server:
        with Engine(rules, store=server.address) as engine:
            assert engine.check(Request({"user": "7"}, "/orders", "POST"))
        words = f"explain --user 7 --method POST /orders --rules {rules} --store {server.address}"
        assert cli(words, code=1) == (refused := cli(words, code=1))
    assert "would be refused: rule orders-user, for another" in refused.out
    assert "0 of 1 left, throttled, refused for another" in refused.out


def test_json(rules: str, cli: Cli) -> None:
    words = f"explain --rules {rules} --user {'x' * 200} --json /"
    data = json.loads(cli(f"{words} --attribute region=eu").out)
    assert (data["allowed"], data["verdict"], data["facts"]["region"]) == (True, "unlimited", "eu")
    assert [rule["applies"] for rule in data["rules"]] == [False, False]
    (limit,) = json.loads(cli(f"{words} --tier free").out)["rules"][1]["limits"]
    assert limit["principal"] == f"blake2b:{blake2b(b'x' * 200, digest_size=16).hexdigest()}"
    assert limit["remaining"] == 10


def test_an_unavailable_store_is_reported(rules: str, cli: Cli) -> None:
    store = f"redis://127.0.0.1:{free_port()}?timeout=30"
    out = cli(f"explain --rules {rules} --user 42 --method POST /orders --store {store}").out
    assert "the store did not decide (storage_unavailable), so the usage recorded there is unknown" in out


def test_wrong_usage(rules: str, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for name in ("HEADGATE_RULES", "HEADGATE_URL"):
        monkeypatch.delenv(name, raising=False)
    for words, message in (
        ("/", "--rules FILE, or the --url"),
        ("--rules /no/such/file /", "cannot be read"),
        ("--rules RULES --attribute region /", "NAME=VALUE"),
        ("--rules RULES /../etc", ".."),
        ("--rules RULES --cost much /", "--cost"),
        ("--rules RULES --store disk /", "disk"),
        ("--rules RULES --user 42", "give the PATH"),
        ("--rules RULES --url http://127.0.0.1:1 /", "use one of them"),
    ):
        assert message in cli(f"explain {words.replace('RULES', rules)}", code=2).err, words


def test_rules_and_store_from_the_environment(rules: str, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("HEADGATE_RULES", rules)
    assert "no rule applies" in cli("explain /").out
    monkeypatch.setenv("HEADGATE_STORE", "disk")
    assert "disk" in cli("explain /", code=2).err


def test_a_running_service_explains_with_its_rules_and_usage(
    rules: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    request = "--method POST /orders/7"
    with listening(RULES) as found:
        url = f"http://127.0.0.1:{found.http}"
        by_service = cli(f"explain --url {url} --timeout 60 --user 42 {request}")
        assert by_service == cli(f"explain --rules {rules} --user 42 {request}")
        for _ in range(3):
            cli(f"check --url {url} --timeout 60 --user 42 {request}")
        monkeypatch.delenv("HEADGATE_RULES", raising=False)
        monkeypatch.setenv("HEADGATE_URL", url)
        refused = cli(f"explain --timeout 60 --json --user 42 {request}", code=1).out
        assert json.loads(refused)["allowed"] is False
        cli(f"explain --timeout 60 --user 7 {request}")


@pytest.fixture
def ratelimit(tmp_path: Path) -> str:
    folder = tmp_path / "ratelimit"
    folder.mkdir()
    limit = "{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}"
    banned = "{key: user, value: mallory, rate_limit: {unit: hour, requests_per_unit: 0}}"
    (folder / "edge.yaml").write_text(f"domain: edge\ndescriptors: [{limit}, {banned}]\n")
    return str(folder)


def test_a_folder_for_envoy_is_explained_by_descriptors(ratelimit: str, cli: Cli) -> None:
    lines = cli(f"explain --rules {ratelimit} --entry user=ada").out.splitlines()
    assert lines == ["would pass (limited): edge.user", "  2/hour fixed_window: 2 of 2 left"]
    banned = cli(f"explain --rules {ratelimit} --domain edge --entry user=mallory --json", code=1).out
    assert json.loads(banned)["outcome"] == "banned"
    assert "--entry KEY=VALUE of a descriptor" in cli(f"explain --rules {ratelimit} /orders", code=2).err


def test_such_a_folder_is_validated_and_listed_alike(ratelimit: str, cli: Cli) -> None:
    cli(f"rules validate {ratelimit}")
    listed = cli(f"rules list {ratelimit}").out.splitlines()
    assert listed == ["edge.user: 2 per HOUR", "edge.user_mallory: 0 per HOUR"]
    assert len(json.loads(cli(f"rules list {ratelimit}/edge.yaml --json").out)["descriptors"]) == 2


def test_a_descriptor_is_explained_by_a_running_service(ratelimit: str, cli: Cli) -> None:
    with service("--envoy-config", ratelimit) as running:
        words = f"explain --url http://127.0.0.1:{running.started().http_port} --domain"
        for _ in range(3):
            assert cli(f"{words} edge --entry user=ada").out.endswith("\n  2/hour fixed_window: 2 of 2 left\n")
        refused = cli(f"{words} edge --entry user=ada --cost 3 --json", code=1).out
        assert json.loads(refused)["outcome"] == "too_many"
        unknown = cli(f"{words} other --entry user=ada").out
        assert "would pass (unmatched): no file has the domain 'other'" in unknown
        assert "--entry KEY=VALUE of a descriptor" in cli(f"{words} edge", code=2).err


def test_a_service_without_descriptors_has_none_to_explain(cli: Cli) -> None:
    with service() as running:
        words = f"explain --url http://127.0.0.1:{running.started().http_port} --domain edge --entry user=ada"
        assert "no files of envoyproxy/ratelimit" in cli(words, code=2).err
