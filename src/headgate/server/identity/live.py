"""Who asks, by settings that are read again while requests are answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from headgate.web.address import AddressReader
from headgate.web.identity import Identifier, Identity
from headgate.web.lines import Lines

_LOG = logging.getLogger("headgate.server")
_UNREMARKABLE = {"not configured", "absent", "known key", "verified"}


class LiveIdentifier:
    """Finds out who asks, as an `Identifier` does.

    Args:
        load: reads the settings. What it raises, the making raises, and later `refresh`, which then changes nothing.
    """

    __slots__ = ("_identifier", "_load", "_reading")

    def __init__(self, load: Callable[[], Identifier]) -> None:
        self._load = load
        self._reading = Lock()
        self._identifier = load()

    @property
    def addresses(self) -> AddressReader:
        """What finds the address of a client."""
        return self._identifier.addresses

    def identify(self, peer: str | None, lines: Lines, now: int) -> Identity:
        """Return who sent a request; see `Identifier.identify`. Why a credential proved nothing is in the debug log."""
        identity = self._identifier.identify(peer, lines, now)
        if _LOG.isEnabledFor(logging.DEBUG):
            for credential in ("apikey", "jwt"):
                if (reason := identity.reasons[credential]) not in _UNREMARKABLE:
                    _LOG.debug("a client's %s proves nothing: %s", credential, reason)
        return identity

    def refresh(self) -> None:
        """Read the settings again. Any thread may; what was read last is what counts."""
        with self._reading:
            self._identifier = self._load()
