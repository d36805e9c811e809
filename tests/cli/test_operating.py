"""``headgate reset`` and ``who``, against a real service. `tests/server/process/test_enforcement.py` has the switch."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.observe.logs import Principals
from headgate.web.apikey import digest
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, endpoint: /api/v1/orders, methods: [POST], limit: 1, window: 1h}
  - {id: exports, dimension: user, endpoint: /exports, limit: 1, window: 1h}
  - {id: everybody, dimension: global, endpoint: /api/v1/orders, limit: 2, window: 1h}
"""


@pytest.fixture
def found(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("operating")
    (folder / "rules.yaml").write_text(RULES)
    (folder / "callers").write_text(f"edge {digest('a-key')}\n")
    options = "--rules", str(folder / "rules.yaml"), "--caller-keys", str(folder / "callers")
    with service(*options) as running:
        monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{running.started().http_port}")
        monkeypatch.setenv("HEADGATE_CALLER_KEY", "a-key")
        yield running


def passes(found: Service, user: str) -> bool:
    return bool(found.check(user, **{"x-api-key": "a-key"})["allowed"])


def test_a_reset_is_for_all_limits_of_somebody_and_leaves_what_others_share(
    found: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [passes(found, "ada"), passes(found, "ada"), passes(found, "bob"), passes(found, "eve")] == [
        True,
        False,
        True,
        False,
    ]
    assert main(["reset", "--user", "ada"]) == 0
    assert capsys.readouterr().out == "reset: orders, exports\n"
    assert main(["check", "--user", "ada", "--rule", "orders"]) == 0
    assert not passes(found, "eve")
    until(lambda: "reset" in found.complained, "it is in the log", SECONDS)
    assert re.search(
        r"headgate\.resets reset rules=.orders, exports. principal=.user #\w{16}. api=reset", found.complained
    )


def test_with_a_path_it_is_for_what_applies_there_and_says_what_is_left_alone(
    found: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert passes(found, "ada")
    assert main(["reset", "--user", "ada", "--method", "post", "/api/v1/orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "reset: orders",
        "not reset, since others share them (name one with --rule): everybody",
    ]


def test_a_shared_limit_is_reset_by_its_name(found: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert [passes(found, "ada"), passes(found, "bob"), passes(found, "eve")] == [True, True, False]
    assert main(["reset", "--rule", "everybody", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"success": True, "rules": ["everybody"], "shared": [], "reason": ""}
    assert passes(found, "eve")


def test_what_no_rule_counts_by_is_told(found: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", "--ip", "192.0.2.7"]) == 1
    assert capsys.readouterr().out == "nothing was reset: no rule counts by ip; they count by user, global\n"
    assert found.complained == ""


@pytest.mark.usefixtures("found")
def test_a_rule_that_does_not_exist_is_told_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    missing = "rule 'nope' does not exist; there are: orders, exports, everybody\n"
    assert main(["reset", "--rule", "nope", "--user", "ada"]) == 2
    assert missing in capsys.readouterr().err
    assert main(["check", "--rule", "nope", "--user", "ada"]) == 0  # as for any client: see `unknown_rule`
    assert missing in capsys.readouterr().out


@pytest.mark.usefixtures("found")
def test_a_method_that_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", "--user", "ada", "/api/v1/orders"]) == 1
    first, *_ = capsys.readouterr().out.splitlines()
    assert "orders: it is for POST, and the method is not known" in first


def test_limits_of_envoys_files_are_not_reset_and_who_used_them_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = "domain: edge\ndescriptors: [{key: remote_address, rate_limit: {unit: year, requests_per_unit: 1}}]\n"
    (tmp_path / "edge.yaml").write_text(tree)
    asked = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
    with service("--envoy-config", str(tmp_path)) as running:
        place = f"http://127.0.0.1:{running.started().http_port}"
        assert [running.post("/json", asked)[0] for _ in range(2)] == [200, 429]
        until(lambda: "denied" in running.complained, "it is in the log", SECONDS)
        (logged,) = re.findall(r"principal=(#\w{16})", running.complained)
        assert main(["reset", "--url", place, "--ip", "192.0.2.7"]) == 1
    assert "limits of Envoy's files cannot be reset" in capsys.readouterr().out
    for words in (["--ip", "192.0.2.7"], ["--attribute", "remote_address=192.0.2.7"], ["remote_address=192.0.2.7"]):
        assert main(["who", logged, *words]) == 0
        assert capsys.readouterr().out == f"{logged} is remote_address=192.0.2.7\n"


def test_a_caller_without_a_key_resets_nothing(found: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", "--user", "ada", "--caller-key", "guessed"]) == 2
    assert "401" in capsys.readouterr().err
    assert found.post("/api/v1/rate-limit/reset", {"principal": {"user": "ada"}})[0] == 401


def test_a_digest_is_found_among_those_who_are_suspected(
    found: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [passes(found, "ada") for _ in range(2)] == [True, False]
    until(lambda: "denied" in found.complained, "it is in the log", SECONDS)
    (logged,) = re.findall(r"principal=(#\w{16})", found.complained)
    assert main(["who", logged, "--user", "ada"]) == 0
    assert capsys.readouterr().out == f"{logged} is ada\n"
    assert main(["who", logged.removeprefix("#"), "bob", "eve"]) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("bob\nada\n"))
    assert main(["who", logged, "-"]) == 0


def test_an_ipv6_address_is_known_by_its_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Principals().shown("2001:db8::/64")
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada\n2001:db8::1\n"))
    for words in (["--ip", "2001:db8::1"], ["2001:db8::1"], ["-"]):
        assert main(["who", shown, *words]) == 0
        assert capsys.readouterr().out == f"{shown} is 2001:db8::/64\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["who", "#12", "--user", "ada"], "a digest must be # and 16 hexadecimal digits"),
        (["who", "#0123456789abcdef"], "cannot be reversed: give candidates"),
        (["reset"], "name a caller or a rule: --user 42"),
    ],
)
def test_wrong_usage(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err
