"""Settings that are read again: the new ones count, unless they are wrong."""

from __future__ import annotations

import logging

import pytest

from headgate.server.identity.live import LiveIdentifier
from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.errors import InvalidSettings
from headgate.web.identity import Identifier

LINES = [(b"x-api-key", b"ak_1")]


def with_key(key: str) -> Identifier:
    return Identifier(AddressReader(), ApiKeys({digest(key): Holder("one")}))


def test_what_is_read_again_counts_and_what_cannot_be_read_changes_nothing() -> None:
    found = [with_key("ak_1")]

    def load() -> Identifier:
        if not found:
            raise InvalidSettings("nothing is there")
        return found.pop()

    live = LiveIdentifier(load)
    assert live.identify("192.0.2.1", LINES, 0).source == "apikey"
    with pytest.raises(InvalidSettings):
        live.refresh()
    assert live.identify("192.0.2.1", LINES, 0).source == "apikey"
    found.append(with_key("ak_2"))
    live.refresh()
    assert live.identify("192.0.2.1", LINES, 0).source == "ip"
    assert live.addresses.source == "peer"


def test_why_a_credential_proves_nothing_is_told_to_those_who_look_for_it(caplog: pytest.LogCaptureFixture) -> None:
    live = LiveIdentifier(lambda: with_key("ak_2"))
    with caplog.at_level(logging.INFO, "headgate.server"):
        live.identify("192.0.2.1", LINES, 0)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "headgate.server"):
        live.identify("192.0.2.1", LINES, 0)
        live.identify("192.0.2.1", [], 0)
    assert [record.getMessage() for record in caplog.records] == ["a client's apikey proves nothing: unknown key"]
