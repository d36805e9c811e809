"""What ``headgate serve`` says when it serves: where, with what, and two ways to try it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.command import DEFAULT_URL, Terminal, bracketed, url_of
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
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
"""What is tried, if rules limit it."""
_SAMPLES = {"user": "u1", "ip": "203.0.113.9", "apikey": "k1"}
_LONGEST = 100_000
"""Bytes of rules that are read for this: clients have to wait for it."""
_SAMPLE = "x"
"""What stands for any segment of a path, and for any other value."""


def prepared(
    settings: Settings, ports: Mapping[str, int], store: str, terminal: Terminal, admin: Begun | None = None
) -> Callable[[int], None]:
    """Find out what there is to know about a service that is about to begin.

    `ports` are those of "http", "grpc" and, if there is one, the "admin" plane; `store` has no password. What is
    returned says it all, given how many rules the service has.
    """
    scheme, host = "https" if settings.tls_cert else "http", bracketed(settings.host)
    request = tried(settings)
    own = [asking(settings, ports["http"], request)] if _has_rules(settings) else []
    trials = [*own, trial(settings, ports["http"], request)]
    title = terminal.styled(f"Headgate {version('headgate')} serves", "bold")

    def say(rules: int) -> None:
        lines = {
            "HTTP": f"{scheme}://{host}:{ports['http']}",
            "gRPC": f"{host}:{ports['grpc']}" + (" (TLS)" if settings.tls_cert else ""),
            "rules": f"{rules}, {_origin(settings)}",
            "store": store + _shared_by(settings),
        }
        if "admin" in ports:
            lines["admin"] = f"{scheme}://{bracketed(settings.admin_host)}:{ports['admin']}"
        if settings.envoy_config:
            lines["Envoy"] = f"by the descriptors in {settings.envoy_config}"
        terminal.say(title)
        for name, text in lines.items():
            terminal.say(f"  {name:<6} {printable(text)}")
        if admin is not None and admin.first_key:
            say_first_key(admin.first_key, terminal)
        if admin is not None and admin.error:
            terminal.say(terminal.styled(f"the rules are the last good ones: {printable(admin.error)}", "yellow"))
        terminal.say("try it:")
        for line in trials:
            terminal.say(f"  {printable(line)}")
        terminal.out.flush()

    return say


def say_first_key(key: str, terminal: Terminal) -> None:
    """Show the key that was made since there was none."""
    terminal.say("the first key of the admin plane, for HEADGATE_ADMIN_KEY; it is shown only now:")
    terminal.say(f"  {key}")
    terminal.out.flush()


def tried(settings: Settings) -> Request:
    """Return a request that a rule limits; the usual one if none is found."""
    try:
        if settings.rules and Path(settings.rules).stat().st_size > _LONGEST:
            return USUAL
        policy = Policy(rules_of(settings).read())
    except (OSError, UsageError):  # it is being written at this moment
        return USUAL
    candidates = (USUAL, *[_request_for(rule) for rule in policy.ruleset.rules])
    return next((each for each in candidates if _is_limited(policy, each)), USUAL)


def _request_for(rule: Rule) -> Request:
    segments = [_SAMPLE if each == ANY else each for each in parsed(rule.endpoint) if each != REST]
    named = {name: _SAMPLES.get(name, _SAMPLE) for name in rule.dimensions if name not in {ENDPOINT, GLOBAL}}
    principal = {name: value for name, value in named.items() if name in PRINCIPALS}
    attributes = {name: value for name, value in named.items() if name not in PRINCIPALS} | dict(rule.when)
    method = min(rule.methods, default="GET")
    return Request(principal, "/" + "/".join(segments), method, attributes, tier=rule.tier)


def _is_limited(policy: Policy, request: Request) -> bool:
    try:
        return policy.select(request, 0).verdict is Verdict.LIMITED
    except UsageError:
        return False


def asking(settings: Settings, port: int, request: Request = USUAL) -> str:
    """Return a command line of our own that asks the service."""
    words, url = [*_ourselves(), "check"], url_of(settings.host, port, tls=bool(settings.tls_cert))
    if url != DEFAULT_URL:
        words += ["--url", url]
    if settings.tls_cert:
        words += ["--ca", "CA.pem"]
    if settings.client_ca:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    line = shlex.join(words)
    if settings.caller_keys:
        line += ' --caller-key "$KEY"'
    asked = [word for name, value in request.principal.items() for word in (f"--{name}", value)]
    asked += [word for name, value in request.attributes.items() for word in ("--attribute", f"{name}={value}")]
    asked += ["--tier", request.tier] if request.tier else []
    return f"{line} {shlex.join([*asked, '--method', request.method, request.endpoint])}"


def trial(settings: Settings, port: int, request: Request = USUAL) -> str:
    """Return a command line of curl that asks the service; without rules, for the limits that it has for Envoy."""
    words = ["curl", "-sw", r"\n"]
    if settings.tls_cert:
        words.append("-k")  # whom the certificate is for, and who signed it, is not known here
    if settings.client_ca:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    path = "/api/v1/rate-limit/check" if _has_rules(settings) else "/rlconfig"
    words.append(f"{url_of(settings.host, port, tls=bool(settings.tls_cert))}{path}")
    line = " ".join(map(shlex.quote, words))
    if settings.caller_keys:
        line += ' -H "Authorization: Bearer $KEY"'
    question = {"principal": dict(request.principal), "endpoint": request.endpoint, "method": request.method}
    question |= {"attributes": dict(request.attributes)} if request.attributes else {}
    question |= {"tier": request.tier} if request.tier else {}
    return f"{line} -d {shlex.quote(json.dumps(question))}" if _has_rules(settings) else line


def _ourselves() -> list[str]:
    """Return how this command was called, as far as that works in the same folder."""
    name, called = "headgate", sys.argv[0]
    if Path(called).name != name:
        return [sys.executable, "-m", name]
    return [name if shutil.which(name) == called else called]


def _has_rules(settings: Settings) -> bool:
    """Whether there are any, those of the example included."""
    return bool(settings.rules or settings.database) or not settings.envoy_config


def _origin(settings: Settings) -> str:
    if settings.rules:
        return f"from {settings.rules}"
    if settings.database:
        return f"from {_without_password(settings.database)}"
    return "an example; --rules FILE for your own" if _has_rules(settings) else "as only Envoy is answered"


def _shared_by(settings: Settings) -> str:
    if not settings.is_shared:
        return ", for this process alone"
    return f", shared by {settings.workers} workers" if settings.workers > 1 else ""


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"
