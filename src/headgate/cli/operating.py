"""``headgate who`` and ``headgate enforcement``: what an operator needs beside a running service."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path

from headgate.cli.command import (
    NO,
    OK,
    Commands,
    Terminal,
    add_command,
    add_principal_options,
    attributes_of,
    principal_of,
)
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.observe.logs import Principals
from headgate.policy.addresses import counted_by

WORKER = "headgate.server.worker"
"""The module that a worker runs: see `headgate.server.supervisor`."""
_PASSWORD = re.compile(r"://[^/@ ]*@")


def add(commands: Commands) -> None:
    """Add the commands."""
    who = add_command(
        commands,
        "who",
        _who,
        "find whose digest the log or /hotkeys shows",
        more="A digest cannot be turned back: name whom you suspect, or give a list of them on the standard input.\n"
        "Limits of Envoy's files are counted by entries: --attribute tenant=acme, or --ip for remote_address.\n\n"
        "Exit codes: 0 it is one of them, 1 it is not, 2 wrong usage.",
        examples="headgate who '#2f1d9c0b7a6e5d43' --user 42\n"
        "psql -Atc 'select id from users' | headgate who '#2f1d9c0b7a6e5d43' -",
    )
    who.add_argument("digest", metavar="DIGEST", help="# and 16 hexadecimal digits; the # may be left out")
    who.add_argument("candidates", metavar="VALUE", nargs="*", help="who it may be; - reads one from each line")
    add_principal_options(who, "who it may be")
    switch = add_command(
        commands,
        "enforcement",
        _switch,
        "let the limits of a running service refuse nothing, or refuse again",
        more="Off, every rule is a shadow: counted and reported, and nothing is refused but by deny lists. No restart\n"
        "is needed; it holds for all workers, those started later included, and ends with the service. By hand, the\n"
        "same is SIGUSR1 to the process for off, and SIGUSR2 for on.",
        examples="headgate enforcement off\nheadgate enforcement on --pid 4711",
    )
    switch.add_argument("state", choices=["on", "off"])
    switch.add_argument("--pid", type=int, help="the process; not needed where one service runs")


def _who(arguments: argparse.Namespace, terminal: Terminal) -> int:
    wanted = "#" + arguments.digest.removeprefix("#").lower()
    if len(wanted) != len(shown := Principals().shown("")) or set(wanted[1:]) - set("0123456789abcdef"):
        raise UsageError(f"a digest is # and {len(shown) - 1} hexadecimal digits, not {arguments.digest!r}")
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    named = [*principal.values(), *attributes.values(), *(value for value in arguments.candidates if value != "-")]
    if "ip" in principal:
        attributes = {"remote_address": principal["ip"], **attributes}
    entries = [f"{name}={value}" for name, value in attributes.items()]  # how limits of Envoy's files are counted
    named += [*entries, ",".join(entries)] if entries else []
    if not (named or "-" in arguments.candidates):
        raise UsageError("a digest cannot be turned back: say who it may be, such as --user 42, or - for a list")
    lines = (line.rstrip("\n") for line in sys.stdin) if "-" in arguments.candidates else ()
    for candidates in (named, lines):
        for candidate in candidates:
            for counted in {candidate, _network(candidate)}:
                if Principals().shown(counted) == wanted:
                    terminal.say(terminal.styled(f"{wanted} is {printable(counted)}", "green"))
                    return OK
    terminal.say(f"{wanted} is none of them")
    return NO


def _network(candidate: str) -> str:
    """Return what an IPv6 address is counted by, which is its network; anything else as it is."""
    try:
        return counted_by(candidate)
    except UsageError:
        return candidate


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
    found = dict[int, str]()
    for path in Path("/proc").glob("[0-9]*"):
        words = _command(path)
        if _is_service(words):
            options = shlex.join(words[words.index("serve") + 1 :])
            found[int(path.name)] = f"serve {_PASSWORD.sub('://', options)}".rstrip() + _folder(path)
    if wanted in found:
        return wanted
    if wanted is None and len(found) == 1:
        return next(iter(found))
    wrong = "" if wanted is None else f"process {wanted} {_what_it_is(wanted)}. "
    known = "".join(f"\n  {pid}: headgate {command}" for pid, command in sorted(found.items())) or " none"
    raise UsageError(f"{wrong}Say which service is meant, with --pid PID; on this machine there are:{known}")


def _command(process: Path) -> list[str]:
    """Return the words of the command line of a process; none if it has ended."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is_service(words: list[str]) -> bool:
    """Whether it is ours, and not a program, such as `timeout`, that was given our command."""
    if "serve" not in words[1:] or not Path(words[0]).name.startswith(("python", "headgate")):
        return False
    return any(Path(word).name == "headgate" or word == "headgate.cli" for word in words[: words.index("serve")])


def _folder(process: Path) -> str:
    try:
        return f" (in {(process / 'cwd').readlink()})"
    except OSError:  # it has ended, or is somebody else's
        return ""


def _what_it_is(pid: int) -> str:
    """Say what a process is, if it is not a service."""
    process = Path("/proc") / str(pid)
    if WORKER in _command(process):
        with suppress(OSError):
            return f"is a worker of process {(process / 'stat').read_text().rpartition(')')[2].split()[1]}"
    return "is not a service" if pid > 0 and process.exists() else "does not exist"
