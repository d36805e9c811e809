"""What an operator does to a running service: ``headgate reset``, ``who`` and ``enforcement``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from headgate.cli.asking import RESET, NoAnswer
from headgate.cli.check import asked, not_answered
from headgate.cli.command import NO, OK, Commands, add_command
from headgate.cli.request_options import add_principal_options, attributes_of, principal_of
from headgate.cli.service_options import add_service_options, url
from headgate.cli.terminal import Terminal, safe
from headgate.core.errors import UsageError
from headgate.observe.principals import Principals
from headgate.policy.facts import facts_of
from headgate.policy.request import ENDPOINT, GLOBAL, Request


class _Reset(msgspec.Struct, frozen=True):
    rules: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def add(commands: Commands) -> None:
    """Add the commands."""
    reset = add_command(
        commands,
        "reset",
        _reset,
        summary="let a running service forget what somebody has used",
        more="Without a path and --rule: of every limit that is counted by who is named. With a path, of those that\n"
        "apply to such a request. A limit that others share is reset only if --rule names it.\n\n"
        "Exit codes: 0 something was reset, 1 no rule counts by that, 2 wrong usage, or the service did not answer.",
        examples="headgate reset --user 42\n"
        "headgate reset --user 42 --method POST /api/v1/orders\n"
        "headgate reset --ip 192.0.2.7 --rule small-ip\n"
        "headgate reset --rule everybody",
    )
    reset.add_argument("endpoint", metavar="PATH", nargs="?", help="only what applies to this path")
    reset.add_argument("--url", default=url(), help="where the service is; or HEADGATE_URL [%(default)s]")
    add_principal_options(reset)
    reset.add_argument("--method", default="", help="with a path: the HTTP method")
    reset.add_argument("--rule", metavar="ID", help="only the limits of this rule")
    add_service_options(reset, timeout="seconds to wait for the service [%(default)g]")
    reset.add_argument("--json", action="store_true", help="write the service's answer as JSON, for programs")
    who = add_command(
        commands,
        "who",
        _who,
        summary="say whether a digest of the log or of /hotkeys is that of somebody",
        more="A digest cannot be turned back: name whom you suspect, or give a list of them on the standard input.\n\n"
        "Exit codes: 0 it is one of them, 1 it is not, 2 wrong usage.",
        examples="headgate who '#2f1d9c0b7a6e5d43' --user 42\n"
        "psql -Atc 'select id from users' | headgate who '#2f1d9c0b7a6e5d43' -",
    )
    who.add_argument("digest", metavar="DIGEST", help="# and 16 hexadecimal digits; the # may be left out")
    who.add_argument("candidates", metavar="VALUE", nargs="*", help="who it may be; - reads one from each line")
    add_principal_options(who)
    switch = add_command(
        commands,
        "enforcement",
        _switch,
        summary="turn off, for a running service, that limits refuse; or on again",
        more="Off, every rule is a shadow: counted and reported, and nothing is refused but by deny lists. No restart\n"
        "is needed; it holds for all workers, those started later included, and ends with the service. By hand, the\n"
        "same is SIGUSR1 to the process for off, and SIGUSR2 for on.",
        examples="headgate enforcement off\nheadgate enforcement on --pid 4711",
    )
    switch.add_argument("state", choices=["on", "off"])
    switch.add_argument("--pid", type=int, help="the process; not needed where one service runs")


def _reset(arguments: argparse.Namespace, terminal: Terminal) -> int:
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    if not (principal or attributes or arguments.rule):
        raise UsageError("say whose limits: --user 42, --ip 192.0.2.7, --apikey NAME, or --rule ID")
    question: dict[str, object] = {"principal": {**principal, **attributes}}
    if arguments.rule is not None:
        question["rule_id"] = arguments.rule
    if arguments.endpoint is not None:
        question |= {"principal": principal, "attributes": attributes, "endpoint": arguments.endpoint}
        question |= {"method": arguments.method.upper()} if arguments.method else {}
    try:
        target, body = asked(arguments, question, RESET)
        answer = msgspec.json.decode(body, type=_Reset)
    except NoAnswer as error:
        return not_answered(error, terminal)
    except ValueError as error:
        return not_answered(NoAnswer(f"{target.place} answers, but not like Headgate: {error}"), terminal)
    if arguments.json:
        terminal.say(json.dumps(json.loads(body), indent=2))
    elif answer.rules:
        terminal.say(terminal.styled(f"reset: {safe(', '.join(answer.rules))}", "green"))
    else:
        terminal.say(terminal.styled("nothing was reset: no rule counts by that", "yellow"))
    if answer.shared and not arguments.json:
        terminal.say(
            f"others share these, which were left alone (name one with --rule): {safe(', '.join(answer.shared))}"
        )
    return OK if answer.rules else NO


def _who(arguments: argparse.Namespace, terminal: Terminal) -> int:
    wanted = "#" + arguments.digest.removeprefix("#").lower()
    if len(wanted) != len(shown := Principals().shown("")) or set(wanted[1:]) - set("0123456789abcdef"):
        raise UsageError(f"a digest is # and {len(shown) - 1} hexadecimal digits, not {arguments.digest!r}")
    facts = facts_of(Request(principal_of(arguments), attributes=attributes_of(arguments)), ignore_case=False)
    named = [value for name, value in facts.items() if name not in {ENDPOINT, GLOBAL}]  # an IPv6 address as its network
    named += [value for value in arguments.candidates if value != "-"]
    if not (named or "-" in arguments.candidates):
        raise UsageError("a digest cannot be turned back: say who it may be, such as --user 42, or - for a list")
    lines = (line.rstrip("\n") for line in sys.stdin) if "-" in arguments.candidates else ()
    for candidates in (named, lines):
        for candidate in candidates:
            if Principals().shown(candidate) == wanted:
                terminal.say(terminal.styled(f"{wanted} is {safe(candidate)}", "green"))
                return OK
    terminal.say(f"{wanted} is none of them")
    return NO


def _switch(arguments: argparse.Namespace, terminal: Terminal) -> int:
    pid = _service(arguments.pid)
    try:
        os.kill(pid, signal.SIGUSR2 if arguments.state == "on" else signal.SIGUSR1)
    except ProcessLookupError:
        raise UsageError(f"process {pid} has ended") from None
    except PermissionError:
        raise UsageError(f"process {pid} is somebody else's: use its user, or root") from None
    effect = "refuse again" if arguments.state == "on" else "are counted, and refuse nothing"
    terminal.say(f"told process {pid}: enforcement is {arguments.state}, limits {effect}. Its log and /readyz say so")
    return OK


def _service(wanted: int | None) -> int:
    """Return the process that is wanted, or of the one service that runs here. Raises UsageError.

    No other process gets the signal: it ends those that do not know it.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if "serve" in words[1:] and any(_is_ours(word) for word in words[: words.index("serve")]):
            found.append(int(path.parent.name))
    if wanted in found:
        return wanted
    if wanted is None and len(found) == 1:
        return found[0]
    several = ", ".join(map(str, sorted(found))) or "none"
    raise UsageError(f"processes of services on this machine: {several}. Say which of them is meant: --pid PID")


def _is_ours(word: str) -> bool:
    return Path(word).name == "headgate" or word in {"headgate.cli", "headgate"}
