"""What ``headgate serve`` says when it serves: where, with what, and a request to try."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.metadata import version

from headgate.cli.terminal import Terminal, safe
from headgate.server.settings import Settings

_QUESTION = '{"principal": {"user": "u1"}, "endpoint": "/api/v1/orders", "method": "POST"}'
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  and where to reach it then


def tell(settings: Settings, ports: Mapping[str, int], rules: int, store: str, terminal: Terminal) -> None:
    """Say what there is to know about a service that has just begun.

    Args:
        settings: its settings.
        ports: the port of each protocol, "http" and "grpc".
        rules: how many it has.
        store: its store, without a password.
        terminal: where to say it.
    """
    scheme, host = "https" if settings.tls_cert else "http", _bracketed(settings.host)
    lines = {
        "HTTP": f"{scheme}://{host}:{ports['http']}",
        "gRPC": f"{host}:{ports['grpc']}" + (" (TLS)" if settings.tls_cert else ""),
        "rules": f"{rules}, {_origin(settings)}",
        "store": store + _shared_by(settings),
    }
    if settings.envoy_config:
        lines["Envoy"] = f"by the descriptors in {settings.envoy_config}"
    terminal.say(terminal.styled(f"Headgate {version('headgate')} serves", "bold"))
    for name, text in lines.items():
        terminal.say(f"  {name:<6} {safe(text)}")
    terminal.say(f"try it:\n  {safe(trial(settings, ports['http']))}")
    terminal.out.flush()


def trial(settings: Settings, port: int) -> str:
    """Return a command line that asks the service."""
    host = _bracketed(_EVERYWHERE.get(settings.host, settings.host))
    words = ["curl", "-sw", r"\n"]
    if settings.tls_cert:
        words.append("-k")  # whom the certificate is for, and who signed it, is not known here
    if settings.client_ca:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    words.append(f"{'https' if settings.tls_cert else 'http'}://{host}:{port}/api/v1/rate-limit/check")
    line = " ".join(map(shlex.quote, words))
    if settings.caller_keys:
        line += ' -H "Authorization: Bearer $KEY"'
    return f"{line} -d {shlex.quote(_QUESTION)}"


def _origin(settings: Settings) -> str:
    return f"from {settings.rules}" if settings.rules else "an example; --rules FILE for your own"


def _shared_by(settings: Settings) -> str:
    if not settings.is_shared:
        return ", for this process alone"
    return f", shared by {settings.workers} workers" if settings.workers > 1 else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
