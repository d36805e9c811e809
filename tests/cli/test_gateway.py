"""``headgate gateway`` without running it; see tests/gateway."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from headgate.gateway.loading import load_gateway
from headgate.gateway.model import gateway_schema
from headgate.web.apikey import digest
from tests.cli.conftest import Cli


def test_init_writes_a_valid_file_and_keeps_an_existing_one(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key = cli("gateway --init").out.split()[-1]
    gateway = load_gateway("gateway.yaml")
    assert [each.path for each in gateway.routes] == ["/orders", "/users"]
    assert gateway.api_keys
    assert [each["sha256"] for each in gateway.api_keys["keys"]] == [digest(key)]
    text = Path("gateway.yaml").read_text()
    assert key not in text
    jsonschema.validate(yaml.safe_load(text), gateway_schema())
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 30
    assert "gateway.yaml: it could start: 2 routes to 2 services" in cli("gateway --check").out
    printed = json.loads(cli("gateway --print-config").out)["static_resources"]
    assert [each["name"] for each in printed["clusters"]] == ["orders", "users", "@headgate"]
    Path("gateway.yaml").write_text(text.replace("store: memory", "#"))
    monkeypatch.setenv("HEADGATE_STORE", "postgres://localhost")
    assert "postgres" in cli("gateway --check", code=2).err
    Path("gateway.yaml").write_text("mine")
    assert "already exists" in cli("gateway --init", code=2).err
    assert Path("gateway.yaml").read_text() == "mine"
    assert cli("gateway --init other.yaml").out.split()[-1] != key
    assert "cannot be written" in cli("gateway --init nowhere/gateway.yaml", code=2).err
    assert "listeners" in json.loads(cli("gateway --schema").out)["properties"]
    assert "not allowed with" in cli("gateway --init --check", code=2).err


def test_problems_are_shown_with_their_lines(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("version: 1\nlisteners: [{prot: 8000}]\nservices: {}\nroutes: []\nrules: {}\n")
    for action in ("--check", "--print-config", "--log-level=info"):
        output = cli(f"gateway {action}", str(file), code=1).err
        assert "gateway.yaml:2:14: error: listeners[0].prot: a listener has no 'prot'" in output
        assert "2 | listeners: [{prot: 8000}]" in output
        assert "Did you mean 'port'?" in output
        assert "routes: has no route" in output
        assert "2 problems; it would not start" in output


def test_a_missing_file_is_wrong_usage(cli: Cli) -> None:
    output = cli("gateway --check nothing.yaml", code=2).err
    assert "nothing.yaml: error: cannot be read" in output
    assert "headgate gateway --init" in output
