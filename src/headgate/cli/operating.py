"""``headgate who`` and ``headgate enforcement``: for operators of a running service."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from headgate.cli.command import (
    NO,
    OK,
    Commands,
    Terminal,
    add_principal_options,
    attributes_of,
    option,
    principal_of,
)
from headgate.core.errors import UsageError
from headgate.messages import printable
from headgate.observe.logs import Principals
from headgate.policy.addresses import counted_by

WORKER = "headgate.server.worker"
"""The module of a worker process: see `headgate.server.supervisor`."""
_PASSWORD = re.compile(r"://[^/@ ]*@")


COMMANDS = Commands()


@COMMANDS.command(
    "who",
    option("DIGEST", "# and 16 hexadecimal digits; the # is optional"),
    option("VALUE*", "a candidate; - reads one from each line"),
    partial(add_principal_options, about="a candidate"),
)
def _who(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Find the principal of a digest in the log or /hotkeys.

    A digest cannot be reversed, so candidates are needed: as arguments, or one per line on standard input.
    Limits of Envoy's files count by entries: --attribute tenant=acme, or --ip for remote_address.

    Exit codes: 0 found, 1 not found, 2 usage error.

    Examples:
      headgate who '#2f1d9c0b7a6e5d43' --user 42
      psql -Atc 'select id from users' | headgate who '#2f1d9c0b7a6e5d43' -
    """
    wanted = "#" + arguments.digest.removeprefix("#").lower()
    if len(wanted) != len(shown := Principals().shown("")) or set(wanted[1:]) - set("0123456789abcdef"):
        raise UsageError(f"a digest must be # and {len(shown) - 1} hexadecimal digits, not {arguments.digest!r}")
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    named = [*principal.values(), *attributes.values(), *(value for value in arguments.value if value != "-")]
    if "ip" in principal:
        attributes = {"remote_address": principal["ip"], **attributes}
    entries = [f"{name}={value}" for name, value in attributes.items()]  # as limits of Envoy's files count
    named += [*entries, ",".join(entries)] if entries else []
    if not (named or "-" in arguments.value):
        raise UsageError("a digest cannot be reversed: give candidates, such as --user 42, or - for a list")
    lines = (line.rstrip("\n") for line in sys.stdin) if "-" in arguments.value else ()
    for candidates in (named, lines):
        for candidate in candidates:
            for counted in {candidate, _network(candidate)}:
                if Principals().shown(counted) == wanted:
                    terminal.write(f"{wanted} is {printable(counted)}", "green")
                    return OK
    terminal.write(f"no candidate has the digest {wanted}")
    return NO


def _network(candidate: str) -> str:
    """Return the network of an IPv6 address; other text unchanged."""
    try:
        return counted_by(candidate)
    except UsageError:
        return candidate


@COMMANDS.command(
    "enforcement",
    option("STATE", "the new state", choices=("on", "off")),
    option("--pid PID", "the process; optional if only one service runs", type=int),
)
def _switch(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Turn the enforcement of limits in a running service off or on.

    While it is off, every rule is a shadow: counted and reported, and only deny lists refuse. The state
    applies to all workers, including later ones, until the service ends. The signals SIGUSR1 (off) and
    SIGUSR2 (on) do the same.
    """
    pid = _service(arguments.pid)
    try:
        os.kill(pid, signal.SIGUSR2 if arguments.state == "on" else signal.SIGUSR1)
    except ProcessLookupError:
        raise UsageError(f"process {pid} has ended") from None
    except PermissionError:
        raise UsageError(f"process {pid} belongs to another user: run this as that user, or as root") from None
    effect = "refuse again" if arguments.state == "on" else "are counted, and refuse nothing"
    terminal.write(
        f"signalled process {pid}: enforcement is {arguments.state}, limits {effect}. See its log or /readyz"
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
    wrong = ""
    if wanted is not None:
        process = Path("/proc") / str(wanted)
        what = "is not a service" if wanted > 0 and process.exists() else "does not exist"
        if WORKER in _command(process):
            with suppress(OSError):
                what = f"is a worker of process {(process / 'stat').read_text().rpartition(')')[2].split()[1]}"
        wrong = f"process {wanted} {what}. "
    known = "".join(f"\n  {pid}: headgate {command}" for pid, command in sorted(found.items())) or " none"
    raise UsageError(f"{wrong}Select a service with --pid PID. Services on this machine:{known}")


def _command(process: Path) -> list[str]:
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
