"""Files with `rate_limits` and `runtime`: limits by scope and resource, in the form of another rate limiter.

=====================================  ==========================================================================
in the file                            result
=====================================  ==========================================================================
``name``                               the rule's id
``scope``: user, ip, global, ...       the dimension; ``api_key`` is "apikey"
``resource: api.search``               the endpoint ``/api.search``
``resource: /api/v1/orders/**``        that path
``resource: global``, ``default``      every endpoint, ``**``; as without a resource
capacity, refill_rate, min_refill...   a token bucket; refilled in steps of 10 ms by default
``runtime.fail_open``                  on_store_failure of all rules: true is ``allow``, false is ``deny``
the rest of ``runtime``                nothing: it configures a server. A warning has the alternative
=====================================  ==========================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.config.problems import Findings, Path, render
from headgate.config.schema import NAME, NAMED, Field, ListOf, Record, Scalar, Values
from headgate.core.mode import Mode
from headgate.policy.forms import make_rule
from headgate.policy.model import DIMENSIONS, Rule, Ruleset
from headgate.policy.quotas import QUOTA_FIELDS, quotas_of

KEY = "rate_limits"
_FAIL_OPEN = "fail_open"
_INTERVAL_MS = 10
_EVERY_ENDPOINT = {"global", "default", "*", "**"}
_CACHE = "Peeks are cached for 50 ms by default; see --cache-peeks."
_INSTEAD = {
    "redis": "Use the option --store redis://HOST:PORT/DB.",
    "enable_read_cache": _CACHE,
    "read_cache_ttl_ms": _CACHE,
    "health_check": "See --breaker-failures and --breaker-pause.",
}


def _rule(read: Values, path: Path, findings: Findings) -> Rule | None:
    quotas = quotas_of({"min_refill_interval_ms": _INTERVAL_MS, **read}, path, findings)
    if quotas is None:
        return None
    resource = read.get("resource", "default")
    path_of_resource = resource if resource.startswith("/") else f"/{resource}"
    endpoint = "**" if resource in _EVERY_ENDPOINT else path_of_resource
    given = {"id": read["name"], "quotas": quotas, "dimension": read["scope"], "endpoint": endpoint}
    return make_rule(given, path, findings, {"endpoint": "resource"})


def _warn_elsewhere(_: Record, key: str, path: Path, findings: Findings) -> bool:
    """Warn of settings of a server: only the mode while the store is unavailable is for rules."""
    hint = findings.near(key, [_FAIL_OPEN]) or _INSTEAD.get(key, "")
    findings.warn(path, "is ignored: it does not affect rules", hint=hint, at_key=True)
    return True


_LIMIT = Record(
    "a limit",
    {
        "name": Field(Scalar.text(NAMED, NAME, 64), "Names the limit.", required=True),
        "scope": Field(
            Scalar.text(f"one of {', '.join(DIMENSIONS)}", NAME, 64, DIMENSIONS), "What it counts by.", required=True
        ),
        "resource": Field(Scalar.text("a resource such as api.search", r"[^\s?#]+", 2048), "What it is for."),
        **{name: replace(QUOTA_FIELDS[name], required=True) for name in ("capacity", "refill_rate")},
        "min_refill_interval_ms": QUOTA_FIELDS["min_refill_interval_ms"],
    },
    make=_rule,
)
_MODE = replace(Scalar.flag(), means={True: Mode.ALLOW, False: Mode.DENY}.get)
_RUNTIME = Record(
    "runtime",
    {_FAIL_OPEN: Field(_MODE, "Whether requests pass while the store is unavailable.")},
    make=lambda read, *_: read.get(_FAIL_OPEN),
    unknown=_warn_elsewhere,
)
_FILE = Record(
    "a file of rate limits",
    {
        KEY: Field(
            ListOf(_LIMIT, "a list of limits, each beginning with '- name: ...'", or_nothing=True), "The limits."
        ),
        "runtime": Field(_RUNTIME, "Settings of the server."),
    },
)


def ruleset_of(data: dict[str, Any], findings: Findings) -> Ruleset:
    """Return the rules of a file of this form; if the count of findings has grown, it must not be used."""
    given = {key: value for key, value in data.items() if key != "runtime" or value is not None}
    read = _FILE.read(given, (), findings) or {}
    names: dict[str, int] = {}
    scopes: dict[tuple[str, str], str] = {}
    rules = []
    for index, rule in enumerate(read.get(KEY, ())):
        if rule is None:
            continue
        path = (KEY, index, "name")
        first = names.setdefault(rule.id, index)
        if first != index:
            message = f"{rule.id!r} is already the name of {render((KEY, first))}"
            findings.reject(path, message)
            continue
        other = scopes.setdefault((rule.dimension, rule.endpoint), rule.id)
        if other != rule.id:
            message = f"has the scope and resource of {other!r}: both apply, so the stricter one decides"
            findings.warn(path, message, hint="For a limit of one tier, write a rule with `tier` and `replaces`.")
        rules.append(replace(rule, on_store_failure=read.get("runtime")))
    return Ruleset.unchecked(rules=tuple(rules))
