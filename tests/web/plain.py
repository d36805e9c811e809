"""Responses by a plain writer: a reference for those that are assembled from prepared parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from headgate.core.decision import Decision
from headgate.core.plan import combine
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota

NOW = 1_800_000_000_000_001
QUOTAS = (*Quota.parse("3/s; 100/minute; 10/s burst 20; 5000000/day fixed_window"), Quota(7, 86_400_000_000 * 45))


@st.composite
def single_decisions(draw: st.DrawFn, *, degraded: str = "") -> Decision:
    """Draw a decision of one limit."""
    quota, allowed = draw(st.sampled_from(QUOTAS)), draw(st.booleans())
    state = draw(st.sampled_from(Pressure)) if allowed else Pressure.THROTTLED
    remaining = draw(st.integers(0, quota.capacity))
    retry, reset = draw(st.sampled_from([0, 1, 999_999, 1_000_000, 61_000_001, 2**40])), draw(st.integers(0, 2**40))
    delay = draw(st.sampled_from([0, 0, 1_500_000, 1])) if allowed else 0
    numbers = quota.capacity, remaining, 0 if allowed else retry, reset
    return Decision(allowed, *numbers, state, quota, delay_us=delay, degraded=degraded)


@st.composite
def decisions(draw: st.DrawFn, most: int = 4) -> Decision:
    """Draw a decision of a few limits."""
    degraded = draw(st.sampled_from(["", "", "circuit_open"]))
    return combine(draw(st.lists(single_decisions(degraded=degraded), min_size=1, max_size=most)))


def numbered(names: Sequence[str]) -> list[str]:
    """Return distinct names."""
    return [
        name if name not in names[:place] else f"{name}#{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def header_fields(
    decision: Decision,
    names: Sequence[str],
    *,
    reset_format: str = "epoch",
    legacy: bool = True,
    ietf: str = "draft-11",
    now: int = NOW,
) -> list[tuple[str, str]]:
    """Return the header fields of a decision."""
    names, limits = numbered(names), decision.limits
    fields = []
    if legacy:
        reset = decision.reset_after_us + (now if reset_format == "epoch" else 0)
        fields.append(("X-RateLimit-Limit", str(decision.limit)))
        fields.append(("X-RateLimit-Remaining", str(decision.remaining)))
        fields.append(("X-RateLimit-Reset", str(seconds(reset))))
    if decision.delay_us:
        fields.append(("X-RateLimit-Delay", f"{decision.delay_us / 1_000_000:.6f}".rstrip("0").rstrip(".")))
    states = [decision.state, *[limit.state for limit in limits]]
    for state in (Pressure.THROTTLED, Pressure.WARNING):
        if state in states:
            fields.append(("X-RateLimit-State", str(state)))
            break
    if not decision.allowed:
        fields += [("Retry-After", str(wait(decision))), ("Cache-Control", "no-store")]
    if decision.degraded:
        fields += [("X-RateLimit-Degraded", "true"), ("X-RateLimit-Degraded-Reason", decision.degraded)]
    if ietf == "draft-11":
        policies = [f'"{name}"{_policy(limit.quota)}' for name, limit in zip(names, limits, strict=True)]
        current = [f'"{name}"{_state(limit)}' for name, limit in zip(names, limits, strict=True)]
        fields += [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(current))]
    return fields


def refusal(decision: Decision, names: Sequence[str], *, is_ours: bool = False) -> dict[str, Any]:
    """Return the problem document of a refusal."""
    names, limits = numbered(names), decision.limits
    degraded = {"degraded": decision.degraded} if decision.degraded else {}
    kind = "https://iana.org/assignments/http-problem-types#"
    if is_ours:
        return {
            "status": 503,
            "title": "Temporary Reduced Capacity",
            "detail": f"The service cannot count requests at the moment. Retry in {wait(decision)} s.",
            "type": f"{kind}temporary-reduced-capacity",
            "violated-policies": names,
            "retry_after": wait(decision),
            **degraded,
        }
    refusing = [name for name, limit in zip(names, limits, strict=True) if not limit.allowed]
    return {
        "status": 429,
        "title": "Quota Exceeded",
        "detail": f"{names[decision.index]} allows {decision.quota}. Retry in {wait(decision)} s.",
        "type": f"{kind}quota-exceeded",
        "violated-policies": refusing,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": wait(decision),
        **degraded,
        "limits": [
            {
                "policy": name,
                "limit": limit.limit,
                "remaining": limit.remaining,
                "reset_after": seconds(limit.reset_after_us),
                "retry_after": 0 if limit.allowed else wait(limit),
                "state": str(limit.state),
            }
            for name, limit in zip(names, limits, strict=True)
        ],
    }


def shown(decision: Decision, names: Sequence[str]) -> tuple[Decision, Sequence[str]]:
    """Return what is shown of a decision of many limits."""
    if len(names) <= 20:
        return decision, names
    return msgspec.structs.replace(decision, parts=(), index=0), [names[decision.index]]


def seconds(us: int) -> int:
    return (us + 999_999) // 1_000_000


def wait(decision: Decision) -> int:
    return max(1, seconds(decision.retry_after_us))


def _policy(quota: Quota) -> str:
    whole_us = quota.window_us * (quota.limit + quota.burst) // quota.limit
    return f";q={quota.capacity};w={seconds(whole_us)}"


def _state(limit: Decision) -> str:
    until = limit.retry_after_us if not limit.allowed and limit.retry_after_us else limit.reset_after_us
    return f";r={limit.remaining};t={seconds(until)}"
