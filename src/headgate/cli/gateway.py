"""``headgate gateway``: Envoy and Headgate in front of services, configured by a short file."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.command import NO, OK, WRONG_USAGE, Commands, Terminal, discard_output, option, url_of
from headgate.cli.rule_files import report_problems, write_problems
from headgate.config.problems import InvalidRules
from headgate.core.errors import UsageError
from headgate.messages import counted, not_installed, printable
from headgate.server.settings import LOG_FORMATS, LOG_LEVELS
from headgate.web.apikey import digest

if TYPE_CHECKING:
    from headgate.gateway.model import Gateway, GatewayListener
    from headgate.gateway.running import ConsumerKeys

_USUAL = "gateway.yaml"


COMMANDS = Commands()


def _actions(parser: argparse.ArgumentParser) -> None:
    one_of = parser.add_mutually_exclusive_group()
    option("--init", "write an initial file with comments")(one_of)
    option("--check", "only report whether the gateway could start")(one_of)
    option("--print-config", "print the configuration of Envoy, without secrets")(one_of)
    option("--schema", "print the JSON Schema of the file, for editors")(one_of)


@COMMANDS.command(
    "gateway",
    option("FILE?", f"the YAML file; default: {_USUAL}", _USUAL),
    _actions,
    option("--log-format FORMAT", "the format of the log", LOG_FORMATS[0], choices=LOG_FORMATS),
    option("--log-level LEVEL", "the lowest level in the log", "info", choices=LOG_LEVELS),
)
def _gateway(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run Envoy in front of services, with authentication and limits.

    The file has the listeners, services, routes, callers and their limits. It is watched: a change takes
    effect without dropped connections, and an invalid change has no effect.

    After SIGTERM, health checks fail for drain_delay, and then requests in progress are completed. SIGINT
    skips the delay. A second signal skips to the next stage.
    SIGHUP reads the files again. SIGUSR1 turns enforcement off, SIGUSR2 on.

    Exit codes: 0 stopped by a signal, or success; 1 it could not start, or the file is invalid; 2 wrong
    usage.

    Examples:
      headgate gateway --init
      headgate gateway --check gateway.yaml
      HEADGATE_STORE=redis://:password@redis:6379/0 headgate gateway gateway.yaml --log-format json
    """
    if arguments.init:
        return _init(Path(arguments.file), terminal)
    if arguments.schema:
        from headgate.gateway.model import gateway_schema  # noqa: PLC0415  an extra

        terminal.write_json(gateway_schema())
        return OK
    try:
        if arguments.check or arguments.print_config:
            return _check(arguments, terminal)
        return _run(arguments, terminal)
    except InvalidRules as error:
        code = report_problems(error.problems, terminal, "it would not start")
        if not Path(arguments.file).exists():
            terminal.write_error("to create an initial file: headgate gateway --init")
        return code


def _init(file: Path, terminal: Terminal) -> int:
    """Write the file to start from, with a new API key. An existing file is left alone."""
    key = f"ak_{secrets.token_urlsafe(24)}"
    text = Path(__file__).parents[1].joinpath("gateway", "starter.yaml").read_text().replace("DIGEST", digest(key))
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file} already exists: choose another name") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    terminal.write(f"wrote {file}. Review it, then run: headgate gateway {file}")
    terminal.write(f"the API key of its user, which is not stored anywhere else: {key}")
    return OK


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from headgate.gateway.bootstrap import resources_of  # noqa: PLC0415
    from headgate.gateway.envoy import validate  # noqa: PLC0415  see above
    from headgate.gateway.loading import load_gateway  # noqa: PLC0415
    from headgate.server.private_folder import PrivateFolder  # noqa: PLC0415
    from headgate.stores import open_store  # noqa: PLC0415

    gateway = load_gateway(arguments.file, store=os.environ.get("HEADGATE_STORE") or "memory")
    resources = resources_of(gateway, "/run/headgate")
    if arguments.print_config:
        terminal.write_json(resources.whole(secret=True))
        return OK
    open_store(gateway.decisions.store).close()  # nothing is connected
    with PrivateFolder() as folder:
        refusal = validate(resources.whole(secret=False), folder.path)
    if refusal:
        terminal.write_error(
            f"headgate: {printable(arguments.file)}: Envoy rejects the configuration: {printable(refusal)}"
        )
        return NO
    write_problems(gateway.warnings, terminal, warning=True)
    found = f"{counted(len(gateway.routes), 'route')} to {counted(len(gateway.services), 'service')}"
    terminal.write(f"{printable(arguments.file)}: it could start: {found}", "green")
    return OK


def _run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from headgate.gateway.running import RunningGateway  # noqa: PLC0415  see above
    from headgate.observe import logs  # noqa: PLC0415
    from headgate.server.process import ignore_switches  # noqa: PLC0415
    from headgate.server.supervisor import CannotStart  # noqa: PLC0415

    ignore_switches()
    logs.setup(arguments.log_format, arguments.log_level)
    running = RunningGateway(
        arguments.file,
        store=os.environ.get("HEADGATE_STORE") or "memory",
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        following=_consumer_keys,
    )
    try:
        asyncio.run(running.run(lambda: _greet(arguments.file, running.gateway, terminal)))
    except CannotStart as error:
        terminal.write_error(f"headgate: {error}")
        return WRONG_USAGE if error.is_usage else NO
    return OK


def _consumer_keys(url: str, folder: Path) -> ConsumerKeys:
    try:
        from headgate.admin.follower import ConsumerFollower  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        raise UsageError(not_installed(error.name, "admin")) from None
    return ConsumerFollower(url, folder)


def _greet(file: str, gateway: Gateway, terminal: Terminal) -> None:
    try:
        terminal.write(f"Headgate {version('headgate')} is a gateway", "bold")
        for listener in gateway.listeners:
            target = f" (redirects to port {listener.redirect_to})" if listener.redirect_to else ""
            terminal.write(f"  clients  {_url(listener)}{target}")
        terminal.write(f"  file     {printable(file)}")
        for route in gateway.routes:
            required = "" if route.require == "none" else f", requires {route.require}"
            hosts = f" of {', '.join(route.hosts)}" if route.hosts else ""
            terminal.write(printable(f"  route    {route.path}{hosts} to {route.service}{required}"))
        if gateway.admin:
            terminal.write(f"  metrics  {_url(gateway.admin)}/metrics")
        terminal.write("try it:")
        first = gateway.listeners[0]
        flags = "-ik" if first.certificates else "-i"
        terminal.write(printable(f"  curl {flags} {_url(first)}{gateway.routes[0].path}"))
        terminal.out.flush()
    except OSError:  # standard output is broken, but the gateway serves
        discard_output(terminal.out)


def _url(listener: GatewayListener) -> str:
    return url_of(listener.address, listener.port, tls=bool(listener.certificates))
