"""The startup message of ``headgate serve``: addresses, settings, and two sample commands."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.command import DEFAULT_URL, Terminal, url_of, with_brackets
from headgate.core.errors import UsageError
from headgate.messages import printable
from headgate.policy.compiled import Policy
from headgate.policy.model import Rule
from headgate.policy.request import ENDPOINT, GLOBAL, PRINCIPALS, Request
from headgate.policy.selection import Verdict
from headgate.policy.trie import ANY, REST, parsed
from headgate.server.configuration import rules_of
from headgate.server.settings import Settings

if TYPE_CHECKING:
    from headgate.admin.plane import Begun

USUAL = Request({"user": "u1"}, "/api/v1/orders", "POST")
_SAMPLES = {"user": "u1", "ip": "203.0.113.9", "apikey": "k1"}
_LONGEST = 100_000
"""Larger rule files are not read for this, since clients are waiting."""
_SAMPLE = "x"
"""Any segment of a path, and any other value."""
_CLIENT_CERTIFICATE = ("--cert", "CLIENT.pem", "--key", "CLIENT.key")


def prepare(
    settings: Settings, ports: Mapping[str, int], store: str, terminal: Terminal, admin: Begun | None = None
) -> Callable[[int], None]:
    """Prepare the message of a service that is about to start; the result writes it, given the number of rules.

    `ports` are those of "http", "grpc" and, if there is one, the "admin" plane; `store` has no password.
    """
    scheme, host = "https" if settings.tls_cert else "http", with_brackets(settings.host)
    request = sample_request(settings)
    own = [_check_command(settings, ports["http"], request)] if _has_rules(settings) else []
    trials = [*own, trial(settings, ports["http"], request)]
    shared = f", shared by {settings.workers} workers" if settings.workers > 1 else ""
    if not settings.is_shared:
        shared = ", for this process alone"
    title = terminal.styled(f"Headgate {version('headgate')} serves", "bold")

    def write(rules: int) -> None:
        lines = {
            "HTTP": f"{scheme}://{host}:{ports['http']}",
            "gRPC": f"{host}:{ports['grpc']}" + (" (TLS)" if settings.tls_cert else ""),
            "rules": f"{rules}, {_origin(settings)}",
            "store": store + shared,
        }
        if "admin" in ports:
            lines["admin"] = f"{scheme}://{with_brackets(settings.admin_host)}:{ports['admin']}"
        if settings.envoy_config:
            lines["Envoy"] = f"by the descriptors in {settings.envoy_config}"
        terminal.write(title)
        for name, text in lines.items():
            terminal.write(f"  {name:<6} {printable(text)}")
        if admin is not None and admin.first_key:
            write_first_key(admin.first_key, terminal)
        if admin is not None and admin.error:
            terminal.write(f"the rules are the last valid ones: {printable(admin.error)}", "yellow")
        terminal.write("try it:")
        for line in trials:
            terminal.write(f"  {printable(line)}")
        terminal.out.flush()

    return write


def write_first_key(key: str, terminal: Terminal) -> None:
    terminal.write("the first key of the admin plane, for HEADGATE_ADMIN_KEY; it is shown only once:")
    terminal.write(f"  {key}")
    terminal.out.flush()


def sample_request(settings: Settings) -> Request:
    """Return a request that a rule limits, or the preferred one."""
    try:
        if settings.rules and Path(settings.rules).stat().st_size > _LONGEST:
            return USUAL
        policy = Policy(rules_of(settings).read())
    except (OSError, UsageError):  # it may be incomplete at this moment
        return USUAL
    for request in (USUAL, *[_request_for(rule) for rule in policy.ruleset.rules]):
        with suppress(UsageError):
            if policy.select(request, 0).verdict is Verdict.LIMITED:
                return request
    return USUAL


def _request_for(rule: Rule) -> Request:
    segments = [_SAMPLE if each == ANY else each for each in parsed(rule.endpoint) if each != REST]
    named = {name: _SAMPLES.get(name, _SAMPLE) for name in rule.dimensions if name not in {ENDPOINT, GLOBAL}}
    principal = {name: value for name, value in named.items() if name in PRINCIPALS}
    attributes = {name: value for name, value in named.items() if name not in PRINCIPALS} | dict(rule.when)
    method = min(rule.methods, default="GET")
    return Request(principal, "/" + "/".join(segments), method, attributes, tier=rule.tier)


def _check_command(settings: Settings, port: int, request: Request) -> str:
    name, called = "headgate", sys.argv[0]
    ours = [name if shutil.which(name) == called else called]  # what called this command, if it works in this folder
    if Path(called).name != name:
        ours = [sys.executable, "-m", name]
    words, url = [*ours, "check"], url_of(settings.host, port, tls=bool(settings.tls_cert))
    words += ["--url", url] if url != DEFAULT_URL else []
    words += ["--ca", "CA.pem"] if settings.tls_cert else []
    words += [*_CLIENT_CERTIFICATE] if settings.client_ca else []
    options = [word for name, value in request.principal.items() for word in (f"--{name}", value)]
    options += [word for name, value in request.attributes.items() for word in ("--attribute", f"{name}={value}")]
    options += ["--tier", request.tier] if request.tier else []
    key = ' --caller-key "$KEY"' if settings.caller_keys else ""
    return f"{shlex.join(words)}{key} {shlex.join([*options, '--method', request.method, request.endpoint])}"


def trial(settings: Settings, port: int, request: Request = USUAL) -> str:
    """Return a command line of curl; without rules, for Envoy's limits."""
    path = "/api/v1/rate-limit/check" if _has_rules(settings) else "/rlconfig"
    words = ["curl", "-sw", r"\n"]
    words += ["-k"] if settings.tls_cert else []  # the certificate's name and authority are unknown
    words += [*_CLIENT_CERTIFICATE] if settings.client_ca else []
    words.append(f"{url_of(settings.host, port, tls=bool(settings.tls_cert))}{path}")
    line = " ".join(map(shlex.quote, words))
    if settings.caller_keys:
        line += ' -H "Authorization: Bearer $KEY"'
    body = {"principal": dict(request.principal), "endpoint": request.endpoint, "method": request.method}
    body |= {"attributes": dict(request.attributes)} if request.attributes else {}
    body |= {"tier": request.tier} if request.tier else {}
    return f"{line} -d {shlex.quote(json.dumps(body))}" if _has_rules(settings) else line


def _has_rules(settings: Settings) -> bool:
    return bool(settings.rules or settings.database) or not settings.envoy_config


def _origin(settings: Settings) -> str:
    if settings.rules:
        return f"from {settings.rules}"
    if settings.database:
        scheme, _, rest = settings.database.partition("://")
        user, at, host = rest.rpartition("@")
        return f"from {scheme}://{user.partition(':')[0]}{at}{host}"
    return "an example; --rules FILE for your own" if _has_rules(settings) else "for Envoy only"
