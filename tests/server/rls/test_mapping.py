"""What descriptors mean to Headgate's rules."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.policy.envoy import Descriptor
from headgate.policy.request import Request
from headgate.server.rls.mapping import NAMES, Mapper


def mapped(*pairs: tuple[str, str], hits: int = 1, **options: Any) -> Request:
    return Mapper(**options).request("edge", Descriptor(pairs), hits)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("user", "ada")], {"principal": {"user": "ada"}}),
        ([("user_id", "ada")], {"principal": {"user": "ada"}}),
        ([("API-KEY", "ak"), ("client_ip", "192.0.2.1")], {"principal": {"apikey": "ak", "ip": "192.0.2.1"}}),
        ([("remote_address", "203.0.113.9")], {"principal": {"ip": "203.0.113.9"}}),
        ([("ip", "203.0.113.9")], {"principal": {"ip": "203.0.113.9"}}),
        ([("apikey", "ak")], {"principal": {"apikey": "ak"}}),
        ([("api_key", "ak")], {"principal": {"apikey": "ak"}}),
        ([("x-api-key", "ak")], {"principal": {"apikey": "ak"}}),
        ([("path", "/a?b=c")], {"endpoint": "/a?b=c"}),
        ([(":path", "/a")], {"endpoint": "/a"}),
        ([("endpoint", "/a")], {"endpoint": "/a"}),
        ([("method", "GET")], {"method": "GET"}),
        ([(":method", "GET")], {"method": "GET"}),
        ([("generic_key", "slow")], {"attributes": {"domain": "edge", "generic_key": "slow"}}),
        ([("destination_cluster", "api")], {"attributes": {"domain": "edge", "destination_cluster": "api"}}),
        ([("tier", "gold")], {"attributes": {"domain": "edge", "tier": "gold"}}),
        ([("domain", "other")], {}),
        ([("user", "")], {}),
        ([("user", "ada"), ("user_id", "bob")], {"principal": {"user": "ada"}}),
        ([("k", "1"), ("k", "2")], {"attributes": {"domain": "edge", "k": "1"}}),
        (
            [("user", "ada"), ("remote_address", "203.0.113.9"), ("path", "/a"), ("method", "PUT")],
            {"principal": {"user": "ada", "ip": "203.0.113.9"}, "endpoint": "/a", "method": "PUT"},
        ),
    ],
)
def test_entries_become_what_rules_look_at(pairs: list[tuple[str, str]], expected: dict[str, Any]) -> None:
    assert mapped(*pairs) == Request(**{"attributes": {"domain": "edge"}, **expected})


def test_a_masked_address_is_the_network_that_is_counted_while_lists_see_the_address() -> None:
    masked, whole = ("masked_remote_address", "203.0.113.0/24"), ("remote_address", "203.0.113.9")
    attributes = {"domain": "edge", "masked_remote_address": "203.0.113.0/24"}
    assert mapped(masked) == Request({"ip": "203.0.113.0/24"}, attributes=attributes)
    for pairs in ((masked, whole), (whole, masked)):
        assert mapped(*pairs) == Request({"ip": "203.0.113.0/24"}, attributes=attributes, address="203.0.113.9")


def test_a_tier_is_believed_only_if_that_is_asked_for() -> None:
    assert mapped(("tier", "gold"), trust_tier=True) == Request(attributes={"domain": "edge"}, tier="gold")


def test_hits_are_the_cost() -> None:
    assert mapped(("user", "ada"), hits=7).cost == 7


def test_the_table_of_the_documentation_names_all_keys() -> None:
    from headgate.server.rls import mapping  # noqa: PLC0415  the module itself, for its text

    assert mapping.__doc__ is not None
    assert all(f"``{key}``" in mapping.__doc__ for key in NAMES)
