"""``headgate serve``: its options, as arguments or as ``HEADGATE_*`` variables; arguments take precedence."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from headgate.cli.command import Commands, Terminal, option
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.messages import printable
from headgate.server.settings import InvalidSetting, Settings


class Option(NamedTuple):
    setting: str
    metavar: str
    about: str
    default: object
    group: str
    """The heading that it begins; empty: that of the option before."""

    @property
    def argument(self) -> str:
        return "--" + self.setting.replace("_", "-")

    @property
    def variable(self) -> str:
        return "HEADGATE_" + self.setting.upper()


OTHER_VARIABLES = frozenset(
    {"HEADGATE_URL", "HEADGATE_CALLER_KEY", "HEADGATE_ADMIN_KEY", "HEADGATE_ADMIN_URL", "HEADGATE_PROGRESS"}
)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


COMMANDS = Commands()


def options() -> list[Option]:
    """Return all options of `Settings`, in their order."""
    names = "metavar", "about", "group"
    found = [(each, each.metadata) for each in fields(Settings) if "about" in each.metadata]
    return [Option(each.name, default=each.default, **{name: known[name] for name in names}) for each, known in found]


def shown(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def add_options(parser: argparse.ArgumentParser) -> None:
    group: Any = parser
    for each in options():
        group = parser.add_argument_group(each.group) if each.group else group
        known = f" [{shown(each.default)}]" if each.default not in {"", ()} else ""
        group.add_argument(each.argument, metavar=each.metavar, help=f"{each.about}{known}")


@COMMANDS.command("serve", add_options, option("--check", "only report whether the service could start"))
def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Answer checks over HTTP, gRPC and Envoy's rate limit protocol.

    Every option is also read from the environment: --http-port from HEADGATE_HTTP_PORT, and so on.

    After SIGTERM, health checks fail for --drain-delay, and then requests in progress are completed. SIGINT
    skips the delay. A second signal skips to the next stage.
    Files are watched: rules, certificates, caller keys, identity. SIGHUP reads them again immediately.

    Exit codes: 0 stopped by a signal, 1 it could not start, 2 usage error.

    Examples:
      headgate serve
      headgate serve --rules rules.yaml --store redis://localhost:6379/0 --workers 4
      headgate serve --rules rules.yaml --tls-cert server.pem --tls-key server.key --client-ca clients.pem
      HEADGATE_RULES=rules.yaml HEADGATE_HTTP_PORT=9000 headgate serve --log-format json
    """
    settings = settings_of(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        terminal.write_error(f"headgate: {warning}")
    from headgate.cli import serving  # noqa: PLC0415  an extra, slow to load

    return (serving.check if arguments.check else serving.run)(settings, terminal)


def settings_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    given: dict[str, Any] = {}
    named: dict[str, str] = {}
    for each in options():
        argument, variable = getattr(arguments, each.setting), environment.get(each.variable)
        text = variable if argument is None else argument
        named[each.setting] = each.argument if argument is not None or not variable else each.variable
        if text is not None and (text or argument is not None):  # an empty variable counts as unset
            given[each.setting] = _parsed(named[each.setting], text, each.default)
    try:
        return Settings(**given)
    except InvalidSetting as error:
        raise UsageError(f"{named[error.name]}: {error}") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    known = {option.variable for option in options()} | OTHER_VARIABLES
    warnings = []
    for name in sorted(environment):
        if name.startswith("HEADGATE_") and name not in known:
            near = get_close_matches(name, known, 1)
            meant = f": did you mean {near[0]}?" if near else ""
            warnings.append(f"{printable(name)} in the environment is not an option, and has no effect{meant}")
    return warnings


def _parsed(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in _SWITCHES:
            raise UsageError(f"{name} must be on or off, not {short(text)}")
        return _SWITCHES[text.lower()]
    if isinstance(default, int | float):
        with suppress(ValueError):
            if _NUMBER.fullmatch(text):  # Python also accepts 8_0, and digits of other scripts
                return type(default)(text)
        raise UsageError(f"{name} must be a number, not {short(text)}")
    return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(default, tuple) else text
