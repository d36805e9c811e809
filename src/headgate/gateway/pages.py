"""The admin port of a gateway: the metrics of Envoy and Headgate in one page, and its health."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headgate.gateway.envoy import Envoy, request
from headgate.gateway.model import GatewayListener
from headgate.live import Live
from headgate.server.ports import Port, listen
from headgate.server.wire.listener import Listener
from headgate.server.wire.messages import HttpRequest, HttpResponse

_LOG = logging.getLogger("headgate.gateway")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_JSON = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_OWN_METRICS = """\
# HELP headgate_gateway_envoy_up Whether Envoy takes requests.
# TYPE headgate_gateway_envoy_up gauge
headgate_gateway_envoy_up {}
# HELP headgate_gateway_envoy_starts_total How often Envoy was started.
# TYPE headgate_gateway_envoy_starts_total counter
headgate_gateway_envoy_starts_total {}
# HELP headgate_gateway_loads_total Changes of the gateway's file by outcome.
# TYPE headgate_gateway_loads_total counter
headgate_gateway_loads_total{{outcome="in_force"}} {}
headgate_gateway_loads_total{{outcome="refused"}} {}
"""


class Pages:
    """Serves the admin port. Raises UsageError if it cannot listen there.

    `decisions` are the HTTP sockets of the decision service; none if it is elsewhere.
    """

    def __init__(self, address: GatewayListener, envoy: Envoy, decisions: list[str], settings: Live[Any]) -> None:
        self._port: Port = listen("admin", address.address, address.port)
        self._envoy, self._decisions, self._settings = envoy, decisions, settings
        self._listener: Listener | None = None
        self.is_draining = False

    async def open(self) -> None:
        self._listener = Listener()
        await self._listener.serve_http(self._answer, self._port.sockets[0])

    async def close(self) -> None:
        if self._listener is None:
            self._port.close()
        else:
            await self._listener.close()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.method not in {b"GET", b"HEAD"}:
            return HttpResponse.of_problem(405, "Only GET and HEAD are allowed here.", ((b"allow", b"GET, HEAD"),))
        match request.path:
            case b"/metrics":
                return await self._metrics()
            case b"/healthz":
                return HttpResponse(200, b'{"status":"alive"}', _JSON)
            case b"/readyz":
                return await self._ready()
        return HttpResponse.of_problem(404, "The paths are /metrics, /healthz and /readyz.")

    async def _metrics(self) -> HttpResponse:
        """Return all metrics that are available now. Each worker of the decision service has those of all."""
        loads, envoy = self._settings.statistics(), self._envoy
        own = _OWN_METRICS.format(int(envoy.serving.is_set()), envoy.starts, loads.loads, loads.failures).encode()
        of_envoy, of_headgate = await asyncio.gather(
            _first([envoy.socket], "/stats/prometheus?usedonly"), _first(self._decisions, "/metrics")
        )
        return HttpResponse(200, own + (of_envoy or b"") + (of_headgate or b""), (_TEXT,))

    async def _ready(self) -> HttpResponse:
        if self.is_draining:
            return _not_ready("draining")
        if not self._envoy.serving.is_set():
            return _not_ready("starting")
        if not self._decisions:
            return HttpResponse(200, b'{"status":"ready"}', _JSON)
        answer = await _first(self._decisions, "/readyz")
        return _not_ready("undecided") if answer is None else HttpResponse(200, answer, _JSON)


def _not_ready(status: str) -> HttpResponse:
    return HttpResponse(503, f'{{"status":"{status}"}}'.encode(), (*_JSON, (b"retry-after", b"1")))


async def _first(sockets: list[str], path: str) -> bytes | None:
    """Return the first response of some servers; None if there is none."""
    for socket in sockets:
        try:
            return await request(socket, path)
        except OSError as error:
            _LOG.debug("%s did not respond to %s: %s", socket, path, error)
    return None
