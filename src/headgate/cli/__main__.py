"""``headgate``, and ``python -m headgate.cli``.

Exit codes: 0 success; 1 a negative result (rules are invalid, or differ); 2 usage error.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from headgate.cli.command import WRONG_USAGE, NoAnswer, Run, Terminal, discard_output, open_standard_streams
from headgate.core.errors import HeadgateError
from headgate.messages import not_installed, printable

COMMANDS = {
    name: f"headgate.cli.{module}"
    for module, names in {
        "serve": "serve",
        "gateway": "gateway",
        "check": "check reset",
        "rules": "rules",
        "explain": "explain",
        "operating": "who enforcement",
        "replay": "replay",
        "users": "users refusals",
        "keys": "keys consumers",
        "history": "revisions undo audit usage database",
    }.items()
    for name in names.split()
}
_EXTRAS = {"serve": "server", "gateway": "gateway", "replay": "replay"}
"""The extra that a command needs; others may need that of the admin plane."""


def main(argv: Sequence[str] | None = None) -> int:
    open_standard_streams()
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(words[0] if words else "")
    try:
        arguments, unknown = parser.parse_known_args(words)
        if unknown:
            _refuse(arguments.parser, unknown)
    except SystemExit as stop:  # argparse has written the message
        return stop.code if isinstance(stop.code, int) else WRONG_USAGE
    run: Run | None = getattr(arguments, "run", None)
    if run is None:
        arguments.parser.print_help()
        return WRONG_USAGE
    return _run(run, arguments, _EXTRAS.get(words[0], "admin"))


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """Report unknown arguments, with suggestions."""
    known = [word for word in parser.format_usage().replace("[", " ").replace("]", " ").split() if word[:2] == "--"]
    options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    near = dict.fromkeys(near for option in options for near in get_close_matches(option, known, 1))
    hint = f" (did you mean {' '.join(near)}?)" if near else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _run(run: Run, arguments: argparse.Namespace, extra: str) -> int:
    terminal = Terminal.of(sys.stdout, sys.stderr)
    try:
        code = run(arguments, terminal)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        terminal.write_error(f"headgate: {not_installed(error.name, extra)}")
        return WRONG_USAGE
    except (HeadgateError, ImportError) as error:
        if isinstance(error, NoAnswer):
            first, *more = map(printable, str(error).split("\n"))
            terminal.write_error(f"headgate: {first}", "red")
            for line in more:
                terminal.write_error(line)
        else:
            terminal.write_error(f"headgate: {error}")
        return WRONG_USAGE
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard_output(sys.stdout)
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        discard_output(sys.stdout)
        terminal.write_error(f"headgate: {error.strerror}")
        return WRONG_USAGE
    except KeyboardInterrupt:
        return 130


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command, or of all for an unknown one. Other modules are not loaded."""
    parser = argparse.ArgumentParser(
        prog="headgate",
        description="A distributed rate limiter.",
        allow_abbrev=False,
        epilog="Exit codes: 0 success, 1 negative result, 2 usage error.",
    )
    parser.add_argument("--version", action="version", version=f"headgate {version('headgate')}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in dict.fromkeys([COMMANDS[command]] if command in COMMANDS else COMMANDS.values()):
        import_module(module).COMMANDS.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
