"""``headgate gateway``: Envoy in front of services, from a file of a few lines, with Headgate beside it."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.command import NO, OK, WRONG_USAGE, Commands, Terminal, add_command, silence, url_of
from headgate.cli.rule_files import refused, tell_problems
from headgate.config.problems import InvalidRules
from headgate.core.errors import UsageError, not_installed
from headgate.core.numbers import printable
from headgate.server.settings import LOG_FORMATS, LOG_LEVELS
from headgate.web.apikey import digest

if TYPE_CHECKING:
    from headgate.gateway.model import Gateway, GatewayListener
    from headgate.gateway.running import ConsumerKeys

_USUAL = "gateway.yaml"


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "gateway",
        _gateway,
        "run Envoy in front of services: who asks, may it pass, and where does it go",
        more="The file says where clients connect, which services there are, which requests go where, who callers are\n"
        "and what their limits are. It is watched: a change is put in force without a dropped connection, and one\n"
        "that is wrong changes nothing.\n\n"
        "SIGTERM lets health checks fail first, and drains after drain_delay: requests in progress are answered,\n"
        "and then it ends. SIGINT drains now. A second signal hastens.\n"
        "SIGHUP makes it look at its files at once. SIGUSR1 turns enforcement off, SIGUSR2 on.\n\n"
        "Exit codes: 0 it was told to end, or all is well; 1 it could not start, or the file cannot be used; 2 it "
        "cannot\nrun as given.",
        examples="headgate gateway --init\n"
        "headgate gateway --check gateway.yaml\n"
        "headgate gateway gateway.yaml\n"
        "HEADGATE_STORE=redis://:password@redis:6379/0 headgate gateway gateway.yaml --log-format json",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", default=_USUAL, help=f"the YAML file; default: {_USUAL}")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--init", action="store_true", help="write a file to start from, with comments")
    what.add_argument("--check", action="store_true", help="say whether it could start, and do not")
    what.add_argument("--print-config", action="store_true", help="print what Envoy would be told, without secrets")
    what.add_argument("--schema", action="store_true", help="print the JSON Schema of the file, for editors")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=LOG_FORMATS[0], help="default: %(default)s")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")


def _gateway(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.init:
        return _init(Path(arguments.file), terminal)
    if arguments.schema:
        from headgate.gateway.forms import gateway_schema  # noqa: PLC0415  what it needs is an extra

        terminal.say_json(gateway_schema())
        return OK
    try:
        if arguments.check or arguments.print_config:
            return _check(arguments, terminal)
        return _run(arguments, terminal)
    except InvalidRules as error:
        code = refused(error.problems, terminal, "it would not start")
        if not Path(arguments.file).exists():
            terminal.complain("a file to start from is written by: headgate gateway --init")
        return code


def _init(file: Path, terminal: Terminal) -> int:
    """Write the file to start from, with an API key that nobody else has. One that is there is left alone."""
    key = f"ak_{secrets.token_urlsafe(24)}"
    text = Path(__file__).parents[1].joinpath("gateway", "starter.yaml").read_text().replace("DIGEST", digest(key))
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already: name another one") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    terminal.say(f"{file} is written. Look at it, and run it with: headgate gateway {file}")
    terminal.say(f"the API key of its user, which is written nowhere else: {key}")
    return OK


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from headgate.gateway.bootstrap import resources_of  # noqa: PLC0415
    from headgate.gateway.envoy import validate  # noqa: PLC0415  see above
    from headgate.gateway.loading import load_gateway  # noqa: PLC0415
    from headgate.server.folders import private_folder  # noqa: PLC0415
    from headgate.stores import open_store  # noqa: PLC0415

    gateway = load_gateway(arguments.file, store=_store())
    resources = resources_of(gateway, "/run/headgate")
    if arguments.print_config:
        terminal.say_json(resources.whole(gateway, secret=True))
        return OK
    open_store(gateway.decisions.store).close()  # nothing is connected
    with private_folder() as folder:
        refusal = validate(resources.whole(gateway, secret=False), folder)
    if refusal:
        terminal.complain(f"headgate: {printable(arguments.file)}: Envoy refuses what this makes: {printable(refusal)}")
        return NO
    tell_problems(gateway.warnings, terminal, warning=True)
    routes, services = len(gateway.routes), len(gateway.services)
    counted = f"{routes} route{'s' * (routes != 1)} to {services} service{'s' * (services != 1)}"
    terminal.say(terminal.styled(f"{printable(arguments.file)}: it could start: {counted}", "green"))
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
        store=_store(),
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        following=_consumer_keys,
    )
    try:
        asyncio.run(running.run(lambda: _greet(arguments.file, running.gateway, terminal)))
    except CannotStart as error:
        terminal.complain(f"headgate: {error}")
        return WRONG_USAGE if error.is_usage else NO
    return OK


def _consumer_keys(url: str, folder: Path) -> ConsumerKeys:
    """Return what keeps the keys of a database's consumers up to date. Raises UsageError."""
    try:
        from headgate.admin.follower import ConsumerFollower  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        raise UsageError(not_installed(error.name, "admin")) from None
    return ConsumerFollower(url, folder)


def _store() -> str:
    return os.environ.get("HEADGATE_STORE") or "memory"


def _greet(file: str, gateway: Gateway, terminal: Terminal) -> None:
    """Say where it serves, by which file, and what to try."""
    try:
        terminal.say(terminal.styled(f"Headgate {version('headgate')} is a gateway", "bold"))
        for listener in gateway.listeners:
            led = f" (redirects to port {listener.redirect_to})" if listener.redirect_to else ""
            terminal.say(f"  clients  {_url(listener)}{led}")
        terminal.say(f"  file     {printable(file)}")
        for route in gateway.routes:
            for_whom = "" if route.require == "none" else f", requires {route.require}"
            hosts = f" of {', '.join(route.hosts)}" if route.hosts else ""
            terminal.say(printable(f"  route    {route.path}{hosts} to {route.service}{for_whom}"))
        if gateway.admin:
            terminal.say(f"  metrics  {_url(gateway.admin)}/metrics")
        terminal.say("try it:")
        first = gateway.listeners[0]
        flags = "-ik" if first.certificates else "-i"
        terminal.say(printable(f"  curl {flags} {_url(first)}{gateway.routes[0].path}"))
        terminal.out.flush()
    except OSError:  # nobody can read that, and it serves all the same
        silence(terminal.out)


def _url(listener: GatewayListener) -> str:
    return url_of(listener.address, listener.port, tls=bool(listener.certificates))
