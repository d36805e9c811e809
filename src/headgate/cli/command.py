"""What a subcommand is: a function of its arguments and the terminal, which returns the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headgate.cli.terminal import Terminal

OK, NO, WRONG_USAGE = 0, 1, 2
Command: TypeAlias = Callable[[argparse.Namespace, Terminal], int]
if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  it has no public name
else:
    Commands: TypeAlias = Any


def add_command(
    commands: Commands, name: str, run: Command | None, *, summary: str, more: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand, or with no function to run a group of them, and return its parser for arguments.

    Args:
        commands: where to add it.
        name: the word to type.
        run: what it does; None for a group, which prints its help.
        summary: one line, for the list of commands.
        more: what else its own help says.
        examples: command lines, one a line.
    """
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()) if examples else None
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[:1].upper()}{summary[1:]}.\n\n{more}".strip(),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser
