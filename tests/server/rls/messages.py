"""Envoy's messages, encoded and decoded by protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.protos import RateLimitRequest, RateLimitResponse

Pairs = Sequence[tuple[str, str]]
OK, OVER_LIMIT = 1, 2


def encoded(domain: str, *descriptors: Any, hits_addend: int = 0) -> bytes:
    """Return a request with descriptors, each a list of pairs, or one of `descriptor`."""
    question: Any = RateLimitRequest(domain=domain, hits_addend=hits_addend)
    for each in descriptors:
        options = each if isinstance(each, dict) else descriptor(*each)
        question.descriptors.add(**options)
    raw: bytes = question.SerializeToString()
    return raw


def descriptor(
    *pairs: tuple[str, str], hits: int | None = None, limit: tuple[int, int] | None = None, refund: bool = False
) -> dict[str, Any]:
    made: dict[str, Any] = {"entries": [{"key": key, "value": value} for key, value in pairs]}
    made["is_negative_hits"] = refund
    if hits is not None:
        made["hits_addend"] = {"value": hits}
    if limit is not None:
        made["limit"] = {"requests_per_unit": limit[0], "unit": limit[1]}
    return made


def answered(raw: bytes) -> Any:
    return RateLimitResponse.FromString(raw)


def headers(answer: Any) -> dict[str, str]:
    found = {header.key: header.value for header in answer.response_headers_to_add}
    assert len(found) == len(answer.response_headers_to_add)
    return found
