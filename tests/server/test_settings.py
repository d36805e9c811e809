from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.server.settings import InvalidSetting, Settings


def test_every_setting_has_a_default_that_works() -> None:
    assert Settings().store_address == "memory"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("http_port", {"http_port": 65_536}, "65535"),
        ("http_port", {"http_port": True}, "whole number"),
        ("grpc_port", {"http_port": 9000, "grpc_port": 9000}, "9000"),
        ("workers", {"workers": 0}, "from 1"),
        ("nodes", {"nodes": -1}, "from 0"),
        ("deny_status", {"deny_status": 200}, "from 400"),
        ("cache_denials", {"cache_denials": 61.0}, "from 0 to 60"),
        ("breaker_failures", {"breaker_failures": 0}, "from 1"),
        ("breaker_pause", {"breaker_pause": 0.0}, "from 0.001 to 60"),
        ("drain_delay", {"drain_delay": -1.0}, "from 0 to 3600"),
        ("drain_seconds", {"drain_seconds": float("nan")}, "nan"),
        ("max_in_flight", {"max_in_flight": 0}, "from 1"),
        ("on_store_failure", {"on_store_failure": "explode"}, "local, allow, deny"),
        ("log_format", {"log_format": "xml"}, "text, json"),
        ("log_level", {"log_level": "loud"}, "debug"),
        ("rules", {"rules": "no/such/rules.yaml"}, "no file"),
        ("envoy_config", {"envoy_config": "no/such/folder"}, "no folder"),
        ("tls_key", {"tls_cert": __file__}, "together"),
        ("tls_cert", {"tls_key": __file__}, "together"),
        ("client_ca", {"client_ca": __file__}, "--tls-cert"),
        ("trusted_proxies", {"trusted_proxies": ("10.0.0.0/8", "10.0.0.1/8")}, "host bits"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name_and_what_would_be_right(
    name: str, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidSetting, match=said) as caught:
        Settings(**values)
    assert caught.value.name == name


def test_memory_cannot_be_shared_by_workers_and_the_reason_is_told() -> None:
    with pytest.raises(InvalidSetting, match="each would count on its own"):
        Settings(workers=2)
    assert Settings(workers=2, store="redis://localhost").workers == 2


@pytest.mark.parametrize(
    ("store", "address"),
    [
        ("memory:?max_keys=10", "memory:?max_keys=10"),
        ("redis://host:6379/0", "redis://host:6379/0?timeout=1.0"),
        ("rediss+cluster://a,b?connections=4", "rediss+cluster://a,b?connections=4&timeout=1.0"),
        ("redis://host?connect_timeout=3", "redis://host?connect_timeout=3&timeout=1.0"),
        ("redis://host?timeout=0.5", "redis://host?timeout=0.5"),
    ],
)
def test_a_store_on_the_network_has_a_timeout(store: str, address: str) -> None:
    assert Settings(store=store).store_address == address


def test_a_decision_waits_as_long_as_its_api_can_unless_the_address_has_a_timeout() -> None:
    settings = Settings(store="redis://host?connect_timeout=3")
    assert (settings.rls_seconds, settings.api_seconds) == (0.015, 0.1)
    settings = Settings(store="redis://host?connect_timeout=3&timeout=0.05")
    assert (settings.rls_seconds, settings.api_seconds) == (None, None)


@pytest.mark.parametrize(
    ("store", "seconds"),
    [("memory", 0.25), ("redis://host", 0.25), ("redis://host?timeout=0.05", 0.25), ("redis://host?timeout=5", 5)],
)
def test_a_node_that_starts_gives_its_store_a_moment_or_what_the_address_does(store: str, seconds: float) -> None:
    assert Settings(store=store).start_seconds == seconds


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings(store="redis://:secret@host"))


def test_limits_are_shared_by_all_workers_of_all_nodes() -> None:
    assert Settings(workers=3, nodes=4, store="redis://localhost").shares == 12
    assert Settings(workers=3, store="redis://localhost").shares is None, "the store counts them"


def test_files_that_exist_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.touch()
    settings = Settings(tls_cert=str(file), tls_key=str(file), client_ca=str(file), envoy_config=str(tmp_path))
    assert settings.client_ca == str(file)
