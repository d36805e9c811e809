"""``headgate rules``: look at the rules of a file, without a server, or of a service."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headgate.cli import progress, served_rules, suggest
from headgate.cli.admin_client import add_admin_options
from headgate.cli.command import NO, OK, Commands, Terminal, add_command, add_group
from headgate.cli.rule_files import checked, explained, for_envoy, problem_data, tell_problems, validated
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
    State.KEPT: ("what was used stays counted", "dim"),
    State.PARTLY: ("some of its limits start afresh", "yellow"),
    State.AFRESH: ("starts afresh: what was used is forgotten", "yellow"),
}
_CODES = "Exit codes: 0 {}, 1 {}, 2 wrong usage, or no such file."


def add(commands: Commands) -> None:
    """Add the group and its commands."""
    actions = add_group(commands, "rules", "validate, compare, list and apply rules")
    validate = add_command(
        actions,
        "validate",
        explained(_validate),
        "say what is wrong with files of rules, and where",
        more="A folder stands for its files *.yaml and *.yml. Each file of rules is validated on its own; those of\n"
        "envoyproxy/ratelimit (domain and descriptors) together, as one configuration.\n\n"
        + _CODES.format("the rules can be used", "they cannot, or with --strict have warnings"),
        examples="headgate rules validate rules.yaml\nheadgate rules validate - < rules.yaml\n"
        "headgate rules validate rules.yaml --json | jq '.problems[].message'\n"
        "headgate rules validate ratelimit/config",
    )
    about = "YAML files, folders of them, or - for the standard input"
    validate.add_argument("files", metavar="FILE", nargs="+", help=about)
    validate.add_argument(
        "--merge-domains", action="store_true", help="files of envoyproxy/ratelimit may share a domain"
    )
    validate.add_argument("--strict", action="store_true", help="warnings are problems: exit with 1 if there are any")
    validate.add_argument("--json", action="store_true", help="write JSON, for programs")
    listing = add_command(
        actions,
        "list",
        explained(_list),
        "list the rules of a service, or of a file, and how much each lets pass",
        examples="headgate rules list\nheadgate rules list rules.yaml",
    )
    about = "a YAML file, a folder of envoyproxy/ratelimit, or - for the standard input; default: what the service has"
    listing.add_argument("file", metavar="FILE", nargs="?", help=about)
    add_admin_options(listing)
    diff = add_command(
        actions,
        "diff",
        explained(_diff),
        "say what a new file of rules changes, and whose usage starts afresh",
        more="A changed limit or burst acts on the next request and keeps what was used. Another algorithm, window or\n"
        "dimension, or a change of a rule with reset_on_change, starts afresh.\n\n"
        + _CODES.format("no difference", "the rules differ, or are wrong"),
        examples="headgate rules diff new-rules.yaml\nheadgate rules diff rules.yaml new-rules.yaml\n"
        "git show HEAD:rules.yaml | headgate rules diff - rules.yaml",
    )
    about = "a YAML file, or - for the standard input"
    diff.add_argument("old", metavar="OLD", nargs="?", help=f"{about}; default: what the service has")
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
        more="Save it, and put this line first into the rules:\n# yaml-language-server: $schema=headgate.schema.json",
        examples="headgate rules schema > headgate.schema.json",
    )


def _validate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = validated(arguments.files, merge_domains=arguments.merge_domains)
    warnings = [odd for _, each in found for odd in each]
    code = NO if warnings and arguments.strict else OK
    if arguments.json:
        told = {"valid": code == OK, "problems": [], "warnings": [problem_data(odd) for odd in warnings]}
        terminal.say_json(told)
        return code
    tell_problems(warnings, terminal, warning=True)
    for line, odd in found:
        if odd:
            count = f"{len(odd)} warning{'s' * (len(odd) != 1)}"
            verdict = "which --strict does not accept" if arguments.strict else "and it can be used"
            colour = "red" if arguments.strict else "yellow"
            terminal.say(terminal.styled(f"{printable(line)}, {count}, {verdict}", colour))
        else:
            terminal.say(terminal.styled(f"{printable(line)}, nothing wrong", "green"))
    return code


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    descriptors = for_envoy(arguments.file) if arguments.file else None
    if descriptors is not None:
        if arguments.json:
            terminal.say_json({"descriptors": descriptors.described()})
        else:
            for line in descriptors.described():
                terminal.say(printable(line))
        return OK
    ruleset = _ruleset(arguments.file, arguments, terminal)
    if arguments.json:
        terminal.say_json(rules_data(ruleset))
    else:
        _tell_rules(ruleset, terminal)
    return OK


def _ruleset(file: str | None, arguments: argparse.Namespace, terminal: Terminal) -> Ruleset:
    """Return the rules of a file or, if none is named, those that the service has in force."""
    return checked(file).ruleset if file else served_rules.in_force(arguments, terminal)


def _diff(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with progress.shown(terminal, f"checking {arguments.new}"):
        loaded = checked(arguments.new)
    old, new = _ruleset(arguments.old, arguments, terminal), loaded.ruleset
    with progress.shown(terminal, "comparing"):
        if not arguments.old:  # what an apply would leave alone is no difference
            present = rules_data(old)
            wanted = merged(rules_data(new), present, loaded.sections)
            new = new if wanted == rules_data(new) else from_data(wanted, name=arguments.new)
        diff = compare(old, new)
    if arguments.json:
        terminal.say_json(diff.to_data())
    else:
        _tell_diff(diff, terminal, most=None if arguments.all else LISTED)
    return OK if diff.same else NO


def _schema(_: argparse.Namespace, terminal: Terminal) -> int:
    terminal.say_json(rules_schema())
    return OK


def _tell_rules(ruleset: Ruleset, terminal: Terminal) -> None:
    """Write one line for each rule, and what else the file has."""
    rows = [_row(rule) for rule in ruleset.rules]
    if ruleset.default is not None:
        rows.append(_row(ruleset.default, "when no other rule applies"))
    if rows:
        terminal.say_table(_HEAD, rows)
    else:
        terminal.say("no rules")
    parts = {"tiers": ruleset.tiers, "users": ruleset.users, "allowed": ruleset.allow, "denied": ruleset.deny}
    counts = ", ".join(f"{what}: {len(held)}" for what, held in parts.items() if held)
    if counts:
        terminal.say(f"\n{counts}")


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


def _tell_diff(diff: Diff, terminal: Terminal, *, most: int | None) -> None:
    """Write what came, what went, and what changed from what to what; at most so many of each kind."""
    if diff.same:
        terminal.say("no difference")
        return
    for sign, colour, rules in (("-", "red", diff.removed), ("+", "green", diff.added)):
        for rule in rules[:most]:
            quotas = "; ".join(map(str, rule.quotas))
            terminal.say(terminal.styled(f"{sign} rule {rule.id}: {quotas} by {rule.dimension}", colour))
    for change in diff.changed[:most]:
        terminal.say(terminal.styled(f"~ rule {change.id}", "cyan"))
        for field in change.fields:
            terminal.say(f"    {_line(field)}")
        told, colour = _FATES[change.state]
        because = f" ({change.because})" if change.because else ""
        terminal.say(terminal.styled(f"    {told}{because}", colour))
    for field in diff.others[:most]:
        sign = "+" if field.before is None else "-" if field.after is None else "~"
        terminal.say(f"{sign} {_line(field)}")
        if field.state in {State.PARTLY, State.AFRESH}:
            told, colour = _FATES[field.state]
            terminal.say(terminal.styled(f"    {told}", colour))
    count = len(diff.added), len(diff.removed), len(diff.changed), len(diff.others)
    if most is not None and max(count) > most:
        terminal.say(f"... of each kind the first {most} are shown; --all lists all")
    terminal.say("\nrules: {:,} added, {:,} removed, {:,} changed; other changes: {:,}".format(*count))


def _line(change: FieldChange) -> str:
    name, before, after = printable(change.field), _written(change.before), _written(change.after)
    if change.before is None:
        return f"{name}: {after}" if change.after is not None else name
    return f"{name}: {before} -> {after}" if change.after is not None else f"{name}: {before} -> not given"


def _written(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
