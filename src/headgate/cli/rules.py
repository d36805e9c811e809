"""``headgate rules``: work with the rules of a file, without a server, or of a service."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headgate.cli import progress, served_rules, suggest
from headgate.cli.admin_client import BULK_TIMEOUT, admin_options
from headgate.cli.command import JSON, NO, OK, Commands, Terminal, option
from headgate.cli.rule_files import (
    for_envoy,
    load_rules,
    problem_data,
    reports_problems,
    validate_files,
    write_problems,
)
from headgate.cli.served_rules import LISTED
from headgate.messages import counted, printable
from headgate.policy.changing import merged
from headgate.policy.diff import Diff, FieldChange, State, compare
from headgate.policy.dumping import to_data as rules_data
from headgate.policy.forms import rules_schema
from headgate.policy.loading import from_data
from headgate.policy.model import Rule, Ruleset

COMMANDS = Commands()
RULES = COMMANDS.group("rules", "Validate, compare, list and apply rules.")
_HEAD = ("ID", "COUNTS BY", "ENDPOINT", "FOR", "LIMIT", "")
_FATES = {
    State.KEPT: ("usage is kept", "dim"),
    State.PARTLY: ("some of its limits start afresh", "yellow"),
    State.AFRESH: ("starts afresh: its usage is lost", "yellow"),
}
_FILE = "a YAML file, or - for the standard input"


@RULES.command(
    "validate",
    option("FILE+", "YAML files, folders of them, or - for the standard input"),
    option("--merge-domains", "files of envoyproxy/ratelimit may share a domain"),
    option("--strict", "treat warnings as problems"),
    JSON,
)
@reports_problems
def _validate(options: argparse.Namespace, terminal: Terminal) -> int:
    """Report the problems of rules files, with their positions.

    A folder stands for its files *.yaml and *.yml. Each rules file is validated separately; those of
    envoyproxy/ratelimit (domain and descriptors) are one configuration.

    Exit codes: 0 the rules are valid, 1 they are invalid, or have warnings with --strict, 2 usage error, or
    no such file.

    Examples:
      headgate rules validate rules.yaml
      headgate rules validate rules.yaml --json | jq '.problems[].message'
      headgate rules validate ratelimit/config
    """
    found = validate_files(options.file, merge_domains=options.merge_domains)
    warnings = [warning for _, each in found for warning in each]
    code = NO if warnings and options.strict else OK
    if options.json:
        message = {"valid": code == OK, "problems": [], "warnings": [problem_data(warning) for warning in warnings]}
        terminal.write_json(message)
        return code
    write_problems(warnings, terminal, warning=True)
    for line, warning in found:
        if warning:
            count = counted(len(warning), "warning")
            verdict = "which --strict does not accept" if options.strict else "and it can be used"
            colour = "red" if options.strict else "yellow"
            terminal.write(f"{printable(line)}, {count}, {verdict}", colour)
        else:
            terminal.write(f"{printable(line)}, nothing wrong", "green")
    return code


_LISTED_FILE = (
    "a YAML file, a folder of envoyproxy/ratelimit, or - for the standard input; default: the service's rules"
)


@RULES.command("list", option("FILE?", _LISTED_FILE), admin_options())
@reports_problems
def _list(options: argparse.Namespace, terminal: Terminal) -> int:
    """List the rules of a service, or of a file, with their limits."""
    descriptors = for_envoy(options.file) if options.file else None
    if descriptors is not None:
        if options.json:
            terminal.write_json({"descriptors": descriptors.described()})
        else:
            for line in descriptors.described():
                terminal.write(printable(line))
        return OK
    ruleset = _ruleset(options.file, options, terminal)
    if options.json:
        terminal.write_json(rules_data(ruleset))
    else:
        _write_rules(ruleset, terminal)
    return OK


def _ruleset(file: str | None, options: argparse.Namespace, terminal: Terminal) -> Ruleset:
    return load_rules(file).ruleset if file else served_rules.in_force(options, terminal)


@RULES.command(
    "diff",
    option("OLD?", f"{_FILE}; default: the service's rules"),
    option("NEW", _FILE),
    option("--all", f"list all differences, not only the first {LISTED} of a kind"),
    admin_options(timeout=BULK_TIMEOUT),
)
@reports_problems
def _diff(options: argparse.Namespace, terminal: Terminal) -> int:
    """Show what a new rules file changes, and which rules lose their usage.

    A changed limit or burst applies to the next request and keeps the usage. With another algorithm, window
    or dimension, and after a change of a rule with reset_on_change, the rule starts without usage.

    Exit codes: 0 no difference, 1 the rules differ, or are invalid, 2 usage error, or no such file.

    Examples:
      headgate rules diff rules.yaml new-rules.yaml
      git show HEAD:rules.yaml | headgate rules diff - rules.yaml
    """
    with progress.show(terminal, f"checking {options.new}"):
        loaded = load_rules(options.new)
    old, new = _ruleset(options.old, options, terminal), loaded.ruleset
    with progress.show(terminal, "comparing"):
        if not options.old:  # ignore sections that apply would not change
            present = rules_data(old)
            wanted = merged(rules_data(new), present, loaded.sections)
            new = new if wanted == rules_data(new) else from_data(wanted, name=options.new)
        diff = compare(old, new)
    if options.json:
        terminal.write_json(diff.to_data())
    else:
        _write_diff(diff, terminal, most=None if options.all else LISTED)
    return OK if diff.same else NO


RULES.include(served_rules.COMMANDS)
RULES.include(suggest.COMMANDS)


@RULES.command("schema")
def _schema(_: argparse.Namespace, terminal: Terminal) -> int:
    """Print the JSON Schema of rules files, for editors.

    Save it, and begin the rules with this line:
    # yaml-language-server: $schema=headgate.schema.json

    Examples:
      headgate rules schema > headgate.schema.json
    """
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
    which = ", ".join(part for part in conditions if part) or "all"
    limit = "; ".join(map(str, rule.quotas))
    return rule.id, rule.dimension, rule.endpoint, which, limit, ", ".join(part for part in notes if part)


def _write_diff(diff: Diff, terminal: Terminal, *, most: int | None) -> None:
    """Write added, removed and changed rules; at most so many of each kind."""
    if diff.same:
        terminal.write("no difference")
        return
    for sign, colour, rules in (("-", "red", diff.removed), ("+", "green", diff.added)):
        for rule in rules[:most]:
            quotas = "; ".join(map(str, rule.quotas))
            terminal.write(f"{sign} rule {rule.id}: {quotas} by {rule.dimension}", colour)
    for change in diff.changed[:most]:
        terminal.write(f"~ rule {change.id}", "cyan")
        for field in change.fields:
            terminal.write(f"    {_line(field)}")
        message, colour = _FATES[change.state]
        because = f" ({change.because})" if change.because else ""
        terminal.write(f"    {message}{because}", colour)
    for field in diff.others[:most]:
        sign = "+" if field.before is None else "-" if field.after is None else "~"
        terminal.write(f"{sign} {_line(field)}")
        if field.state in {State.PARTLY, State.AFRESH}:
            message, colour = _FATES[field.state]
            terminal.write(f"    {message}", colour)
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
