"""Files of rules as the command line names them (paths, folders, ``-`` for the standard input), and their problems."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headgate.cli.command import NO, WRONG_USAGE, Command, Terminal
from headgate.config.problems import ProblemKind
from headgate.config.yaml_text import MAX_BYTES, decoded
from headgate.core.numbers import printable
from headgate.live import yaml_files
from headgate.policy import envoy
from headgate.policy.envoy import DescriptorPolicy
from headgate.policy.loading import Finding, InvalidRules, Loaded, read, text_of

STDIN = "-"
_LISTED = 3
_WIDTH = 100
"""Characters of a line that are shown."""
_ENVOY = re.compile(r"""^(?:\{\s*)?["']?domain["']?\s*:""", re.MULTILINE)
"""By this a file of envoyproxy/ratelimit is known."""


def is_for_envoy(text: str) -> bool:
    """Whether it is a file of envoyproxy/ratelimit."""
    return _ENVOY.search(text) is not None


def for_envoy(file: str) -> DescriptorPolicy | None:
    """Return the configuration of envoyproxy/ratelimit that is in a file or folder; None if rules are in it.

    Raises InvalidRules.
    """
    if file == STDIN:
        return None
    texts = {name: text(name) for name in expanded([file])}
    return envoy.load(texts) if any(map(is_for_envoy, texts.values())) else None


def checked(file: str) -> Loaded:
    """Return the rules of a file that can be used. Raises InvalidRules."""
    return checked_text(file)[1]


def checked_text(file: str) -> tuple[str, Loaded]:
    """Return a file of rules that can be used, as it is written and as it is read. Raises InvalidRules."""
    names = [*expanded([file])]
    if len(names) > 1:
        message = f"this folder has {len(names)} files of rules: name one of them"
        raise InvalidRules([Finding(message, file=file, kind=ProblemKind.FILE)])
    written = text(names[0])
    return written, read(written, name=shown(names[0]))


def validated(files: Iterable[str], *, merge_domains: bool) -> list[tuple[str, Sequence[Finding]]]:
    """Return what is in the files: a line for each that stands alone, and what is odd about it.

    Those of envoyproxy/ratelimit stand together. Raises InvalidRules, with the problems of all of them.
    """
    found: list[tuple[str, Sequence[Finding]]] = []
    problems: list[Finding] = []
    descriptors: dict[str, str] = {}
    for file in expanded(files):
        name = shown(file)
        try:
            written = text(file)
            if is_for_envoy(written):
                descriptors[name] = written
                continue
            loaded = read(written, name=name)
        except InvalidRules as error:
            problems += error.problems
            continue
        count = len(loaded.ruleset.rules)
        found.append((f"{name}: {count} rule{'s' * (count != 1)}", loaded.warnings))
    if descriptors:
        try:
            policy = envoy.load(descriptors, merge_domains=merge_domains)
            found.append((f"{_names(descriptors)}: descriptors of {', '.join(policy.domains)}", policy.warnings))
        except InvalidRules as error:
            problems += error.problems
    if problems:
        raise InvalidRules(problems)
    return found


def expanded(files: Iterable[str]) -> Iterator[str]:
    """Return the files that are meant: of a folder its YAML files, in the order of their names. Raises InvalidRules."""
    for file in files:
        folder = Path(file)
        if file == STDIN or not folder.is_dir():
            yield file
            continue
        found = [str(path) for path in yaml_files(folder)]
        if not found:
            message = "no file in this folder ends in .yaml or .yml"
            raise InvalidRules([Finding(message, file=file, kind=ProblemKind.FILE)])
        yield from found


def text(file: str) -> str:
    """Return what is in a file, or came by the standard input. Raises InvalidRules."""
    return decoded(sys.stdin.buffer.read(MAX_BYTES + 1), shown(file)) if file == STDIN else text_of(file)


def shown(file: str) -> str:
    """Return what to call a file in messages."""
    return "stdin" if file == STDIN else file


def _names(files: Iterable[str]) -> str:
    names = [*files]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def tell_problems(problems: Iterable[Finding], terminal: Terminal, *, warning: bool = False) -> None:
    """Write each problem with its line and a caret under the place."""
    for problem in problems:
        for line in _described(problem, terminal, warning=warning):
            terminal.complain(line)
        terminal.complain("")


def _described(problem: Finding, terminal: Terminal, *, warning: bool = False) -> list[str]:
    """Return the lines that describe a problem."""
    word, colour = ("warning", "yellow") if warning else ("error", "red")
    place = terminal.styled(printable(problem.place), "bold", err=True)
    field = f"{printable(problem.path)}: " if problem.path else ""
    lines = [f"{place}: {terminal.styled(word, colour, err=True)}: {field}{printable(problem.message)}"]
    if problem.source.strip():
        gutter = f"{problem.line:>6} | "
        start = max(0, problem.column - _WIDTH + 20)
        source = "".join(" " if character == "\t" else character for character in problem.source)
        before = printable(source[start : problem.column - 1])
        shown = printable(source[start : start + _WIDTH])
        caret = terminal.styled("^", colour, err=True)
        lines += [f"{gutter}{shown}", f"{' ' * (len(gutter) - 2)}| {' ' * len(before)}{caret}"]
    if problem.accepted:
        lines.append(f"       accepted: {printable(problem.accepted)}")
    if problem.hint:
        lines.append(f"       {printable(problem.hint)}")
    return lines


def problem_data(problem: Finding) -> dict[str, Any]:
    """Return a problem as data for JSON."""
    return {
        "file": problem.file,
        "line": problem.line or None,
        "column": problem.column or None,
        "path": problem.path,
        "message": problem.message,
        "accepted": problem.accepted,
        "hint": problem.hint,
        "kind": str(problem.kind),
    }


def explained(run: Command) -> Command:
    """Return the command, which says what is wrong with rules rather than raise it."""

    def explaining(arguments: argparse.Namespace, terminal: Terminal) -> int:
        try:
            return run(arguments, terminal)
        except InvalidRules as error:
            problems = error.problems
        if not arguments.json:
            return refused(problems, terminal, "these rules would not be used")
        data = [problem_data(problem) for problem in problems]
        terminal.say_json({"valid": False, "problems": data, "warnings": []})
        return _code(problems)

    return explaining


def refused(problems: Sequence[Finding], terminal: Terminal, consequence: str) -> int:
    """Tell problems, and what follows from them; returns the exit code."""
    tell_problems(problems, terminal)
    code = _code(problems)
    if code == NO:
        count = sum(problem.kind is not ProblemKind.UNREAD for problem in problems)
        files = {problem.file: None for problem in problems}
        where = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
        told = f"{printable(where)}: {count} problem{'s' * (count != 1)}; {consequence}"
        terminal.complain(terminal.styled(told, "red", err=True))
    return code


def _code(problems: Sequence[Finding]) -> int:
    return WRONG_USAGE if any(problem.kind is ProblemKind.FILE for problem in problems) else NO
