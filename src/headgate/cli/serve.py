"""``headgate serve``: its options, as arguments or as ``HEADGATE_*`` in the environment, where arguments win."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from headgate.cli.command import Commands, Terminal, add_command
from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.core.numbers import printable, short
from headgate.server.settings import (
    API_SECONDS,
    LOG_FORMATS,
    LOG_LEVELS,
    PROXY_HEADERS,
    RLS_SECONDS,
    InvalidSetting,
    Settings,
)


class Option(NamedTuple):
    """One option."""

    setting: str
    """The field of `Settings`."""
    metavar: str
    about: str

    @property
    def argument(self) -> str:
        """As it is typed."""
        return "--" + self.setting.replace("_", "-")

    @property
    def variable(self) -> str:
        """As it is in the environment."""
        return "HEADGATE_" + self.setting.upper()


GROUPS: Mapping[str, tuple[Option, ...]] = {
    "rules and state": (
        Option("rules", "FILE", "the rules, watched for changes; or a database has them"),
        Option(
            "database",
            "URL",
            "the rules in sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE, changed by the admin plane; "
            "without --rules and --envoy-config: headgate.db in this folder",
        ),
        Option("data_dir", "DIR", "for the last good rules of a database; default: in the home of the user"),
        Option(
            "store",
            "ADDRESS",
            "where the state is: memory, redis://HOST:6379/0, rediss://, redis+sentinel://, redis+cluster://; one on "
            f"the network gets {RLS_SECONDS * 1000:g} ms for an answer to Envoy, and {API_SECONDS * 1000:g} ms for "
            "others, if its address has no timeout",
        ),
        Option("on_store_failure", "MODE", f"while the store is away, where a rule does not say: {', '.join(Mode)}"),
        Option("nodes", "N", "services that share the limits, this one included, for the mode local"),
        Option("enforcement", "ON", "off: limits are counted and reported, and refuse nothing: on or off"),
    ),
    "listening": (
        Option("host", "HOST", "the address to listen on; 0.0.0.0 or :: for all"),
        Option("http_port", "PORT", "for HTTP/1.1 and HTTP/2; 0 takes any that is free"),
        Option("grpc_port", "PORT", "for gRPC, Envoy's included; 0 takes any that is free"),
        Option("admin_host", "HOST", "the address of the admin plane; others than this machine's need TLS"),
        Option("admin_port", "PORT", "for the admin plane; 0 takes any that is free"),
        Option("admin_insecure", "ON", "the admin plane needs no TLS, since something else encrypts: on or off"),
        Option("grpc_reflection", "ON", "clients may ask which services there are: on or off"),
        Option("tls_cert", "FILE", "the certificate chain (PEM): TLS on both ports"),
        Option("tls_key", "FILE", "its private key (PEM)"),
        Option("client_ca", "FILE", "authorities (PEM) of client certificates, which are demanded then"),
    ),
    "Envoy": (
        Option(
            "envoy_config",
            "DIR",
            "files of envoyproxy/ratelimit, watched; domains they do not have are left to the rules",
        ),
        Option("envoy_merge_domains", "ON", "several of these files may have the same domain: on or off"),
        Option("envoy_shadow", "ON", "nothing is refused by these files: on or off"),
        Option("envoy_count_refused", "ON", "hits that are refused use up what is left: on or off"),
        Option("envoy_trust_tier", "ON", "believe a descriptor's entry tier: on or off"),
        Option("envoy_headers", "ON", "Envoy's clients get the headers of their limits: on or off"),
    ),
    "what clients and proxies say, and are told": (
        Option("deny_status", "STATUS", "of a refusal by forward authentication; nginx needs 401 or 403"),
        Option(
            "trusted_proxies",
            "NETWORKS",
            "who may ask for forward authentication: 10.0.0.0/8,192.0.2.7; default: this machine",
        ),
        Option("reset_format", "FORM", "X-RateLimit-Reset as seconds since 1970: epoch, or from now: seconds"),
        Option("identity", "FILE", "who their clients are: API keys, tokens (JWT), and how addresses are found"),
        Option("proxy_headers", "KIND", f"what they write, X-Original-* or X-Forwarded-*: {', '.join(PROXY_HEADERS)}"),
        Option("deprecations", "FILE", "paths of the HTTP APIs that are going to go, so that their answers say so"),
        Option("client_timestamps", "MODE", "those that are far from our clock are refused: check, or not: ignore"),
    ),
    "processes": (
        Option("workers", "N", "processes that share the ports; more than one needs a store on the network"),
        Option("drain_seconds", "SECONDS", "for requests in progress to end after SIGTERM"),
    ),
    "self-protection": (
        Option("max_checks_per_second", "N", "by all workers together, more are refused with 503; 0 for any number"),
        Option("max_in_flight", "N", "requests in progress at once, by all workers together"),
        Option("max_connections", "N", "open at once, by all workers together"),
        Option("caller_keys", "FILE", "who may ask, a line for each: NAME and the SHA-256 of the key; or database"),
    ),
    "logs and traces": (
        Option("audit_days", "DAYS", "for which the audit trail of a database is kept"),
        Option("log_format", "FORMAT", f"one of {', '.join(LOG_FORMATS)}"),
        Option("log_level", "LEVEL", f"one of {', '.join(LOG_LEVELS)}"),
        Option("log_denials", "N", "lines in a second about refusals by one rule; 0 for none"),
        Option("log_principals", "FORM", "what logs and hot keys show of who asked: digest or plain"),
        Option("log_access", "ON", "a line for every request: on or off"),
        Option("tracing", "ON", "a span for every request, sent where OTEL_EXPORTER_OTLP_ENDPOINT says: on or off"),
    ),
}
OTHER_VARIABLES = frozenset({"HEADGATE_URL", "HEADGATE_CALLER_KEY", "HEADGATE_ADMIN_KEY", "HEADGATE_ADMIN_URL"})
"""What other commands read."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_DEFAULTS = {field.name: field.default for field in fields(Settings)}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "serve",
        _serve,
        "answer checks over HTTP, gRPC and Envoy's rate limit protocol",
        more="Every option is also read from the environment: --http-port from HEADGATE_HTTP_PORT, and so on.\n\n"
        "SIGTERM and SIGINT drain: requests in progress are answered, and then it ends; a second one ends it at once.\n"
        "Files are watched: rules, certificates, caller keys, identity. SIGHUP makes it look at them at once.\n\n"
        "Exit codes: 0 it was told to end, 1 it could not start, 2 it cannot run as given.",
        examples="headgate serve\n"
        "headgate serve --rules rules.yaml --store redis://localhost:6379/0 --workers 4\n"
        "headgate serve --envoy-config ratelimit --host 0.0.0.0\n"
        "headgate serve --rules rules.yaml --tls-cert server.pem --tls-key server.key --client-ca clients.pem\n"
        "HEADGATE_RULES=rules.yaml HEADGATE_HTTP_PORT=9000 headgate serve --log-format json",
    )
    add_options(parser)
    parser.add_argument("--check", action="store_true", help="say whether it could start, and do not")


def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    settings = settings_of(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        terminal.complain(f"headgate: {warning}")
    from headgate.cli import serving  # noqa: PLC0415  what it needs is an extra, and takes time to load

    return (serving.check if arguments.check else serving.run)(settings, terminal)


def options() -> Iterator[Option]:
    """Return all options."""
    for group in GROUPS.values():
        yield from group


def default_of(option: Option) -> object:
    """Return what counts when an option is not given."""
    return _DEFAULTS[option.setting]


def shown(default: object) -> str:
    """Return a default as it would be typed."""
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options to the parser of the command."""
    for title, group in GROUPS.items():
        arguments = parser.add_argument_group(title)
        for option in group:
            default = default_of(option)
            known = f" [{shown(default)}]" if default not in {"", ()} else ""
            arguments.add_argument(option.argument, metavar=option.metavar, help=f"{option.about}{known}")


def settings_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings that the arguments and the environment make. Raises UsageError."""
    given: dict[str, Any] = {}
    named: dict[str, str] = {}
    for option in options():
        argument, variable = getattr(arguments, option.setting), environment.get(option.variable)
        text = variable if argument is None else argument
        named[option.setting] = option.argument if argument is not None or not variable else option.variable
        if text is not None and (text or argument is not None):  # an empty variable is one that is not set
            given[option.setting] = _parsed(named[option.setting], text, default_of(option))
    try:
        return Settings(**given)
    except InvalidSetting as error:
        raise UsageError(f"{named[error.name]}: {error}") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like one of ours, and is not."""
    known = {option.variable for option in options()} | OTHER_VARIABLES
    warnings = []
    for name in sorted(environment):
        if name.startswith("HEADGATE_") and name not in known:
            near = get_close_matches(name, known, 1)
            meant = f": {near[0]} may be meant" if near else ""
            warnings.append(f"{printable(name)} in the environment is not an option, and has no effect{meant}")
    return warnings


def _plain(text: str) -> str:
    """Return the text of a number. Raises ValueError: Python would also take 8_0, and the digits of other scripts."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return text


def _parsed(name: str, text: str, default: object) -> object:
    """Return what a text means, as the type of the default."""
    try:
        match default:
            case bool():
                return _SWITCHES[text.lower()]
            case int():
                return int(_plain(text))
            case float():
                return float(_plain(text))
            case tuple():
                return tuple(part.strip() for part in text.split(",") if part.strip())
    except KeyError:
        raise UsageError(f"{name}: on or off, not {short(text)}") from None
    except ValueError:
        raise UsageError(f"{name}: a number, not {short(text)}") from None
    return text
