"""Rule files on the command line (paths, folders, ``-`` for standard input), and the output of their problems."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from headgate.cli.command import NO, WRONG_USAGE, Run, Terminal
from headgate.config.problems import Finding, InvalidRules, ProblemKind
from headgate.config.yaml_text import MAX_BYTES, decode_text, text_of
from headgate.live import yaml_files
from headgate.messages import counted, printable
from headgate.policy import envoy
from headgate.policy.envoy import DescriptorPolicy
from headgate.policy.loading import Loaded, read

STDIN = "-"
_LISTED = 3
_WIDTH = 100
"""Longest excerpt of a line, in characters."""
_ENVOY = re.compile(r"""^(?:\{\s*)?["']?domain["']?\s*:""", re.MULTILINE)
"""Identifies a file of envoyproxy/ratelimit."""


def is_for_envoy(text: str) -> bool:
    return _ENVOY.search(text) is not None


def for_envoy(file: str) -> DescriptorPolicy | None:
    """Return the envoyproxy/ratelimit configuration in a file or folder; None if it has rules.

    Raises InvalidRules.
    """
    if file == STDIN:
        return None
    texts = {name: text(name) for name in expand([file])}
    return envoy.load(texts) if any(map(is_for_envoy, texts.values())) else None


def load_rules(file: str) -> Loaded:
    return read_rules(file)[1]


def read_rules(file: str) -> tuple[str, Loaded]:
    """Return the text and the rules of a valid file. Raises InvalidRules."""
    names = [*expand([file])]
    if len(names) > 1:
        message = f"this folder has {len(names)} rule files: name one of them"
        raise InvalidRules([Finding(message, file=file, kind=ProblemKind.FILE)])
    written = text(names[0])
    return written, read(written, name=shown(names[0]))


def validate_files(files: Iterable[str], *, merge_domains: bool) -> list[tuple[str, Sequence[Finding]]]:
    """Return a summary and the warnings of each file; those of envoyproxy/ratelimit are validated together.

    Raises InvalidRules with the problems of all of them.
    """
    found: list[tuple[str, Sequence[Finding]]] = []
    problems: list[Finding] = []
    descriptors: dict[str, str] = {}
    for file in expand(files):
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
        found.append((f"{name}: {counted(len(loaded.ruleset.rules), 'rule')}", loaded.warnings))
    if descriptors:
        try:
            policy = envoy.load(descriptors, merge_domains=merge_domains)
            names = [*descriptors]
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            found.append(
                (f"{', '.join(names[:_LISTED])}{more}: descriptors of {', '.join(policy.domains)}", policy.warnings)
            )
        except InvalidRules as error:
            problems += error.problems
    if problems:
        raise InvalidRules(problems)
    return found


def expand(files: Iterable[str]) -> Iterator[str]:
    """Expand folders to their YAML files, by name. Raises InvalidRules."""
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
    return decode_text(sys.stdin.buffer.read(MAX_BYTES + 1), shown(file)) if file == STDIN else text_of(file)


def shown(file: str) -> str:
    return "stdin" if file == STDIN else file


def write_problems(problems: Iterable[Finding], terminal: Terminal, *, warning: bool = False) -> None:
    for problem in problems:
        for line in _problem_lines(problem, terminal, warning=warning):
            terminal.write_error(line)
        terminal.write_error("")


def _problem_lines(problem: Finding, terminal: Terminal, *, warning: bool = False) -> list[str]:
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
    names = ("file", "line", "column", "path", "message", "accepted", "hint", "kind")
    unknown = {name: None for name in ("line", "column") if not getattr(problem, name)}
    return {name: getattr(problem, name) for name in names} | unknown


def reports_problems(run: Run) -> Run:
    """Wrap a command to write problems of rules instead of raising them."""

    @wraps(run)
    def wrapped(arguments: argparse.Namespace, terminal: Terminal) -> int:
        try:
            return run(arguments, terminal)
        except InvalidRules as error:
            problems = error.problems
        if not arguments.json:
            return report_problems(problems, terminal, "these rules would not be used")
        data = [problem_data(problem) for problem in problems]
        terminal.write_json({"valid": False, "problems": data, "warnings": []})
        return _code(problems)

    return wrapped


def report_problems(problems: Sequence[Finding], terminal: Terminal, consequence: str) -> int:
    """Write problems and their consequence; return the exit code."""
    write_problems(problems, terminal)
    code = _code(problems)
    if code == NO:
        count = sum(problem.kind is not ProblemKind.UNREAD for problem in problems)
        files = {problem.file: None for problem in problems}
        where = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
        terminal.write_error(f"{printable(where)}: {counted(count, 'problem')}; {consequence}", "red")
    return code


def _code(problems: Sequence[Finding]) -> int:
    return WRONG_USAGE if any(problem.kind is ProblemKind.FILE for problem in problems) else NO
