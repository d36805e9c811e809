"""What a gateway tells those who watch over it: the metrics of Envoy and Headgate in one page, and its health."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headgate.gateway.envoy import Envoy, ask
from headgate.gateway.model import GatewayListener
from headgate.live import Live
from headgate.server.ports import Port, listen
from headgate.server.wire.listener import Listener
from headgate.server.wire.messages import HttpRequest, HttpResponse

_LOG = logging.getLogger("headgate.gateway")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_JSON = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_ENVOY = "/stats/prometheus?usedonly"


class Pages:
    """Answers on the admin port.

    Args:
        address: where to listen. Raises UsageError if that cannot be.
        envoy: whose statistics are shown.
        decisions: the Unix sockets of the decision service, for HTTP; none if it is elsewhere.
        settings: what follows the file of the gateway.
    """

    def __init__(self, address: GatewayListener, envoy: Envoy, decisions: list[str], settings: Live[Any]) -> None:
        self._port: Port = listen("admin", address.address, address.port)
        self._envoy, self._decisions, self._settings = envoy, decisions, settings
        self._listener: Listener | None = None
        self.is_draining = False

    async def open(self) -> None:
        """Answer from now on."""
        self._listener = Listener()
        await self._listener.serve_http(self._answer, self._port.sockets[0])

    async def close(self) -> None:
        """Answer no more."""
        if self._listener is None:
            self._port.close()
        else:
            await self._listener.close()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.method not in {b"GET", b"HEAD"}:
            return HttpResponse.of_problem(405, "Only GET is answered here.", ((b"allow", b"GET, HEAD"),))
        match request.path:
            case b"/metrics":
                return await self._metrics()
            case b"/healthz":
                return HttpResponse(200, b'{"status":"alive"}', _JSON)
            case b"/readyz":
                return await self._ready()
        return HttpResponse.of_problem(404, "Here are /metrics, /healthz and /readyz.")

    async def _metrics(self) -> HttpResponse:
        """Answer with all that can be had: what is away at the moment is missing, and an operator sees that it is."""
        pages = await asyncio.gather(self._envoys(), self._headgates())
        return HttpResponse(200, b"".join((self._own(), *pages)), (_TEXT,))

    async def _envoys(self) -> bytes:
        try:
            return await self._envoy.admin.get(_ENVOY)
        except OSError as error:
            _LOG.debug("Envoy has no statistics to show: %s", error)
            return b""

    async def _headgates(self) -> bytes:
        """Return the metrics of the decision service; each of its workers knows those of all."""
        for path in self._decisions:
            try:
                return await asyncio.to_thread(ask, path, "GET", "/metrics")
            except OSError as error:
                _LOG.debug("a worker has no metrics to show: %s", error)
        return b""

    def _own(self) -> bytes:
        statistics = self._settings.statistics()
        lines = (
            "# HELP headgate_gateway_envoy_up Whether Envoy takes requests.",
            "# TYPE headgate_gateway_envoy_up gauge",
            f"headgate_gateway_envoy_up {int(self._envoy.serves)}",
            "# HELP headgate_gateway_envoy_starts_total How often Envoy was started.",
            "# TYPE headgate_gateway_envoy_starts_total counter",
            f"headgate_gateway_envoy_starts_total {self._envoy.starts}",
            "# HELP headgate_gateway_loads_total Changes of the gateway's file, by what became of them.",
            "# TYPE headgate_gateway_loads_total counter",
            f'headgate_gateway_loads_total{{outcome="in_force"}} {statistics.loads}',
            f'headgate_gateway_loads_total{{outcome="refused"}} {statistics.failures}',
        )
        return "".join(f"{line}\n" for line in lines).encode()

    async def _ready(self) -> HttpResponse:
        if self.is_draining:
            return HttpResponse(503, b'{"status":"draining"}', (*_JSON, (b"retry-after", b"1")))
        if not self._envoy.serves:
            return HttpResponse(503, b'{"status":"starting"}', (*_JSON, (b"retry-after", b"1")))
        for path in self._decisions:
            try:
                told = await asyncio.to_thread(ask, path, "GET", "/readyz")
            except OSError:
                continue
            return HttpResponse(200, told, _JSON)
        if self._decisions:
            return HttpResponse(503, b'{"status":"undecided"}', (*_JSON, (b"retry-after", b"1")))
        return HttpResponse(200, b'{"status":"ready"}', _JSON)
