"""A file of rules as a table."""

from __future__ import annotations

from headgate.cli.terminal import Terminal, safe
from headgate.policy.model import Rule, Ruleset

_HEAD = ("ID", "COUNTS BY", "ENDPOINT", "FOR", "LIMIT", "")


def tell_rules(ruleset: Ruleset, terminal: Terminal) -> None:
    """Write one line for each rule, and what else the file has."""
    rows = [_row(rule) for rule in ruleset.rules]
    if ruleset.default is not None:
        rows.append(_row(ruleset.default, "when no other rule applies"))
    if rows:
        widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD))]
        for row in (_HEAD, *rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            terminal.say(terminal.styled(line, "bold") if row is _HEAD else line)
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
    cells = (rule.id, rule.dimension, rule.endpoint, asked, limit, ", ".join(part for part in notes if part))
    return tuple(safe(cell) for cell in cells)
