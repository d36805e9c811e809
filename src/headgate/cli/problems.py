"""Problems of a file of rules, for people: where, the line itself, what is wrong, what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate.cli.terminal import Terminal, safe
from headgate.policy.problems import Problem

_WIDTH = 100


def tell(problems: Iterable[Problem], terminal: Terminal, *, warning: bool = False) -> None:
    """Write each problem with its line and a caret under the place."""
    for problem in problems:
        for line in described(problem, terminal, warning=warning):
            terminal.complain(line)
        terminal.complain("")


def described(problem: Problem, terminal: Terminal, *, warning: bool = False) -> list[str]:
    """Return the lines that describe a problem."""
    word, colour = ("warning", "yellow") if warning else ("error", "red")
    place = terminal.styled(safe(problem.place), "bold", err=True)
    field = f"{safe(problem.path)}: " if problem.path else ""
    lines = [f"{place}: {terminal.styled(word, colour, err=True)}: {field}{safe(problem.message)}"]
    if problem.source.strip():
        gutter = f"{problem.line:>6} | "
        start = max(0, problem.column - _WIDTH + 20)
        source = "".join(" " if character == "\t" else character for character in problem.source)
        before = safe(source[start : problem.column - 1])
        shown = safe(source[start : start + _WIDTH])
        caret = terminal.styled("^", colour, err=True)
        lines += [f"{gutter}{shown}", f"{' ' * (len(gutter) - 2)}| {' ' * len(before)}{caret}"]
    if problem.accepted:
        lines.append(f"       accepted: {safe(problem.accepted)}")
    if problem.hint:
        lines.append(f"       {safe(problem.hint)}")
    return lines


def to_data(problem: Problem) -> dict[str, Any]:
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
