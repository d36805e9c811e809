"""``headgate rules suggest``: limits from access logs."""

from __future__ import annotations

import argparse

from headgate.cli import progress
from headgate.cli.command import OK, Commands, Terminal, add_command, named
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.policy.request import APIKEY, IP, USER, principal_name
from headgate.replay.logs import AUTO, FORMATS, MergedLogs
from headgate.replay.suggesting import HEADROOM, MOST_ENDPOINTS, Suggester

_KNOWN = {USER, IP, APIKEY}
_SHOWN = 5


def add_to_rules(actions: Commands) -> None:
    parser = add_command(
        actions,
        "suggest",
        _suggest,
        "suggest limits from access logs, as a rule file with its reasons",
        more="Paths become endpoints: /orders/17 and /orders/18 are /orders/*. For each endpoint, the suggested limit\n"
        "is what 99.9 % of users needed in their busiest minute and hour, times the headroom, rounded up.\n"
        "Outliers who used far more are named and excluded. Every rule is a shadow: it counts and reports, and\n"
        "refuses nothing, until you have reviewed what it would refuse.\n\n"
        "Formats are recognised: nginx, Apache, Envoy, AWS ALB, JSON lines, CSV, W3C; gzip and zstd too.",
        examples="headgate rules suggest access.log > rules.yaml\n"
        "headgate rules suggest /var/log/nginx/access.log* --by ip --headroom 3 > rules.yaml\n"
        "headgate rules suggest access.jsonl --by tenant=x_tenant_id\n"
        "headgate replay --rules rules.yaml access.log   # what they would have refused",
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", help="access logs, also compressed; - is the standard input")
    about = "count by user, ip or apikey, or by a field of the log; default: user if most requests have one, else ip"
    parser.add_argument("--by", metavar="NAME[=FIELD]", default="", help=about)
    about = f"factor for the measured usage; default: {HEADROOM:g}, which certainly admits all within the percentile"
    parser.add_argument("--headroom", metavar="FACTOR", type=float, default=HEADROOM, help=about)
    about = f"maximum number of rules for single endpoints; default: {MOST_ENDPOINTS}"
    parser.add_argument("--endpoints", metavar="N", type=int, default=MOST_ENDPOINTS, help=about)
    parser.add_argument("--enforce", action="store_true", help="suggest rules that refuse immediately, not shadows")
    parser.add_argument("--format", default=AUTO, help=f"{AUTO}, {', '.join(FORMATS)}; default: {AUTO}")
    about = "the log's name of a field that is not recognised: at, address, user, method, path, host, status, agent"
    parser.add_argument("--column", metavar="NAME=FIELD", action="append", default=[], help=about)


def _suggest(arguments: argparse.Namespace, terminal: Terminal) -> int:
    name, _, field = arguments.by.partition("=")
    by = principal_name(name)
    if field or (by and by not in _KNOWN):
        field = field or name
    columns = dict(named(text, "--column", "user=sub") for text in arguments.column) | ({field: field} if field else {})
    suggester = Suggester(
        by=by or next((known for known in (USER, APIKEY) if known in columns), ""),
        field=field,
        headroom=arguments.headroom,
        most_endpoints=arguments.endpoints,
        shadow=not arguments.enforce,
    )
    logs = MergedLogs(arguments.logs, form=arguments.format, columns=columns)
    with progress.show(terminal, "measuring", "bytes") as shown:
        shown.total = logs.total_bytes or 0

        def step() -> None:
            shown.done = logs.read_bytes

        suggester.read(logs, step)
    if logs.unread:
        message = f"{logs.unread:,} line{'s' * (logs.unread != 1)} could not be read; the first of them:"
        terminal.write_error(terminal.styled(message, "yellow", err=True))
        for file, line, why, excerpt in logs.unread_first[:_SHOWN]:
            terminal.write_error(printable(f"  {file}, line {line:,}: {why}: {excerpt}"))
    if not suggester.lines:
        raise UsageError("the log has no requests")
    terminal.out.write(suggester.suggestion().to_yaml())
    return OK
