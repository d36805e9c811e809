"""``headgate rules``: look at files of rules without a server."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from headgate.cli.command import NO, OK, WRONG_USAGE, Command, Commands, add_command
from headgate.cli.problems import tell, to_data
from headgate.cli.rules_diff import tell_diff
from headgate.cli.rules_list import tell_rules
from headgate.cli.terminal import Terminal, safe
from headgate.core.errors import InvalidRule
from headgate.policy import envoy
from headgate.policy.compiled import Policy
from headgate.policy.diff import compare
from headgate.policy.dumping import to_data as rules_data
from headgate.policy.loading import InvalidRules, Loaded, Problem, read, text_of
from headgate.policy.problems import Kind
from headgate.policy.schema import schema
from headgate.policy.yaml_nodes import MAX_BYTES, decoded

STDIN = "-"
_ENVOY = re.compile("^domain *:", re.MULTILINE)
"""By this a file of envoyproxy/ratelimit is known."""
_CODES = "Exit codes: 0 {}, 1 {}, 2 wrong usage, or no such file."


def add(commands: Commands) -> None:
    """Add the group and its commands."""
    group = add_command(commands, "rules", None, summary="validate, compare and list files of rules")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    validate = add_command(
        actions,
        "validate",
        _explained(_validate),
        summary="say what is wrong with a file of rules, and where",
        more="Files of envoyproxy/ratelimit (domain and descriptors) can be validated, too.\n\n"
        + _CODES.format("the rules can be used", "they cannot"),
        examples="headgate rules validate rules.yaml\nheadgate rules validate - < rules.yaml\n"
        "headgate rules validate rules.yaml --json | jq '.problems[].message'",
    )
    _file(validate, "file", "FILE")
    listing = add_command(
        actions, "list", _explained(_list), summary="list the rules of a file, and how much each lets pass"
    )
    _file(listing, "file", "FILE")
    diff = add_command(
        actions,
        "diff",
        _explained(_diff),
        summary="say what a new file of rules changes, and whose usage starts afresh",
        more="A changed limit or burst acts on the next request and keeps what was used. Another algorithm, window or\n"
        "dimension, or a change of a rule with reset_on_change, starts afresh.\n\n"
        + _CODES.format("no difference", "the rules differ, or are wrong"),
        examples="headgate rules diff rules.yaml new-rules.yaml\n"
        "git show HEAD:rules.yaml | headgate rules diff - rules.yaml",
    )
    _file(diff, "old", "OLD")
    _file(diff, "new", "NEW")
    for command in (validate, listing, diff):
        command.add_argument("--json", action="store_true", help="write JSON, for programs")
    add_command(
        actions,
        "schema",
        _schema,
        summary="print the JSON Schema of the file, for editors",
        more="Save it, and put this line first into the rules:\n# yaml-language-server: $schema=headgate.schema.json",
        examples="headgate rules schema > headgate.schema.json",
    )


def _file(parser: argparse.ArgumentParser, name: str, shown: str) -> None:
    parser.add_argument(name, metavar=shown, help="a YAML file, or - for the standard input")


def _validate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    text = _text(arguments.file)
    if _ENVOY.search(text):
        policy = envoy.load({_name(arguments.file): text})
        warnings, what = policy.warnings, f"descriptors of {', '.join(policy.domains)}"
    else:
        loaded = _checked(text, arguments.file)
        warnings, count = loaded.warnings, len(loaded.ruleset.rules)
        what = f"{count} rule{'s' * (count != 1)}"
    if arguments.json:
        _say_json(terminal, {"valid": True, "problems": [], "warnings": [to_data(odd) for odd in warnings]})
        return OK
    tell(warnings, terminal, warning=True)
    terminal.say(terminal.styled(f"{_name(arguments.file)}: {safe(what)}, nothing wrong", "green"))
    return OK


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    loaded = _checked(_text(arguments.file), arguments.file)
    if arguments.json:
        _say_json(terminal, rules_data(loaded.ruleset))
    else:
        tell_rules(loaded.ruleset, terminal)
    return OK


def _diff(arguments: argparse.Namespace, terminal: Terminal) -> int:
    old, new = (_checked(_text(file), file).ruleset for file in (arguments.old, arguments.new))
    diff = compare(old, new)
    if arguments.json:
        _say_json(terminal, diff.to_data())
    else:
        tell_diff(diff, terminal)
    return OK if diff.same else NO


def _schema(_: argparse.Namespace, terminal: Terminal) -> int:
    _say_json(terminal, schema())
    return OK


def _explained(run: Command) -> Command:
    """Return the command, which says what is wrong with rules rather than raise it."""

    def explaining(arguments: argparse.Namespace, terminal: Terminal) -> int:
        try:
            return run(arguments, terminal)
        except InvalidRules as error:
            problems = error.problems
        if arguments.json:
            data = [to_data(problem) for problem in problems]
            _say_json(terminal, {"valid": False, "problems": data, "warnings": []})
        else:
            tell(problems, terminal)
            count = len(problems)
            told = f"{problems[0].file}: {count} problem{'s' * (count != 1)}; these rules would not be used"
            terminal.complain(terminal.styled(told, "red", err=True))
        return WRONG_USAGE if problems[0].kind is Kind.FILE else NO

    return explaining


def _checked(text: str, file: str) -> Loaded:
    loaded = read(text, name=_name(file))
    try:
        Policy(loaded.ruleset)
    except InvalidRule as error:
        raise InvalidRules([Problem(str(error), file=_name(file), kind=Kind.MEANING)]) from None
    return loaded


def _text(file: str) -> str:
    return decoded(sys.stdin.buffer.read(MAX_BYTES + 1), _name(file)) if file == STDIN else text_of(file)


def _name(file: str) -> str:
    return "stdin" if file == STDIN else file


def _say_json(terminal: Terminal, data: Any) -> None:
    terminal.say(json.dumps(data, indent=2))
