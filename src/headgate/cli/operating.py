"""``headgate who`` and ``headgate enforcement``: for operators of a running service."""

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
"""The module of a worker process: see `headgate.server.supervisor`."""
_PASSWORD = re.compile(r"://[^/@ ]*@")


def add(commands: Commands) -> None:
    who = add_command(
        commands,
        "who",
        _who,
        "find the principal of a digest in the log or /hotkeys",
        more="A digest cannot be reversed: give candidates, or a list of them on standard input. Limits of Envoy's\n"
        "files count by entries: --attribute tenant=acme, or --ip for remote_address.\n\n"
        "Exit codes: 0 it is one of them, 1 it is not, 2 wrong usage.",
        examples="headgate who '#2f1d9c0b7a6e5d43' --user 42\n"
        "psql -Atc 'select id from users' | headgate who '#2f1d9c0b7a6e5d43' -",
    )
    who.add_argument("digest", metavar="DIGEST", help="# and 16 hexadecimal digits; the # is optional")
    who.add_argument("candidates", metavar="VALUE", nargs="*", help="a candidate; - reads one from each line")
    add_principal_options(who, "a candidate")
    switch = add_command(
        commands,
        "enforcement",
        _switch,
        "turn the enforcement of a running service's limits off, or on again",
        more="Off, every rule is a shadow: counted and reported, and only deny lists refuse. It needs no restart,\n"
        "holds for all workers, including later ones, and ends with the service. The signals SIGUSR1 (off) and\n"
        "SIGUSR2 (on) do the same.",
        examples="headgate enforcement off\nheadgate enforcement on --pid 4711",
    )
    switch.add_argument("state", choices=["on", "off"])
    switch.add_argument("--pid", type=int, help="the process; optional if only one service runs")


def _who(arguments: argparse.Namespace, terminal: Terminal) -> int:
    wanted = "#" + arguments.digest.removeprefix("#").lower()
    if len(wanted) != len(shown := Principals().shown("")) or set(wanted[1:]) - set("0123456789abcdef"):
        raise UsageError(f"a digest must be # and {len(shown) - 1} hexadecimal digits, not {arguments.digest!r}")
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    named = [*principal.values(), *attributes.values(), *(value for value in arguments.candidates if value != "-")]
    if "ip" in principal:
        attributes = {"remote_address": principal["ip"], **attributes}
    entries = [f"{name}={value}" for name, value in attributes.items()]  # as limits of Envoy's files count
    named += [*entries, ",".join(entries)] if entries else []
    if not (named or "-" in arguments.candidates):
        raise UsageError("a digest cannot be reversed: give candidates, such as --user 42, or - for a list")
    lines = (line.rstrip("\n") for line in sys.stdin) if "-" in arguments.candidates else ()
    for candidates in (named, lines):
        for candidate in candidates:
            for counted in {candidate, _network(candidate)}:
                if Principals().shown(counted) == wanted:
                    terminal.write(terminal.styled(f"{wanted} is {printable(counted)}", "green"))
                    return OK
    terminal.write(f"{wanted} is none of the candidates")
    return NO


def _network(candidate: str) -> str:
    """Return the network of an IPv6 address; other text unchanged."""
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
        raise UsageError(f"process {pid} belongs to another user: run this as that user, or as root") from None
    effect = "refuse again" if arguments.state == "on" else "are counted, and refuse nothing"
    terminal.write(
        f"signalled process {pid}: enforcement is {arguments.state}, limits {effect}. See its log and /readyz"
    )
    return OK


def _service(wanted: int | None) -> int:
    """Return the given process, or that of the only service on this machine. Raises UsageError.

    Other processes are not signalled, since that would end them.
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
    raise UsageError(f"{wrong}Select a service with --pid PID; on this machine there are:{known}")


def _command(process: Path) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is_service(words: list[str]) -> bool:
    """Return whether it is a service, not a program, such as `timeout`, that runs one."""
    if "serve" not in words[1:] or not Path(words[0]).name.startswith(("python", "headgate")):
        return False
    return any(Path(word).name == "headgate" or word == "headgate.cli" for word in words[: words.index("serve")])


def _folder(process: Path) -> str:
    try:
        return f" (in {(process / 'cwd').readlink()})"
    except OSError:  # it has ended, or belongs to another user
        return ""


def _what_it_is(pid: int) -> str:
    process = Path("/proc") / str(pid)
    if WORKER in _command(process):
        with suppress(OSError):
            return f"is a worker of process {(process / 'stat').read_text().rpartition(')')[2].split()[1]}"
    return "is not a service" if pid > 0 and process.exists() else "does not exist"
