"""The form of file that the requirements quote: `rate_limits` with scope and resource, and `runtime`.

=====================================  ==========================================================================
in the file                            what it becomes
=====================================  ==========================================================================
``name``                               the rule's id
``scope``: user, ip, global, ...       the dimension; ``api_key`` is "apikey"
``resource: api.search``               the endpoint ``/api.search``: what a caller names as the endpoint "api.search"
``resource: /api/v1/orders/**``        that path
``resource: global``, ``default``      every endpoint, ``**``; as when there is no resource
capacity, refill_rate, min_refill...   a token bucket; refilled in steps of 10 ms by default
``runtime.fail_open``                  on_store_failure of all rules: true is ``allow``, false is ``deny``
the rest of ``runtime``                nothing: it is the server's business, not the rules'. A warning says what to do
=====================================  ==========================================================================

Two limits of one scope and resource whose names differ in one word (api_standard_user, api_premium_user) are tiers: the
one with the smallest capacity is for everyone, wherever it stands, and each other one is for the tier that its word
names ("premium"), for which it replaces that one. Were both applied, the stricter would hold and the other mean
nothing; were the last one to win, as in the document's own code, everyone would be premium. (Of api_user and
api_trial_user the first is for everyone: only then can the other one's tier be told.) It is a guess all the same, and a
warning says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.config.problems import Findings, Path, ProblemKind, render, shown
from headgate.config.schema import NAME, NAMED, Field, ListOf, Record, Scalar, Schema, Values
from headgate.core.errors import InvalidQuota
from headgate.core.mode import Mode
from headgate.core.quota import Quota
from headgate.policy.forms import made_rule
from headgate.policy.model import Rule, Ruleset
from headgate.policy.quotas import QUOTA_FIELDS

KEY = "rate_limits"
"""By this key a file of this form is known."""
_MEANING = ProblemKind.MEANING
_FAIL_OPEN = "fail_open"
_INTERVAL_MS = 10
_EVERY_ENDPOINT = {"global", "default", "*", "**"}
_SEPARATE = str.maketrans("-.:/", "____")
_SCOPES = ("user", "ip", "api_key", "global")
_CACHE = "The service repeats what a peek was told for 50 ms; in Python, CachedStore(store, peeks=0.05) does the same"
_ELSEWHERE = {
    "redis": "Give the server --store redis://{host}:{port}/{db}",
    "enable_read_cache": _CACHE,
    "read_cache_ttl_ms": _CACHE,
    "health_check": "Headgate's circuit breaker opens after 5 failures and probes by itself",
}


def _rule(read: Values, path: Path, findings: Findings) -> Rule | None:
    if not read.keys() >= {*_LIMIT.required}:
        return None
    interval = read.get("min_refill_interval_ms", _INTERVAL_MS)
    try:
        quota = Quota.from_bucket(read["capacity"], read["refill_rate"], min_refill_interval_ms=interval)
    except InvalidQuota as error:
        findings.add((*path, "refill_rate"), str(error), kind=_MEANING)
        return None
    given = {"id": read["name"], "quotas": (quota,), "dimension": read["scope"]}
    endpoint = _endpoint(read.get("resource", "default"))
    return made_rule({**given, "endpoint": endpoint}, path, findings, {"endpoint": "resource"})


class Runtime:
    """Settings of a server, of which one is about rules: what happens when the store is away."""

    def read(self, value: object, path: Path, findings: Findings) -> Mode | None:
        if type(value) is not dict:
            if value is not None:
                findings.add(path, f"{shown(value)} is not runtime", "a mapping with fail_open")
            return None
        for key, inner in value.items():
            if key != _FAIL_OPEN:
                hint = findings.near(key, [_FAIL_OPEN]) or _elsewhere(key, inner)
                findings.warn((*path, key), "is not about rules, and ignored", hint=hint, at_key=True)
        if _FAIL_OPEN not in value:
            return None
        return Mode.ALLOW if Scalar.flag().read(value[_FAIL_OPEN], (*path, _FAIL_OPEN), findings) else Mode.DENY

    def schema(self) -> Schema:
        return {"type": ["object", "null"], "properties": {_FAIL_OPEN: Scalar.flag().schema()}}


_LIMIT = Record(
    "a limit",
    {
        "name": Field(Scalar.text(NAMED, NAME, 64), "Names the limit.", required=True),
        "scope": Field(
            Scalar.text(f"one of {', '.join(_SCOPES)}", NAME, 64, _SCOPES), "Whom it is for.", required=True
        ),
        "resource": Field(Scalar.text("a resource such as api.search", r"[^\s?#]+", 2048), "What it is for."),
        **{name: replace(QUOTA_FIELDS[name], required=True) for name in ("capacity", "refill_rate")},
        "min_refill_interval_ms": QUOTA_FIELDS["min_refill_interval_ms"],
    },
    make=_rule,
)
_FILE = Record(
    "a file of rate limits",
    {
        KEY: Field(
            ListOf(_LIMIT, "a list of limits, each beginning with '- name: ...'", or_nothing=True), "The limits."
        ),
        "runtime": Field(Runtime(), "Settings of the server."),
    },
)


def ruleset_of(data: dict[str, Any], findings: Findings) -> Ruleset:
    """Return the rules of a file of this form; if the count of findings has grown, it is not to be used."""
    read = _FILE.read(data, (), findings) or {}
    rules = {index: rule for index, rule in enumerate(read.get(KEY, ())) if rule is not None}
    tiered = _tiered(rules, findings)
    return Ruleset.unchecked(rules=tuple([replace(rule, on_store_failure=read.get("runtime")) for rule in tiered]))


def _elsewhere(key: str, value: object) -> str:
    """Say where a setting belongs that is not about rules."""
    given = value if isinstance(value, dict) else {}
    parts = {"host": "localhost", "port": 6379, "db": 0} | given
    advice = _ELSEWHERE.get(key, "").format(host=parts["host"], port=parts["port"], db=parts["db"])
    return f"{advice}." if advice else ""


def _endpoint(resource: str) -> str:
    if resource in _EVERY_ENDPOINT:
        return "**"
    return resource if resource.startswith("/") else f"/{resource}"


def _tiered(rules: dict[int, Rule], findings: Findings) -> list[Rule]:
    """Make tiers of rules, by their place in the file, that are for the same scope and resource."""
    names: dict[str, int] = {}
    same: dict[tuple[str, str], list[Rule]] = {}
    for index, rule in rules.items():
        first = names.setdefault(rule.id, index)
        if first != index:
            message = f"{rule.id!r} is the name of {render((KEY, first))} already"
            findings.add((KEY, index, "name"), message, kind=_MEANING)
        else:
            same.setdefault((rule.dimension, rule.endpoint), []).append(rule)
    bases = {what: _base(limits) for what, limits in same.items()}
    result = []
    for index in names.values():
        rule = rules[index]
        base = bases[rule.dimension, rule.endpoint]
        result.append(rule if rule is base else _for_tier(rule, base, (KEY, index, "name"), findings))
    return result


def _base(limits: list[Rule]) -> Rule:
    """Return the limit for everyone: the smallest, unless only a shorter name tells the tiers of the others."""
    smallest = min(limits, key=lambda rule: rule.quotas[0].capacity)
    shortest = min(limits, key=lambda rule: len(_words(rule.id)))
    for base in (smallest, shortest):
        if all(_word_of_difference(base.id, rule.id) for rule in limits if rule is not base):
            return base
    return smallest


def _for_tier(rule: Rule, base: Rule, path: Path, findings: Findings) -> Rule:
    """Return the rule for those of the tier that its name tells, for whom it replaces the base."""
    tier = _word_of_difference(base.id, rule.id)
    if not tier:
        message = f"has the scope and resource of {base.id!r}, and no tier can be told from its name"
        accepted = "names that differ in one word, such as api_standard_user and api_premium_user"
        findings.add(path, message, accepted, kind=_MEANING)
        return rule
    guess = f"is taken as the limit of tier {tier!r}, and {base.id!r} as that of everyone else"
    findings.warn(path, guess, hint="`headgate rules list` shows the rules that come of it.")
    return replace(rule, tier=tier, replaces=frozenset({base.id}))


def _word_of_difference(base: str, other: str) -> str:
    old, new = _words(base), _words(other)
    extra = [word for word in new if word not in old]
    fewer = [word for word in old if word not in new]
    return extra[0] if len(extra) == 1 and len(fewer) <= 1 else ""


def _words(name: str) -> list[str]:
    return name.translate(_SEPARATE).split("_")
