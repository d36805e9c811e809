"""``headgate rules``: work with the rules of a file, without a server, or of a service."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headgate.cli import progress, served_rules, suggest
from headgate.cli.admin_client import add_admin_options
from headgate.cli.command import NO, OK, Commands, Terminal, add_command, add_group
from headgate.cli.rule_files import (
    for_envoy,
    load_rules,
    problem_data,
    reports_problems,
    validate_files,
    write_problems,
)
from headgate.cli.served_rules import BULK_SECONDS, LISTED
from headgate.core.numbers import printable
from headgate.policy.changing import merged
from headgate.policy.diff import Diff, FieldChange, State, compare
from headgate.policy.dumping import to_data as rules_data
from headgate.policy.forms import rules_schema
from headgate.policy.loading import from_data
from headgate.policy.model import Rule, Ruleset

_HEAD = ("ID", "COUNTS BY", "ENDPOINT", "FOR", "LIMIT", "")
_FATES = {
    State.KEPT: ("usage is kept", "dim"),
    State.PARTLY: ("some of its limits start afresh", "yellow"),
    State.AFRESH: ("starts afresh: its usage is lost", "yellow"),
}
_CODES = "Exit codes: 0 {}, 1 {}, 2 wrong usage, or no such file."


def add(commands: Commands) -> None:
    actions = add_group(commands, "rules", "validate, compare, list and apply rules")
    validate = add_command(
        actions,
        "validate",
        reports_problems(_validate),
        "report the problems of rule files, and where they are",
        more="A folder stands for its files *.yaml and *.yml. Each rule file is validated separately; those of\n"
        "envoyproxy/ratelimit (domain and descriptors) together, as one configuration.\n\n"
        + _CODES.format("the rules are valid", "they are not, or with --strict have warnings"),
        examples="headgate rules validate rules.yaml\nheadgate rules validate - < rules.yaml\n"
        "headgate rules validate rules.yaml --json | jq '.problems[].message'\n"
        "headgate rules validate ratelimit/config",
    )
    about = "YAML files, folders of them, or - for the standard input"
    validate.add_argument("files", metavar="FILE", nargs="+", help=about)
    validate.add_argument(
        "--merge-domains", action="store_true", help="files of envoyproxy/ratelimit may share a domain"
    )
    validate.add_argument("--strict", action="store_true", help="treat warnings as problems")
    validate.add_argument("--json", action="store_true", help="write JSON, for programs")
    listing = add_command(
        actions,
        "list",
        reports_problems(_list),
        "list the rules of a service, or of a file, with their limits",
        examples="headgate rules list\nheadgate rules list rules.yaml",
    )
    about = "a YAML file, a folder of envoyproxy/ratelimit, or - for the standard input; default: the service's rules"
    listing.add_argument("file", metavar="FILE", nargs="?", help=about)
    add_admin_options(listing)
    diff = add_command(
        actions,
        "diff",
        reports_problems(_diff),
        "show what a new rule file changes, and whose usage starts afresh",
        more="A changed limit or burst acts on the next request and keeps the usage. Another algorithm, window or\n"
        "dimension, or a change of a rule with reset_on_change, starts afresh.\n\n"
        + _CODES.format("no difference", "the rules differ, or are invalid"),
        examples="headgate rules diff new-rules.yaml\nheadgate rules diff rules.yaml new-rules.yaml\n"
        "git show HEAD:rules.yaml | headgate rules diff - rules.yaml",
    )
    about = "a YAML file, or - for the standard input"
    diff.add_argument("old", metavar="OLD", nargs="?", help=f"{about}; default: the service's rules")
    diff.add_argument("new", metavar="NEW", help=about)
    diff.add_argument("--all", action="store_true", help=f"list all differences, not only the first {LISTED} of a kind")
    add_admin_options(diff, seconds=BULK_SECONDS)
    served_rules.add_to_rules(actions)
    suggest.add_to_rules(actions)
    add_command(
        actions,
        "schema",
        _schema,
        "print the JSON Schema of the file, for editors",
        more="Save it, and begin the rules with this line:\n# yaml-language-server: $schema=headgate.schema.json",
        examples="headgate rules schema > headgate.schema.json",
    )


def _validate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = validate_files(arguments.files, merge_domains=arguments.merge_domains)
    warnings = [warning for _, each in found for warning in each]
    code = NO if warnings and arguments.strict else OK
    if arguments.json:
        message = {"valid": code == OK, "problems": [], "warnings": [problem_data(warning) for warning in warnings]}
        terminal.write_json(message)
        return code
    write_problems(warnings, terminal, warning=True)
    for line, warning in found:
        if warning:
            count = f"{len(warning)} warning{'s' * (len(warning) != 1)}"
            verdict = "which --strict does not accept" if arguments.strict else "and it can be used"
            colour = "red" if arguments.strict else "yellow"
            terminal.write(terminal.styled(f"{printable(line)}, {count}, {verdict}", colour))
        else:
            terminal.write(terminal.styled(f"{printable(line)}, nothing wrong", "green"))
    return code


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    descriptors = for_envoy(arguments.file) if arguments.file else None
    if descriptors is not None:
        if arguments.json:
            terminal.write_json({"descriptors": descriptors.described()})
        else:
            for line in descriptors.described():
                terminal.write(printable(line))
        return OK
    ruleset = _ruleset(arguments.file, arguments, terminal)
    if arguments.json:
        terminal.write_json(rules_data(ruleset))
    else:
        _write_rules(ruleset, terminal)
    return OK


def _ruleset(file: str | None, arguments: argparse.Namespace, terminal: Terminal) -> Ruleset:
    """Return the rules of a file, or by default those in force in the service."""
    return load_rules(file).ruleset if file else served_rules.in_force(arguments, terminal)


def _diff(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with progress.show(terminal, f"checking {arguments.new}"):
        loaded = load_rules(arguments.new)
    old, new = _ruleset(arguments.old, arguments, terminal), loaded.ruleset
    with progress.show(terminal, "comparing"):
        if not arguments.old:  # ignore sections that apply would not change
            present = rules_data(old)
            wanted = merged(rules_data(new), present, loaded.sections)
            new = new if wanted == rules_data(new) else from_data(wanted, name=arguments.new)
        diff = compare(old, new)
    if arguments.json:
        terminal.write_json(diff.to_data())
    else:
        _write_diff(diff, terminal, most=None if arguments.all else LISTED)
    return OK if diff.same else NO


def _schema(_: argparse.Namespace, terminal: Terminal) -> int:
    terminal.write_json(rules_schema())
    return OK


def _write_rules(ruleset: Ruleset, terminal: Terminal) -> None:
    rows = [_row(rule) for rule in ruleset.rules]
    if ruleset.default is not None:
        rows.append(_row(ruleset.default, "when no other rule applies"))
    if rows:
        terminal.write_table(_HEAD, rows)
    else:
        terminal.write("no rules")
    parts = {"tiers": ruleset.tiers, "users": ruleset.users, "allowed": ruleset.allow, "denied": ruleset.deny}
    counts = ", ".join(f"{what}: {len(held)}" for what, held in parts.items() if held)
    if counts:
        terminal.write(f"\n{counts}")


def _row(rule: Rule, note: str = "") -> tuple[str, ...]:
    conditions = [" ".join(sorted(rule.methods)), f"tier {rule.tier}" if rule.tier else ""]
    conditions.append(f"{rule.dimension} {rule.key_pattern}" if rule.key_pattern else "")
    conditions += [f"{name}={value}" for name, value in rule.when.items()]
    notes = ["disabled" * (not rule.enabled), "shadow" * rule.shadow, note]
    if rule.enforce_percent < 100:
        notes.append(f"enforced for {rule.enforce_percent}%")
    if rule.replaces:
        notes.append(f"replaces {', '.join(sorted(rule.replaces))}")
    asked = ", ".join(part for part in conditions if part) or "all"
    limit = "; ".join(map(str, rule.quotas))
    return rule.id, rule.dimension, rule.endpoint, asked, limit, ", ".join(part for part in notes if part)


def _write_diff(diff: Diff, terminal: Terminal, *, most: int | None) -> None:
    """Write added, removed and changed rules; at most so many of each kind."""
    if diff.same:
        terminal.write("no difference")
        return
    for sign, colour, rules in (("-", "red", diff.removed), ("+", "green", diff.added)):
        for rule in rules[:most]:
            quotas = "; ".join(map(str, rule.quotas))
            terminal.write(terminal.styled(f"{sign} rule {rule.id}: {quotas} by {rule.dimension}", colour))
    for change in diff.changed[:most]:
        terminal.write(terminal.styled(f"~ rule {change.id}", "cyan"))
        for field in change.fields:
            terminal.write(f"    {_line(field)}")
        message, colour = _FATES[change.state]
        because = f" ({change.because})" if change.because else ""
        terminal.write(terminal.styled(f"    {message}{because}", colour))
    for field in diff.others[:most]:
        sign = "+" if field.before is None else "-" if field.after is None else "~"
        terminal.write(f"{sign} {_line(field)}")
        if field.state in {State.PARTLY, State.AFRESH}:
            message, colour = _FATES[field.state]
            terminal.write(terminal.styled(f"    {message}", colour))
    count = len(diff.added), len(diff.removed), len(diff.changed), len(diff.others)
    if most is not None and max(count) > most:
        terminal.write(f"... the first {most} of each kind; --all lists all")
    terminal.write("\nrules: {:,} added, {:,} removed, {:,} changed; other changes: {:,}".format(*count))


def _line(change: FieldChange) -> str:
    name, before, after = printable(change.field), _written(change.before), _written(change.after)
    if change.before is None:
        return f"{name}: {after}" if change.after is not None else name
    return f"{name}: {before} -> {after}" if change.after is not None else f"{name}: {before} -> not given"


def _written(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
