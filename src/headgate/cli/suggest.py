"""``headgate rules suggest``: limits from access logs."""

from __future__ import annotations

import argparse

from headgate.cli import progress
from headgate.cli.command import OK, Commands, Terminal, option, split_pair
from headgate.core.errors import UsageError
from headgate.messages import counted, printable
from headgate.policy.request import APIKEY, IP, USER, principal_name
from headgate.replay.logs import AUTO, FORMATS, MergedLogs
from headgate.replay.suggesting import HEADROOM, MOST_ENDPOINTS, Suggester

_KNOWN = {USER, IP, APIKEY}
_SHOWN = 5


COMMANDS = Commands()
FORMAT = option("--format FORMAT", f"{AUTO}, {', '.join(FORMATS)}; default: {AUTO}", AUTO)
COLUMN = option(
    "--column NAME=FIELD ...",
    "the field of the log for NAME, if it is not recognised: at, address, user, method, path, host, status, agent",
)
_BY = "count by user, ip or apikey, or by a field of the log; default: user if most requests have one, else ip"
_ABOUT_HEADROOM = "the factor from the measured usage to the limit"


@COMMANDS.command(
    "suggest",
    option("LOG+", "access logs, also compressed; - is the standard input"),
    option("--by NAME[=FIELD]", _BY, ""),
    option("--headroom FACTOR", _ABOUT_HEADROOM, HEADROOM),
    option("--endpoints N", "the maximum number of rules for single endpoints", MOST_ENDPOINTS),
    option("--enforce", "suggest rules that refuse requests, instead of shadows"),
    FORMAT,
    COLUMN,
)
def _suggest(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Suggest limits from access logs, as a rules file with reasons.

    Paths become endpoints: /orders/17 and /orders/18 are /orders/*. For each endpoint, the suggested limit
    is what 99.9 % of users needed in their busiest minute and hour, times the headroom, rounded up.
    Outliers are named and excluded. Every rule is a shadow: it counts and reports, and refuses nothing.

    Formats are recognised: nginx, Apache, Envoy, AWS ALB, JSON lines, CSV, W3C; gzip and zstd too.

    Examples:
      headgate rules suggest access.log > rules.yaml
      headgate rules suggest /var/log/nginx/access.log* --by ip --headroom 3 > rules.yaml
      headgate replay --rules rules.yaml access.log   # what they would have refused
    """
    name, _, field = arguments.by.partition("=")
    by = principal_name(name)
    if field or (by and by not in _KNOWN):
        field = field or name
    columns = dict(split_pair(text, "--column", "user=sub") for text in arguments.column) | (
        {field: field} if field else {}
    )
    suggester = Suggester(
        by=by or next((known for known in (USER, APIKEY) if known in columns), ""),
        field=field,
        headroom=arguments.headroom,
        most_endpoints=arguments.endpoints,
        shadow=not arguments.enforce,
    )
    logs = MergedLogs(arguments.log, form=arguments.format, columns=columns)
    with progress.show(terminal, "measuring", "bytes") as shown:
        shown.total = logs.total_bytes or 0

        def step() -> None:
            shown.done = logs.read_bytes

        suggester.read(logs, step)
    if logs.unread:
        terminal.write_error(f"{counted(logs.unread, 'line')} could not be read; the first of them:", "yellow")
        for file, line, why, excerpt in logs.unread_first[:_SHOWN]:
            terminal.write_error(printable(f"  {file}, line {line:,}: {why}: {excerpt}"))
    if not suggester.lines:
        raise UsageError("the log has no requests")
    terminal.out.write(suggester.suggestion().to_yaml())
    return OK
