"""``headgate gateway``, apart from running it, which tests/gateway does."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from headgate.cli.__main__ import main
from headgate.gateway.forms import gateway_schema
from headgate.gateway.loading import load_gateway
from headgate.web.apikey import digest


def test_init_writes_a_file_that_passes_the_check_and_leaves_one_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gateway", "--init"]) == 0
    key = capsys.readouterr().out.split()[-1]
    gateway = load_gateway("gateway.yaml")
    assert [each.path for each in gateway.routes] == ["/orders", "/users"]
    assert gateway.api_keys
    assert [each["sha256"] for each in gateway.api_keys["keys"]] == [digest(key)], "nobody else has this key"
    assert key not in Path("gateway.yaml").read_text()
    jsonschema.validate(yaml.safe_load(Path("gateway.yaml").read_text()), gateway_schema())
    assert len([line for line in Path("gateway.yaml").read_text().splitlines() if not line.startswith("#")]) <= 30
    assert main(["gateway", "--check"]) == 0
    assert "gateway.yaml: it could start: 2 routes to 2 services" in capsys.readouterr().out
    Path("gateway.yaml").write_text("mine")
    assert main(["gateway", "--init"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("gateway.yaml").read_text() == "mine"
    assert main(["gateway", "--init", "other.yaml"]) == 0
    assert capsys.readouterr().out.split()[-1] != key
    assert main(["gateway", "--init", "nowhere/gateway.yaml"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_is_wrong_is_shown_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("version: 1\nlisteners: [{prot: 8000}]\nservices: {}\nroutes: []\nrules: {}\n")
    for action in ("--check", "--print-config"):
        assert main(["gateway", action, str(file)]) == 1
        told = capsys.readouterr().err
        assert "gateway.yaml:2:14: error: listeners[0].prot: a listener has no 'prot'" in told
        assert "2 | listeners: [{prot: 8000}]" in told
        assert "Did you mean 'port'?" in told
        assert "routes: leads nowhere" in told
        assert "2 problems; it would not start" in told
    assert main(["gateway", str(file)]) == 1
    assert "Did you mean 'port'?" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--check", "nothing.yaml"]) == 2
    told = capsys.readouterr().err
    assert "nothing.yaml: error: cannot be read" in told
    assert "headgate gateway --init" in told


def test_a_store_that_cannot_be_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.yaml"
    main(["gateway", "--init", str(file)])
    file.write_text(file.read_text().replace("store: memory", "#"))
    monkeypatch.setenv("HEADGATE_STORE", "postgres://localhost")
    assert main(["gateway", "--check", str(file)]) == 2
    assert "postgres" in capsys.readouterr().err


def test_the_configuration_of_envoy_and_the_schema_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    main(["gateway", "--init", str(file)])
    capsys.readouterr()
    assert main(["gateway", "--print-config", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in printed["static_resources"]["clusters"]] == ["orders", "users", "@headgate"]
    assert main(["gateway", "--schema"]) == 0
    assert "listeners" in json.loads(capsys.readouterr().out)["properties"]


def test_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--init", "--check"]) == 2
    assert "not allowed with" in capsys.readouterr().err
