"""``headgate users`` and ``refusals``: tiers, overrides and limits of single users, and callers' last refusals."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from headgate.cli.admin_client import KEY, add_admin_options, call, read_pages, write_list, write_result
from headgate.cli.command import Commands, Terminal, add_command, add_group
from headgate.clock import SystemClock
from headgate.config.times import length_of, moment_text
from headgate.core.errors import UsageError
from headgate.core.numbers import printable, short
from headgate.core.quota import SECOND


def add(commands: Commands) -> None:
    actions = add_group(commands, "users", "tiers, overrides and limits of single users", more=KEY)
    listing = add_command(actions, "list", _list_users, "list users with a tier or an override")
    listing.add_argument("--tier", default="", help="only those of a tier")
    show = add_command(actions, "show", _show_user, "show a user's limits and their current state")
    tier = add_command(actions, "tier", _set_tier, "move a user to a tier", examples="headgate users tier 42 premium")
    override = add_command(
        actions,
        "override",
        _override,
        "change a rule for one user, permanently or for a time",
        examples="headgate users override 42 orders-user --limit 500 --until 2030-01-01T00:00:00Z\n"
        "headgate users override 42 orders-user --limit 500 --for 1h\n"
        "headgate users override 42 orders-user --end",
    )
    reset = add_command(
        actions,
        "reset",
        _reset_user,
        "reset what a user used; limits shared with others are not reset",
        examples="headgate users reset 42\nheadgate users reset 42 orders-user",
    )
    for parser in (show, tier, override, reset):
        parser.add_argument("user", metavar="USER", help="as in the principal user of requests")
    tier.add_argument("tier", metavar="TIER", help="its name; '' for none")
    override.add_argument("rule", metavar="RULE", help="the id of a rule")
    for name, about in (
        ("limit", "units in a window, instead of the rule's"),
        ("burst", "units beyond the limit that may come at once"),
        ("capacity", "units that may come at once, the limit included"),
    ):
        override.add_argument(f"--{name}", type=int, metavar="N", help=about)
    override.add_argument("--window", metavar="LENGTH", help="such as 30s, 1m, 1h")
    override.add_argument(
        "--until", metavar="MOMENT", help="when it expires, such as 2030-01-01T00:00:00Z; default: never"
    )
    override.add_argument("--for", dest="length", metavar="LENGTH", help="how long it lasts, such as 30m, 1h or 7d")
    override.add_argument("--end", action="store_true", help="end the override now")
    reset.add_argument("rules", metavar="RULE", nargs="*", help="rules that count users; default: all")
    for parser in (listing, show, tier, override, reset):
        add_admin_options(parser, changes=parser not in {listing, show}, waits=parser in {tier, override})
    _add_refusals(commands)


def _add_refusals(commands: Commands) -> None:
    parser = add_command(
        commands,
        "refusals",
        _refusals,
        "list the last refusals of a user, a key or an address",
        more="From all nodes that share the database, after ten seconds and for a day; without a database, from the\n"
        "node that is called. COUNT is the number of similar ones in five seconds. --hours shows the refusals per\n"
        "hour of principals, for as long as the audit trail.",
        examples="headgate refusals --user 42\nheadgate refusals --ip 203.0.113.9 --rule orders-user --since 1h\n"
        "headgate refusals --principal '#57b43cf02666687a'   # as the log shows it\n"
        "headgate refusals --user 42 --hours --since 30d",
    )
    for name, about in (
        ("user", "of this user"),
        ("apikey", "of this API key"),
        ("ip", "of this address"),
        ("principal", "by rules that count this: a user, key, address, attribute or NAME=VALUE,... of a descriptor"),
    ):
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"{about}, or its digest")
    parser.add_argument("--rule", metavar="RULE", help="by this rule")
    parser.add_argument("--since", metavar="LENGTH", default="1d", help="the period, such as 15m, 1h [%(default)s]")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many [%(default)s]")
    parser.add_argument("--hours", action="store_true", help="a line for each hour, with the number of refusals")
    add_admin_options(parser)


def _refusals(arguments: argparse.Namespace, terminal: Terminal) -> int:
    try:
        since = SystemClock().now() - length_of(arguments.since)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
    query = {name: getattr(arguments, name) for name in ("user", "apikey", "ip", "principal", "limit")}
    query |= {"rule_id": arguments.rule, "since": max(0, since), "step": "hour" if arguments.hours else "each"}
    found = call(arguments, "GET", "/refusals", query=query)["items"]
    if arguments.hours:
        hours = [(each["at"], each["rule_id"], each["principal"], each["count"]) for each in found]
        return write_list(arguments, terminal, found, ("SINCE", "RULE", "PRINCIPAL", "REFUSED"), hours)
    rows = [
        (
            each["at"],
            each["rule_id"] or f"({each['reason']})",
            f"{each['method']} {each['endpoint']}".strip(),
            each["principal"],
            "" if each["limit"] is None else f"{each['used']} of {each['limit']}",
            "" if each["retry_after"] is None else f"{each['retry_after']:.0f} s",
            each["count"],
            f"{each['api']} {each['reason']}".strip(),
        )
        for each in found
    ]
    return write_list(
        arguments, terminal, found, ("AT", "RULE", "ENDPOINT", "PRINCIPAL", "USED", "RETRY", "COUNT", "BY"), rows
    )


def _list_users(arguments: argparse.Namespace, terminal: Terminal) -> int:
    items = read_pages(arguments, "/users", tier=arguments.tier)
    rows = [(each["id"], each.get("tier", ""), ", ".join(each.get("overrides", {}))) for each in items]
    return write_list(arguments, terminal, items, ("USER", "TIER", "OVERRIDES"), rows)


def _user(arguments: argparse.Namespace) -> str:
    return f"/users/{quote(arguments.user, '')}"


def _show_user(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", f"{_user(arguments)}/limits")
    if not arguments.json:
        late = "" if found["in_force"] else "; this node does not run the last change of the user yet"
        terminal.write(f"user {printable(found['user_id'])}, tier {printable(found['tier'] or '(none)')}{late}")
    rows = [
        (rule["rule_id"], rule["endpoint"], limit["quota"], f"{limit['remaining']} of {limit['limit']}", rule["source"])
        for rule in found["rules"]
        for limit in rule["limits"]
    ]
    return write_list(arguments, terminal, found, ("RULE", "ENDPOINT", "LIMIT", "LEFT", "FROM"), rows)


def _set_tier(arguments: argparse.Namespace, terminal: Terminal) -> int:
    answer = call(arguments, "PUT", f"{_user(arguments)}/tier", {"tier": arguments.tier})
    return write_result(
        arguments, terminal, answer, f"user {arguments.user} is now in tier {arguments.tier or '(none)'}"
    )


def _override(arguments: argparse.Namespace, terminal: Terminal) -> int:
    names = ("limit", "burst", "capacity", "window", "until")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.end:
        if given or arguments.length is not None:
            wrong = next(iter(given), "for")
            raise UsageError(f"--end ends the override: it cannot be combined with --{wrong}")
        answer = call(arguments, "DELETE", f"{_user(arguments)}/override", query={"rule_id": arguments.rule})
        return write_result(arguments, terminal, answer, f"user {arguments.user} no longer overrides {arguments.rule}")
    if arguments.length is not None:
        if arguments.until is not None:
            raise UsageError("--for and --until both set the end: give one of them")
        given["until"] = _moment_in(arguments.length)
    if not given.keys() - {"until"}:
        raise UsageError("give a change: --limit, --burst, --capacity or --window; or --end")
    answer = call(arguments, "POST", f"{_user(arguments)}/override", {"rule_id": arguments.rule, **given})
    warned = "".join(f"; {warning}" for warning in answer.get("warnings", ()))
    return write_result(arguments, terminal, answer, f"user {arguments.user}: {arguments.rule} is overridden{warned}")


def _moment_in(text: str) -> str:
    """Return the time after a duration from now, in whole seconds. Raises UsageError."""
    try:
        return moment_text((SystemClock().now() + length_of(text)) // SECOND * SECOND)
    except (ValueError, OverflowError):
        raise UsageError(f"--for must be a duration, such as 30m, 1h or 7d, not {short(text)}") from None


def _reset_user(arguments: argparse.Namespace, terminal: Terminal) -> int:
    answer = call(arguments, "POST", f"{_user(arguments)}/reset", {"rules": arguments.rules})
    done = ", ".join(answer["reset"]) or "nothing"
    return write_result(arguments, terminal, answer, f"user {arguments.user}: reset {done}")
