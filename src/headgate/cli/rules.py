"""``headgate rules``: look at files of rules without a server."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headgate.cli.command import NO, OK, WRONG_USAGE, Command, Commands, add_command
from headgate.cli.problems import tell, to_data
from headgate.cli.rule_files import checked, for_envoy
from headgate.cli.rules_diff import tell_diff
from headgate.cli.rules_list import tell_rules
from headgate.cli.rules_validate import validated
from headgate.cli.terminal import Terminal, safe
from headgate.policy.diff import compare
from headgate.policy.dumping import to_data as rules_data
from headgate.policy.loading import InvalidRules
from headgate.policy.problems import Kind
from headgate.policy.schema import schema

_CODES = "Exit codes: 0 {}, 1 {}, 2 wrong usage, or no such file."


def add(commands: Commands) -> None:
    """Add the group and its commands."""
    group = add_command(commands, "rules", None, summary="validate, compare and list files of rules")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    validate = add_command(
        actions,
        "validate",
        _explained(_validate),
        summary="say what is wrong with files of rules, and where",
        more="A folder stands for its files *.yaml and *.yml. Each file of rules is validated on its own; those of\n"
        "envoyproxy/ratelimit (domain and descriptors) together, as one configuration.\n\n"
        + _CODES.format("the rules can be used", "they cannot, or with --strict have warnings"),
        examples="headgate rules validate rules.yaml\nheadgate rules validate - < rules.yaml\n"
        "headgate rules validate rules.yaml --json | jq '.problems[].message'\n"
        "headgate rules validate ratelimit/config",
    )
    _file(validate, "files", "FILE", nargs="+", about="YAML files, folders of them, or - for the standard input")
    validate.add_argument(
        "--merge-domains", action="store_true", help="files of envoyproxy/ratelimit may share a domain"
    )
    listing = add_command(
        actions, "list", _explained(_list), summary="list the rules of a file, and how much each lets pass"
    )
    _file(listing, "file", "FILE", about="a YAML file, a folder of envoyproxy/ratelimit, or - for the standard input")
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
    validate.add_argument("--strict", action="store_true", help="warnings are problems: exit with 1 if there are any")
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


def _file(
    parser: argparse.ArgumentParser,
    name: str,
    shown: str,
    *,
    nargs: str | None = None,
    about: str = "a YAML file, or - for the standard input",
) -> None:
    parser.add_argument(name, metavar=shown, nargs=nargs, help=about)


def _validate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = validated(arguments.files, merge_domains=arguments.merge_domains)
    warnings = [odd for _, each in found for odd in each]
    code = NO if warnings and arguments.strict else OK
    if arguments.json:
        told = {"valid": code == OK, "problems": [], "warnings": [to_data(odd) for odd in warnings]}
        _say_json(terminal, told)
        return code
    tell(warnings, terminal, warning=True)
    for line, odd in found:
        if odd:
            count = f"{len(odd)} warning{'s' * (len(odd) != 1)}"
            verdict = "which --strict does not accept" if arguments.strict else "and it can be used"
            terminal.say(terminal.styled(f"{safe(line)}, {count}, {verdict}", "red" if arguments.strict else "yellow"))
        else:
            terminal.say(terminal.styled(f"{safe(line)}, nothing wrong", "green"))
    return code


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    descriptors = for_envoy(arguments.file)
    if descriptors is not None:
        if arguments.json:
            _say_json(terminal, {"descriptors": descriptors.described()})
        else:
            for line in descriptors.described():
                terminal.say(safe(line))
        return OK
    loaded = checked(arguments.file)
    if arguments.json:
        _say_json(terminal, rules_data(loaded.ruleset))
    else:
        tell_rules(loaded.ruleset, terminal)
    return OK


def _diff(arguments: argparse.Namespace, terminal: Terminal) -> int:
    old, new = (checked(file).ruleset for file in (arguments.old, arguments.new))
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
        unread = any(problem.kind is Kind.FILE for problem in problems)
        if arguments.json:
            data = [to_data(problem) for problem in problems]
            _say_json(terminal, {"valid": False, "problems": data, "warnings": []})
        else:
            tell(problems, terminal)
            count, files = len(problems), {problem.file: None for problem in problems}
            where = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
            told = f"{safe(where)}: {count} problem{'s' * (count != 1)}; these rules would not be used"
            if not unread:
                terminal.complain(terminal.styled(told, "red", err=True))
        return WRONG_USAGE if unread else NO

    return explaining


def _say_json(terminal: Terminal, data: Any) -> None:
    terminal.say(json.dumps(data, indent=2))
