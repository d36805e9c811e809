from __future__ import annotations

from typing import Any

import pytest

from headgate.server.settings import InvalidSetting, Settings


@pytest.mark.parametrize(
    ("name", "values", "message"),
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
        ("rules", {"rules": "no/such/rules.yaml"}, "file .* does not exist"),
        ("envoy_config", {"envoy_config": "no/such/folder"}, "folder .* does not exist"),
        ("tls_key", {"tls_cert": __file__}, "together"),
        ("tls_cert", {"tls_key": __file__}, "together"),
        ("client_ca", {"client_ca": __file__}, "--tls-cert"),
        ("trusted_proxies", {"trusted_proxies": ("10.0.0.0/8", "10.0.0.1/8")}, "host bits"),
    ],
)
def test_invalid_settings_are_refused_with_their_name_and_a_correction(
    name: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message) as caught:
        Settings(**values)
    assert caught.value.name == name


def test_memory_cannot_be_shared_by_workers() -> None:
    with pytest.raises(InvalidSetting, match="each would count separately"):
        Settings(workers=2)
    assert Settings(workers=2, store="redis://localhost").workers == 2


def test_a_store_on_the_network_has_a_timeout() -> None:
    for store, added in (
        *(
            ("memory", ""),
            ("memory:?max_keys=10", ""),
            ("redis://host:6379/0", "?timeout=1.0"),
            ("redis://host?timeout=0.5", ""),
        ),
        *(
            (f"{address}=3", "&timeout=1.0")
            for address in ("rediss+cluster://a?connections", "redis://a?connect_timeout")
        ),
    ):
        assert Settings(store=store).store_address == f"{store}{added}"


def test_a_decision_waits_as_long_as_its_api_can_unless_the_address_has_a_timeout() -> None:
    settings = Settings(store="redis://host?connect_timeout=3")
    assert (settings.rls_seconds, settings.api_seconds) == (0.015, 0.1)
    settings = Settings(store="redis://host?connect_timeout=3&timeout=0.05")
    assert (settings.rls_seconds, settings.api_seconds) == (None, None)


def test_a_starting_node_waits_for_its_store_as_long_as_the_address_permits() -> None:
    for store, seconds in (
        ("memory", 0.25),
        ("redis://host", 0.25),
        ("redis://host?timeout=0.05", 0.25),
        ("redis://host?timeout=5", 5),
    ):
        assert Settings(store=store).start_seconds == seconds, store


def test_the_cache_and_the_circuit_breaker_are_options_of_the_store() -> None:
    options = Settings(cache_peeks=0.0, cache_denials=0.0, breaker_failures=7, breaker_pause=9.0).store_options
    expected = {"peeks": 0.0, "denials": 0.0, "fewest": 1, "failures": 7, "pause": 9.0, "longest_pause": 9.0}
    assert options == expected


def test_limits_are_shared_by_all_workers_of_all_nodes_and_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings(store="redis://:secret@host"))
    assert Settings(workers=3, nodes=4, store="redis://localhost").shares == 12
    assert Settings(workers=3, store="redis://localhost").shares is None, "the store counts them"
