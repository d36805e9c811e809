"""``headgate replay``: how rules would have decided the requests of access logs."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec

from headgate.cli import progress
from headgate.cli.command import JSON, NO, OK, Commands, Terminal, option, split_pair
from headgate.cli.rule_files import for_envoy, load_rules, reports_problems
from headgate.cli.suggest import COLUMN, FORMAT
from headgate.core.errors import UsageError
from headgate.files import replace_file
from headgate.messages import counted, printable
from headgate.replay import chart
from headgate.replay.logs import STDIN, MergedLogs
from headgate.replay.replaying import ALWAYS, OWN_FIELDS, Fields, Replay, ReplaySummary
from headgate.replay.results import DENY_LIST, ComparisonSummary, RefusedSummary, RulesSummary, RuleSummary
from headgate.replay.wording import later, notes_on, percent, period_text, readable, unit_text
from headgate.stores.memory import MAX_KEYS

INTERRUPTED = 130
_WIDEST, _NARROWEST = 120, 40
_MOST_RULES, _MOST_NAMES = 20, 5
_SPARK = 20
_HEAD = ("RULE", "LIMIT", "BY", "DECIDED", "REFUSED", "SHARE", "PRINCIPALS", "WHEN")
_NUMBERS, _LESS_NEEDED = {"DECIDED", "REFUSED", "SHARE"}, ("WHEN", "BY", "LIMIT", "PRINCIPALS")


COMMANDS = Commands()
_REPEATED = f"NAME is the log's field FIELD, or one of {', '.join(OWN_FIELDS)}; may be repeated"


@COMMANDS.command(
    "replay",
    option("LOG+", "access logs, also .gz and .zst; - is the standard input"),
    option("--rules FILE", "the rules; or HEADGATE_RULES"),
    option("--compare OTHER", "other rules, to show what they would change"),
    FORMAT,
    option("--principal NAME=FIELD ...", f"the principal {_REPEATED}"),
    option("--attribute NAME=FIELD ...", f"the attribute {_REPEATED}"),
    COLUMN,
    option("--tier FIELD", "the field with the tier; default: that of the user", ""),
    option("--since TIME", "ignore lines before this time, such as 2026-11-01 or 2026-11-01T08:00:00Z"),
    option("--until TIME", "ignore lines from this time on"),
    option("--max-keys N", f"the maximum number of limits in memory; default: {MAX_KEYS:,}", MAX_KEYS),
    option("--html FILE", "write a report as a self-contained page"),
    JSON,
)
@reports_problems
def _replay(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show how rules would have decided the requests of access logs.

    The engine of the service decides every request of the log at its time, with a store in memory. Nothing
    is sent to a server. Rotated and compressed files can be in any order.

    Exit codes: 0 the log was replayed, 1 the rules are invalid, or no request was replayed, 2 usage error,
    or no such file, 130 interrupted: the results so far are printed.

    Examples:
      headgate replay --rules rules.yaml access.log
      headgate replay --rules rules.yaml --compare new-rules.yaml --html report.html access.log*
      zcat access.log.*.gz | headgate replay --rules rules.yaml --since 2026-11-01 - --json
    """
    arguments.rules = arguments.rules or os.environ.get("HEADGATE_RULES")
    if not arguments.rules:
        raise UsageError("set --rules FILE or HEADGATE_RULES")
    names = [name for name in (arguments.rules, arguments.compare) if name]
    if [*names, *arguments.log].count(STDIN) > 1:
        raise UsageError("only one of --rules, --compare and the logs can be -, the standard input")
    for name in names:
        if for_envoy(name) is not None:
            raise UsageError(f"{name} is for envoyproxy/ratelimit: a replay takes rules (headgate rules validate FILE)")
    rulesets = [load_rules(name).ruleset for name in names]
    principals = dict(_pairs(arguments.principal, "--principal", "user=sub"))
    fields = Fields(principals, dict(_pairs(arguments.attribute, "--attribute", "region=country")), arguments.tier)
    period = (
        _moment(arguments.since, "--since") if arguments.since else ALWAYS[0],
        _moment(arguments.until, "--until") if arguments.until else ALWAYS[1],
    )
    replay = Replay(rulesets, fields=fields, period=period, max_keys=arguments.max_keys)
    columns = {**fields.columns, **dict(_pairs(arguments.column, "--column", "time=when"))}
    logs = MergedLogs(arguments.log, form=arguments.format, columns=columns)
    is_complete = _run(replay, logs, terminal)
    summary = replay.summary(logs, is_complete=is_complete)
    if arguments.html:
        from headgate.replay.report import report  # noqa: PLC0415  an extra

        page = report(summary, _short(names), _short(logs.paths))
        try:
            replace_file(Path(arguments.html), page.encode(), durable=False, mode=0o666)  # less the umask
        except OSError as error:
            raise UsageError(f"--html {arguments.html}: {error.strerror}") from None
    if arguments.json:
        terminal.out.write(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n")
    else:
        _SummaryWriter(terminal, summary, names).write()
    if not is_complete:
        return INTERRUPTED
    return OK if summary.lines else NO


def _short(names: Sequence[str]) -> list[str]:
    """Return file names without folders, if they stay distinct."""
    short = ["standard input" if name == STDIN else Path(name).name for name in names]
    return short if len({*short}) == len(short) else [*names]


def _run(replay: Replay, logs: MergedLogs, terminal: Terminal) -> bool:
    with progress.show(terminal, "replaying", "bytes") as shown:
        shown.total, began = logs.total_bytes or 0, monotonic()

        def step() -> None:
            shown.done = logs.read_bytes
            shown.note = f"{replay.lines:,} lines, {replay.lines / max(monotonic() - began, 1e-9):,.0f} lines/s"

        try:
            replay.run(logs, step)
        except KeyboardInterrupt:
            return False
    return True


def _pairs(texts: Sequence[str], option: str, example: str) -> list[tuple[str, str]]:
    found = [split_pair(text, option, example) for text in texts]
    for name, field in found:
        if not field:
            raise UsageError(f"{option} takes NAME=FIELD, such as {example}, not {name}=")
    return found


def _moment(text: str, option: str) -> int:
    """Parse a time to microseconds since the epoch, by default in UTC. Raises UsageError."""
    try:
        given = datetime.fromisoformat(text.upper())
        given = given if given.tzinfo else given.replace(tzinfo=UTC)
        return int(given.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        message = f"{option} takes a day or a time, such as 2026-11-01 or 2026-11-01T08:00:00Z, not {text!r}"
        raise UsageError(message) from None


class _SummaryWriter:
    def __init__(self, terminal: Terminal, summary: ReplaySummary, names: Sequence[str]) -> None:
        self._terminal, self._summary, self._names = terminal, summary, names
        self._levels = chart.levels_for(terminal.out.encoding)
        width = shutil.get_terminal_size((100, 24)).columns if terminal.out.isatty() else 100
        self._width = min(max(width, _NARROWEST), _WIDEST)

    def write(self) -> None:
        summary, write = self._summary, self._terminal.write
        rules = summary.rules[0]
        if summary.lines:
            write(f"{counted(summary.lines, 'request')} from {period_text(summary.began, summary.ended)} UTC")
            for name, each in zip(self._names, summary.rules, strict=True):
                self._write_totals(name, each)
            self._write_charts(
                [
                    ("requests", rules.requests_over_time, 6, "cyan"),
                    ("refused", rules.refused_over_time, 4, "red"),
                    ("would be refused by shadow rules", rules.would_refuse_over_time, 3, "yellow"),
                ]
            )
            self._write_rules(rules)
            self._write_refused(rules)
            if summary.comparison is not None:
                self._write_comparison(summary.comparison)
        self._write_notes()

    def _write_totals(self, name: str, rules: RulesSummary) -> None:
        write, styled = self._terminal.write, self._terminal.styled
        share = percent(rules.refused, rules.requests)
        text = f"{rules.refused:,} refused ({share}), of {counted(rules.principals_refused, 'principal')}"
        shadow = f"; shadow rules would refuse {rules.would_refuse:,} more" if rules.would_refuse else ""
        refused = styled(text, "red") if rules.refused else text
        write(f"{printable(name)}: {rules.allowed:,} admitted, {refused}{styled(shadow, 'yellow')}")

    def _write_charts(self, charts: Sequence[tuple[str, Sequence[int], int, str]]) -> None:
        """Draw charts over time, one below the other: title, counts, height and colour of each."""
        summary, write = self._summary, self._terminal.write
        seconds, buckets = summary.bucket_seconds, len(summary.rules[0].requests_over_time)
        charts = [each for each in charts if any(each[1])]
        plot = chart.Plot(self._width, [counts for _, counts, *_ in charts], self._levels)
        for title, counts, height, style in charts:
            write(f"\n{title}, in {unit_text(plot.buckets_each(buckets) * seconds)}")
            for row in plot.rows(counts, height):
                write(row, style)
        if charts:
            began = datetime.fromisoformat(summary.buckets_from)
            write(plot.times(began, later(began, seconds * buckets), seconds, buckets))

    def _write_rules(self, rules: RulesSummary) -> None:
        applied = [rule for rule in rules.rules if rule.decided]
        rows = [self._row(rule) for rule in applied[:_MOST_RULES]]
        self._terminal.write()
        if rows:
            self._write_table(rows)
        if len(applied) > _MOST_RULES:
            self._terminal.write(f"... and {len(applied) - _MOST_RULES:,} rules that refuse less; --json has all")
        idle = [rule.id for rule in rules.rules if not rule.decided and rule.enabled]
        if idle:
            more = f" and {len(idle) - _MOST_NAMES:,} more" if len(idle) > _MOST_NAMES else ""
            self._terminal.write(f"applied to no request: {', '.join(idle[:_MOST_NAMES])}{more}")

    def _write_table(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Write the table of rules, with fewer columns in a narrow terminal."""
        widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
        kept = [*range(len(_HEAD))]
        for place in map(_HEAD.index, _LESS_NEEDED):
            if sum([widths[each] + 2 for each in kept]) - 2 > self._width:
                kept.remove(place)
        aligned = [
            [row[each].rjust(widths[each]) if _HEAD[each] in _NUMBERS else row[each] for each in kept] for row in rows
        ]
        self._terminal.write_table([_HEAD[each] for each in kept], aligned)

    def _row(self, rule: RuleSummary) -> tuple[str, ...]:
        refused, counts = rule.refused, rule.refused_over_time
        shadow = rule.would_refuse.count and not refused.count
        if shadow:
            refused, counts = rule.would_refuse, rule.would_refuse_over_time
        principals = f"{'' if refused.principals_exact else '~'}{refused.principals:,} of {rule.principals:,}"
        spark = chart.sparkline(counts, _SPARK, self._levels) if refused.count else ""
        name = f"{rule.id} (shadow)" if shadow or rule.shadow else rule.id
        share = percent(refused.count, rule.decided)
        return name, rule.limit, rule.counts_by, f"{rule.decided:,}", f"{refused.count:,}", share, principals, spark

    def _write_refused(self, rules: RulesSummary) -> None:
        found = [(DENY_LIST, rules.deny_listed)] if rules.deny_listed.count else []
        for rule in rules.rules:
            found += [(rule.id, each) for each in (rule.refused, rule.would_refuse) if each.count]
        for name, refused in found[:_MOST_NAMES]:
            self._terminal.write(f"\nmost refused by {self._terminal.styled(name, 'bold')}")
            self._write_top(refused)

    def _write_top(self, refused: RefusedSummary) -> None:
        least = "" if refused.top_exact else "at least "
        for each in refused.top[:_MOST_NAMES]:
            self._terminal.write(printable(f"  {each.principal}: {least}{each.count:,}"))
        first = refused.first
        if first is not None:
            what = f"{first.method} {first.path}"
            self._terminal.write(printable(f"  first at {readable(first.at)} UTC: {what} by {first.principal}"))

    def _write_comparison(self, changes: ComparisonSummary) -> None:
        write, styled = self._terminal.write, self._terminal.styled
        before, after = map(printable, self._names)
        write(f"\n{styled(f'with {after} instead of {before}', 'bold')}")
        for what, count, principals, colour in (
            ("refused", changes.newly_refused, changes.principals_newly_refused, "red"),
            ("admitted", changes.newly_admitted, changes.principals_newly_admitted, "green"),
        ):
            write(f"  {count:,} newly {what}, of {counted(principals, 'principal')}", colour if count else "")
        self._write_charts(
            [
                ("newly refused", changes.newly_refused_over_time, 3, "red"),
                ("newly admitted", changes.newly_admitted_over_time, 3, "green"),
            ]
        )
        for what, by_rule in (("newly refused by", changes.refused_by), ("no longer refused by", changes.admitted_by)):
            for rule, each in [*by_rule.items()][:_MOST_NAMES]:
                write(f"\n{what} {styled(rule, 'bold')}: {each.count:,}, of {counted(each.principals, 'principal')}")
                self._write_top(each)

    def _write_notes(self) -> None:
        summary = self._summary
        notes = notes_on(summary)
        if notes:
            self._terminal.write()
        for note in notes:
            self._terminal.write(printable(note), "yellow")
        for file, line, why, excerpt in summary.unread_first:
            self._terminal.write(printable(f"  {file}, line {line:,}: {why}: {excerpt}"))
