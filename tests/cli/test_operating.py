"""``headgate reset`` and ``who``, with a real service."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.observe.logs import Principals
from headgate.web.apikey import digest
from tests.cli.conftest import Cli
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, endpoint: /api/v1/orders, methods: [POST], limit: 1, window: 1h}
  - {id: exports, dimension: user, endpoint: /exports, limit: 1, window: 1h}
  - {id: everybody, dimension: global, endpoint: /api/v1/orders, limit: 2, window: 1h}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("operating")
    (folder / "rules.yaml").write_text(RULES)
    (folder / "callers").write_text(f"edge {digest('a-key')}\n")
    options = "--rules", str(folder / "rules.yaml"), "--caller-keys", str(folder / "callers")
    with service(*options) as found:
        yield found.started()


@pytest.fixture
def found(running: Service, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service without usage."""
    monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{running.http_port}")
    monkeypatch.setenv("HEADGATE_CALLER_KEY", "a-key")
    for words in ("--rule everybody", "--user ada", "--user bob", "--user eve"):
        cli(f"reset {words}")
    return running


def passes(found: Service, user: str) -> bool:
    return bool(found.check(user, **{"x-api-key": "a-key"})["allowed"])


def test_a_reset_covers_all_limits_of_a_caller_except_shared_ones(found: Service, cli: Cli) -> None:
    assert [passes(found, user) for user in ("ada", "ada", "bob", "eve")] == [True, False, True, False]
    assert cli("reset --user ada").out == "reset: orders, exports\n"
    cli("check --user ada --rule orders")
    assert not passes(found, "eve")
    line = r"headgate\.resets reset rules=.orders, exports. principal=.user #\w{16}. api=reset"
    until(lambda: re.search(line, found.complained), "it is in the log", SECONDS)


def test_a_reset_with_a_path_covers_the_limits_that_apply_there(found: Service, cli: Cli) -> None:
    assert passes(found, "ada")
    assert cli("reset --user ada --method post /api/v1/orders").out.splitlines() == [
        "reset: orders",
        "not reset, since other callers share them (name one with --rule): everybody",
    ]
    first, *_ = cli("reset --user ada /api/v1/orders", code=1).out.splitlines()
    assert "orders: it is for POST, and the method is not known" in first


def test_a_shared_limit_is_reset_by_its_name(found: Service, cli: Cli) -> None:
    assert [passes(found, user) for user in ("ada", "bob", "eve")] == [True, True, False]
    reset = json.loads(cli("reset --rule everybody --json").out)
    assert reset == {"success": True, "rules": ["everybody"], "shared": [], "reason": ""}
    assert passes(found, "eve")


@pytest.mark.usefixtures("found")
def test_unused_principals_and_unknown_rules_are_reported(cli: Cli) -> None:
    unknown = cli("reset --ip 192.0.2.7", code=1).out
    assert unknown == "nothing was reset: no rule counts by ip; they count by user, global\n"
    missing = "rule 'nope' does not exist; the rules are: orders, exports, everybody\n"
    assert missing in cli("reset --rule nope --user ada", code=2).err
    assert missing in cli("check --rule nope --user ada").out  # as for any client: see `unknown_rule`


def test_limits_of_envoys_files_are_not_reset_and_their_digests_are_found(tmp_path: Path, cli: Cli) -> None:
    tree = "domain: edge\ndescriptors: [{key: remote_address, rate_limit: {unit: year, requests_per_unit: 1}}]\n"
    (tmp_path / "edge.yaml").write_text(tree)
    request = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
    with service("--envoy-config", str(tmp_path)) as running:
        place = f"http://127.0.0.1:{running.started().http_port}"
        assert [running.post("/json", request)[0] for _ in range(2)] == [200, 429]
        logged = logged_principal(running, "edge.remote_address")
        refused = cli(f"reset --url {place} --ip 192.0.2.7", code=1).out
    assert "limits of Envoy's files cannot be reset" in refused
    for words in ("--ip 192.0.2.7", "--attribute remote_address=192.0.2.7", "remote_address=192.0.2.7"):
        assert cli(f"who {logged} {words}").out == f"{logged} is remote_address=192.0.2.7\n"


def logged_principal(running: Service, rule: str) -> str:
    """The principal of the last refusal by a rule in the log."""
    line = re.compile(rf"denied rule=\S*{rule}\S* principal=(#\w{{16}})")
    until(lambda: line.search(running.complained), "it is in the log", SECONDS)
    return str(line.findall(running.complained)[-1])


def test_a_caller_without_a_key_resets_nothing(found: Service, cli: Cli) -> None:
    assert "401" in cli("reset --user ada --caller-key guessed", code=2).err
    assert found.post("/api/v1/rate-limit/reset", {"principal": {"user": "ada"}})[0] == 401


def test_a_digest_is_found_among_candidates(found: Service, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [passes(found, "ada") for _ in range(2)] == [True, False]
    logged = logged_principal(found, "orders")
    assert cli(f"who {logged} --user ada").out == f"{logged} is ada\n"
    cli(f"who {logged.removeprefix('#')} bob eve", code=1)
    monkeypatch.setattr(sys, "stdin", io.StringIO("bob\nada\n"))
    cli(f"who {logged} -")


def test_an_ipv6_address_is_found_by_its_network(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Principals().shown("2001:db8::/64")
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada\n2001:db8::1\n"))
    for words in ("--ip 2001:db8::1", "2001:db8::1", "-"):
        assert cli(f"who {shown} {words}").out == f"{shown} is 2001:db8::/64\n"


def test_wrong_usage(cli: Cli) -> None:
    for words, message in (
        ("who #12 --user ada", "a digest must be # and 16 hexadecimal digits"),
        ("who #0123456789abcdef", "cannot be reversed: give candidates"),
        ("reset", "name a caller or a rule: --user 42"),
    ):
        assert message in cli(words, code=2).err
