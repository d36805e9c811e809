"""What ``headgate serve`` says when it serves: where, with what, and two ways to try it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from headgate.cli.service_options import DEFAULT_URL
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
    terminal.say("try it:")
    if _has_rules(settings):
        terminal.say(f"  {safe(asking(settings, ports['http']))}")
    terminal.say(f"  {safe(trial(settings, ports['http']))}")
    terminal.out.flush()


def asking(settings: Settings, port: int) -> str:
    """Return a command line of our own that asks the service."""
    words, url = [*_ourselves(), "check"], _url(settings, port)
    if url != DEFAULT_URL:
        words += ["--url", url]
    if settings.tls_cert:
        words += ["--ca", "CA.pem"]
    if settings.client_ca:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    line = shlex.join(words)
    if settings.caller_keys:
        line += ' --caller-key "$KEY"'
    return f"{line} --user u1 --method POST /api/v1/orders"


def trial(settings: Settings, port: int) -> str:
    """Return a command line of curl that asks the service; without rules, for the limits that it has for Envoy."""
    words = ["curl", "-sw", r"\n"]
    if settings.tls_cert:
        words.append("-k")  # whom the certificate is for, and who signed it, is not known here
    if settings.client_ca:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    path = "/api/v1/rate-limit/check" if _has_rules(settings) else "/rlconfig"
    words.append(f"{_url(settings, port)}{path}")
    line = " ".join(map(shlex.quote, words))
    if settings.caller_keys:
        line += ' -H "Authorization: Bearer $KEY"'
    return f"{line} -d {shlex.quote(_QUESTION)}" if _has_rules(settings) else line


def _url(settings: Settings, port: int) -> str:
    host = _bracketed(_EVERYWHERE.get(settings.host, settings.host))
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def _ourselves() -> list[str]:
    """Return how this command was called, as far as that works in the same folder."""
    name, called = "headgate", sys.argv[0]
    if Path(called).name != name:
        return [sys.executable, "-m", name]
    return [name if shutil.which(name) == called else called]


def _has_rules(settings: Settings) -> bool:
    """Whether there are any, be it the example."""
    return bool(settings.rules) or not settings.envoy_config


def _origin(settings: Settings) -> str:
    if settings.rules:
        return f"from {settings.rules}"
    return "an example; --rules FILE for your own" if _has_rules(settings) else "as only Envoy is answered"


def _shared_by(settings: Settings) -> str:
    if not settings.is_shared:
        return ", for this process alone"
    return f", shared by {settings.workers} workers" if settings.workers > 1 else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
