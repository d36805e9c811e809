"""``headgate users`` and ``refusals``: tiers, overrides and limits of single users, and callers' last refusals."""

from __future__ import annotations

from headgate.cli.admin_client import KEY, AdminCommand, admin_command
from headgate.cli.command import Commands, duration_us, option
from headgate.clock import SystemClock
from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.messages import printable

COMMANDS = Commands()
USERS = COMMANDS.group("users", f"Show and change tiers, overrides and usage of single users.\n\n{KEY}")
_USER = option("USER", "the name of the user, as in requests")


@admin_command(USERS, "list", option("--tier TIER", "only users of this tier", ""))
def _list_users(admin: AdminCommand) -> int:
    """List users with a tier or an override."""
    items = admin.pages("users", tier=admin.options.tier)
    rows = [(each["id"], each.get("tier", ""), ", ".join(each.get("overrides", {}))) for each in items]
    return admin.write_rows(items, ("USER", "TIER", "OVERRIDES"), rows)


@admin_command(USERS, "show", _USER)
def _show_user(admin: AdminCommand) -> int:
    """Show the limits of a user, with their usage and origin."""
    found = admin.call("GET", "users", admin.options.user, "limits")
    if not admin.options.json:
        late = "" if found["in_force"] else "; this node does not run the last change of the user yet"
        admin.terminal.write(f"user {printable(found['user_id'])}, tier {printable(found['tier'] or '(none)')}{late}")
    rows = [
        (rule["rule_id"], rule["endpoint"], limit["quota"], f"{limit['remaining']} of {limit['limit']}", rule["source"])
        for rule in found["rules"]
        for limit in rule["limits"]
    ]
    return admin.write_rows(found, ("RULE", "ENDPOINT", "LIMIT", "LEFT", "FROM"), rows)


@admin_command(USERS, "tier", _USER, option("TIER", "the tier; '' for none"), changes=True, waits=True)
def _set_tier(admin: AdminCommand) -> int:
    """Move a user to a tier."""
    user, tier = admin.options.user, admin.options.tier
    answer = admin.call("PUT", "users", user, "tier", body={"tier": tier})
    return admin.write_result(answer, f"user {user} is now in tier {tier or '(none)'}")


@admin_command(
    USERS,
    "override",
    _USER,
    option("RULE", "the id of a rule"),
    option("--limit N", "the limit, in units per window", type=int),
    option("--burst N", "the units that can pass at once in addition to the limit", type=int),
    option("--capacity N", "the units that can pass at once, including the limit", type=int),
    option("--window LENGTH", "the window, such as 30s, 1m or 1h"),
    option("--until MOMENT", "the end of the override, such as 2030-01-01T00:00:00Z; default: never"),
    option("--for LENGTH", "the duration of the override, such as 30m, 1h or 7d", dest="length"),
    option("--end", "end the override now"),
    changes=True,
    waits=True,
)
def _override(admin: AdminCommand) -> int:
    """Change a rule for one user, permanently or temporarily.

    Examples:
      headgate users override 42 orders-user --limit 500 --until 2030-01-01T00:00:00Z
      headgate users override 42 orders-user --limit 500 --for 1h
    """
    options = admin.options
    user, rule = options.user, options.rule
    names = ("limit", "burst", "capacity", "window", "until")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.end:
        if given or options.length is not None:
            wrong = next(iter(given), "for")
            raise UsageError(f"--end ends the override: it cannot be combined with --{wrong}")
        answer = admin.call("DELETE", "users", user, "override", query={"rule_id": rule})
        return admin.write_result(answer, f"user {user} no longer overrides {rule}")
    if options.length is not None:
        if options.until is not None:
            raise UsageError("--for and --until both set the end: use one of them")
        given["until"] = moment_text((SystemClock().now() + duration_us(options.length, "--for")) // SECOND * SECOND)
    if not given.keys() - {"until"}:
        raise UsageError("the override has no change: set --limit, --burst, --capacity or --window, or --end")
    answer = admin.call("POST", "users", user, "override", body={"rule_id": rule, **given})
    warned = "".join(f"; {warning}" for warning in answer.get("warnings", ()))
    return admin.write_result(answer, f"user {user}: {rule} is overridden{warned}")


@admin_command(
    USERS, "reset", _USER, option("RULE*", "only reset these rules; default: all that count by user"), changes=True
)
def _reset_user(admin: AdminCommand) -> int:
    """Reset the usage of a user, except of limits shared with others."""
    answer = admin.call("POST", "users", admin.options.user, "reset", body={"rules": admin.options.rule})
    return admin.write_result(answer, f"user {admin.options.user}: reset {', '.join(answer['reset']) or 'nothing'}")


@admin_command(
    COMMANDS,
    "refusals",
    option("--user VALUE", "the user, or its digest"),
    option("--apikey VALUE", "the API key, or its digest"),
    option("--ip VALUE", "the address, or its digest"),
    option(
        "--principal VALUE",
        "the value that rules count: a user, key, address, attribute or NAME=VALUE,... of a descriptor, or its digest",
    ),
    option("--rule RULE", "only refusals by this rule"),
    option("--since LENGTH", "the period, such as 15m or 1h", "1d"),
    option("--limit N", "the maximum number of lines", 50),
    option("--hours", "show the number of refusals in each hour"),
)
def _refusals(admin: AdminCommand) -> int:
    """List the last refusals of a user, a key or an address.

    The refusals are from all nodes that share the database, or from one node without a database. They are
    listed after about ten seconds, and kept for a day. COUNT includes similar refusals in five seconds.
    --hours shows the refusals of each principal per hour, which are kept as long as the audit trail.

    Examples:
      headgate refusals --principal '#57b43cf02666687a'   # as the log shows it
      headgate refusals --user 42 --hours --since 30d
    """
    options = admin.options
    since = SystemClock().now() - duration_us(options.since, "--since")
    query = {name: getattr(options, name) for name in ("user", "apikey", "ip", "principal", "limit")}
    query |= {"rule_id": options.rule, "since": max(0, since), "step": "hour" if options.hours else "each"}
    found = admin.call("GET", "refusals", query=query)["items"]
    if options.hours:
        return admin.write_list(found, {"SINCE": "at", "RULE": "rule_id", "PRINCIPAL": "principal", "REFUSED": "count"})
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
    return admin.write_rows(found, ("AT", "RULE", "ENDPOINT", "PRINCIPAL", "USED", "RETRY", "COUNT", "BY"), rows)
