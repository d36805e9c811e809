"""``headgate serve``: its options, as arguments or as ``HEADGATE_*`` variables; arguments take precedence."""

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
from headgate.core.numbers import printable, short
from headgate.server.settings import InvalidSetting, Settings


class Option(NamedTuple):
    """An option of the command."""

    setting: str
    """The field of `Settings`."""
    metavar: str
    about: str
    default: object

    @property
    def argument(self) -> str:
        return "--" + self.setting.replace("_", "-")

    @property
    def variable(self) -> str:
        return "HEADGATE_" + self.setting.upper()


def _groups() -> Mapping[str, list[Option]]:
    groups: dict[str, list[Option]] = {}
    title = ""
    for each in [each for each in fields(Settings) if "about" in each.metadata]:
        title = each.metadata["group"] or title
        option = Option(each.name, each.metadata["metavar"], each.metadata["about"], each.default)
        groups.setdefault(title, []).append(option)
    return groups


GROUPS = _groups()
"""All options by group, from `Settings`."""
OTHER_VARIABLES = frozenset(
    {"HEADGATE_URL", "HEADGATE_CALLER_KEY", "HEADGATE_ADMIN_KEY", "HEADGATE_ADMIN_URL", "HEADGATE_PROGRESS"}
)
"""Variables of other commands."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        _serve,
        "answer checks over HTTP, gRPC and Envoy's rate limit protocol",
        more="Every option is also read from the environment: --http-port from HEADGATE_HTTP_PORT, and so on.\n\n"
        "SIGTERM fails health checks, drains after --drain-delay and completes requests in progress. SIGINT drains\n"
        "immediately. A second signal shortens draining.\n"
        "Files are watched: rules, certificates, caller keys, identity. SIGHUP rereads them.\n\n"
        "Exit codes: 0 stopped by a signal, 1 it could not start, 2 wrong usage.",
        examples="headgate serve\n"
        "headgate serve --rules rules.yaml --store redis://localhost:6379/0 --workers 4\n"
        "headgate serve --envoy-config ratelimit --host 0.0.0.0\n"
        "headgate serve --rules rules.yaml --tls-cert server.pem --tls-key server.key --client-ca clients.pem\n"
        "HEADGATE_RULES=rules.yaml HEADGATE_HTTP_PORT=9000 headgate serve --log-format json",
    )
    add_options(parser)
    parser.add_argument("--check", action="store_true", help="only report whether it could start")


def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    settings = settings_of(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        terminal.write_error(f"headgate: {warning}")
    from headgate.cli import serving  # noqa: PLC0415  an extra, slow to load

    return (serving.check if arguments.check else serving.run)(settings, terminal)


def options() -> Iterator[Option]:
    for group in GROUPS.values():
        yield from group


def shown(default: object) -> str:
    """Return a default as on the command line."""
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def add_options(parser: argparse.ArgumentParser) -> None:
    for title, group in GROUPS.items():
        arguments = parser.add_argument_group(title)
        for option in group:
            known = f" [{shown(option.default)}]" if option.default not in {"", ()} else ""
            arguments.add_argument(option.argument, metavar=option.metavar, help=f"{option.about}{known}")


def settings_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings of arguments and environment. Raises UsageError."""
    given: dict[str, Any] = {}
    named: dict[str, str] = {}
    for option in options():
        argument, variable = getattr(arguments, option.setting), environment.get(option.variable)
        text = variable if argument is None else argument
        named[option.setting] = option.argument if argument is not None or not variable else option.variable
        if text is not None and (text or argument is not None):  # an empty variable counts as unset
            given[option.setting] = _parsed(named[option.setting], text, option.default)
    try:
        return Settings(**given)
    except InvalidSetting as error:
        raise UsageError(f"{named[error.name]}: {error}") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each unknown HEADGATE_ variable."""
    known = {option.variable for option in options()} | OTHER_VARIABLES
    warnings = []
    for name in sorted(environment):
        if name.startswith("HEADGATE_") and name not in known:
            near = get_close_matches(name, known, 1)
            meant = f": did you mean {near[0]}?" if near else ""
            warnings.append(f"{printable(name)} in the environment is not an option, and has no effect{meant}")
    return warnings


def _plain(text: str) -> str:
    """Validate a number. Raises ValueError: Python also accepts 8_0, and digits of other scripts."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return text


def _parsed(name: str, text: str, default: object) -> object:
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
        raise UsageError(f"{name} must be on or off, not {short(text)}") from None
    except ValueError:
        raise UsageError(f"{name} must be a number, not {short(text)}") from None
    return text
