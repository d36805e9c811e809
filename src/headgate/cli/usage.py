"""``headgate usage``: how often rules decided what."""

from __future__ import annotations

import argparse
import time

from headgate.cli.admin_client import Json, add_admin_options, listed, paged
from headgate.cli.command import Commands, Terminal, add_command

_OUTCOMES = ("allowed", "denied", "shadow_allowed", "shadow_denied", "degraded")
_HOUR_US = 3_600_000_000


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "usage",
        _usage,
        summary="how often rules decided what",
        more="From the counters of all services that share the database, which are written once a minute.\n"
        "What was degraded, decided without the store, is among the allowed and denied, too.",
        examples="headgate usage --hours 24\nheadgate usage orders-user --step minute --hours 1 --json",
    )
    parser.add_argument("rule", metavar="RULE", nargs="?", default="", help="the id of a rule; default: all")
    parser.add_argument("--hours", metavar="N", type=int, default=24, help="how far back [%(default)s]")
    parser.add_argument("--step", choices=("minute", "hour"), default="hour", help="a line for each [%(default)s]")
    add_admin_options(parser)


def _usage(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = _all(arguments)
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for each in found:
        lines.setdefault((each["at"], each["rule_id"]), {})[each["outcome"]] = each["count"]
    rows = [(at, rule, *(counts.get(outcome, 0) for outcome in _OUTCOMES)) for (at, rule), counts in lines.items()]
    head = ("SINCE", "RULE", *(outcome.upper().replace("_", " ") for outcome in _OUTCOMES))
    return listed(arguments, terminal, found, head, rows)


def _all(arguments: argparse.Namespace) -> list[Json]:
    since = time.time_ns() // 1000 - max(0, arguments.hours) * _HOUR_US
    step_us = _HOUR_US if arguments.step == "hour" else _HOUR_US // 60
    since -= since % step_us  # with what has begun before
    return paged(arguments, "/usage", rule_id=arguments.rule, step=arguments.step, since=max(0, since))
