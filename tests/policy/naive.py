"""The policy as plainly as it can be written, which the compiled one must equal: every rule is looked at every time.

It shares with the compiled policy only what has tests of its own: the canonical form of paths, the keys, and the number
that decides who is enforced.
"""

from __future__ import annotations

from fnmatch import translate
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from re import fullmatch
from typing import NamedTuple

from headgate.core.key import Principal, bounded, space
from headgate.core.quota import Quota
from headgate.policy.model import Entry, Rule, Ruleset, User
from headgate.policy.paths import normalised
from headgate.policy.prepared import share_of, space_name
from headgate.policy.request import Request


class NaiveLimit(NamedTuple):
    rule: str
    space: str
    principal: Principal
    quota: Quota


class NaiveAnswer(NamedTuple):
    verdict: str
    enforced: list[NaiveLimit]
    shadow: list[list[NaiveLimit]]


def naive_plan(ruleset: Ruleset, request: Request, now: int) -> NaiveAnswer:
    if any(is_listed(entry, request) for entry in ruleset.deny):
        return NaiveAnswer("denied", [], [])
    if any(is_listed(entry, request) for entry in ruleset.allow):
        return NaiveAnswer("allowed", [], [])
    matching = [rule for rule in ruleset.rules if does_match(rule, ruleset, request)]
    applying = [rule for rule in matching if does_apply(rule, matching, request)]
    if not any(is_enforced(rule, request) for rule in applying) and ruleset.default is not None:
        applying += [ruleset.default] * does_match(ruleset.default, ruleset, request)
    enforced = []
    shadow = []
    for rule in applying:
        limits = limits_of(rule, ruleset, request, now)
        if is_enforced(rule, request):
            enforced += limits
        else:
            shadow.append(limits)
    return NaiveAnswer("limited" if enforced else "unlimited", enforced, shadow)


def does_apply(rule: Rule, matching: list[Rule], request: Request) -> bool:
    """Whether no rule that applies replaces it; they do not do so in a circle."""
    replacing = [other for other in matching if rule.id in other.replaces and is_enforced(other, request)]
    return not any(does_apply(other, matching, request) for other in replacing)


def does_match(rule: Rule, ruleset: Ruleset, request: Request) -> bool:
    return (
        rule.enabled
        and fits(rule.endpoint.strip("/").split("/"), normalised(request.endpoint).strip("/").split("/"))
        and (not rule.methods or method_counted(rule, request) in rule.methods)
        and (not rule.tier or rule.tier == tier_of(ruleset, request))
        and all(fact(request, name) == value for name, value in rule.when.items())
        and counted(rule, request) is not None
        and (not rule.key_pattern or is_listed(Entry(rule.dimension, rule.key_pattern), request))
    )


def counted(rule: Rule, request: Request) -> str | None:
    """Who is counted: a value, or several with a bar between them."""
    values = [fact(request, name) for name in rule.dimension.split("+")]
    if None in values:
        return None
    if len(values) == 1:
        return values[0]
    return "|".join(str(value).replace("\\", "\\\\").replace("|", "\\|") for value in values)


def method_counted(rule: Rule, request: Request) -> str:
    method = request.method.upper()
    return "GET" if method == "HEAD" and "HEAD" not in rule.methods else method


def fits(pattern: list[str], path: list[str]) -> bool:
    """Compare segment by segment; "/" is the path of one empty segment."""
    if pattern == ["**"]:
        return True
    if pattern == [] or path in ([], [""]):
        return pattern == path
    is_any = pattern[0] == "*" or pattern[0].startswith("{")
    return (is_any or pattern[0] == path[0]) and fits(pattern[1:], path[1:])


def fact(request: Request, name: str) -> str | None:
    if name == "global":
        return "global"
    if name == "endpoint":
        return normalised(request.endpoint)
    if name == "ip" and "ip" in request.principal:
        address = plain(request.principal["ip"])
        return str(ip_network((address, 64), strict=False) if address.version == 6 else address)
    if name in request.principal:
        return request.principal[name]
    return None if name in {"user", "ip", "apikey"} else request.attributes.get(name)


def plain(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text)
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def user_of(ruleset: Ruleset, request: Request) -> User:
    return ruleset.users.get(request.principal.get("user", ""), User())


def tier_of(ruleset: Ruleset, request: Request) -> str:
    return request.tier or user_of(ruleset, request).tier or ruleset.default_tier


def is_enforced(rule: Rule, request: Request) -> bool:
    return not rule.shadow and share_of(rule.id, counted(rule, request) or "") < rule.enforce_percent


def limits_of(rule: Rule, ruleset: Ruleset, request: Request, now: int) -> list[NaiveLimit]:
    quotas = rule.quotas
    of_tier = ruleset.tiers.get(tier_of(ruleset, request), {}).get(rule.id)
    of_user = user_of(ruleset, request).overrides.get(rule.id)
    for change in (of_tier, of_user):
        if change is not None and (change.until is None or now < change.until):
            quotas = change.apply(quotas)
    principal = bounded(counted(rule, request) or "")
    return [NaiveLimit(rule.id, space(space_name(rule), quota), principal, quota) for quota in quotas]


def is_listed(entry: Entry, request: Request) -> bool:
    value = fact(request, entry.dimension)
    if value is None:
        return False
    if entry.dimension == "ip":
        value = str(plain(request.principal["ip"]))
    if entry.network is not None:
        return ip_address(value) in entry.network
    if "*" in entry.value:
        return fullmatch(translate(entry.value), value) is not None
    return entry.value == value
