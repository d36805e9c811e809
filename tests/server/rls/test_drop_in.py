"""The responses for a configuration with every feature of envoyproxy/ratelimit equal that service's, byte for byte.

They have more: the key `headgate` of the metadata, header fields, and the body of a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from typing import Any, NamedTuple

import grpc
import pytest

from headgate.policy.envoy import Unit
from headgate.protos import RateLimitResponse
from tests.server.process.service import Service, service
from tests.server.rls.conftest import PATH
from tests.server.rls.envoys import EXAMPLES
from tests.server.rls.messages import OK, OVER_LIMIT, answered, descriptor, encoded

ALL = 2**32 - 1
NONE = (OK, None, 0)
"""The status of a descriptor without a limit."""


def of(remaining: int, number: int, unit: str = "YEAR", name: str = "", code: int = OK) -> tuple[int, Any, int]:
    return code, (number, Unit[unit], name), remaining


def over(number: int, unit: str = "YEAR", name: str = "") -> tuple[int, Any, int]:
    return of(0, number, unit, name, OVER_LIMIT)


class Step(NamedTuple):
    descriptors: list[Any]
    statuses: list[tuple[int, Any, int]]
    metadata: dict[str, Any] | None = None
    """Of the descriptors that passed."""
    code: int = OK
    hits: int = 0
    """Of the request."""
    domain: str = "shop"


IP, MARKETING, TRIAL = [("remote_address", "198.51.100.7")], [("message_type", "marketing")], [("trial", "x")]
GROWTH = {"owner": "growth", "routing": {"pool": "bulk", "weight": 2.0}}
ACCOUNTS = {"owner": "accounts", "routing": {"pool": "users", "weight": 1.0}}
SMALL, LARGE, X = [("quota", "small")], [("quota", "large")], ("path", "/x")
PAGE = {"kind": "page"}

STEPS = {
    "a default, a value of its own that is unlimited, and more entries than the file has levels": [
        Step([IP], [of(19, 20, name="per-ip")]),
        Step([[("remote_address", "192.0.2.1")]], [(OK, None, ALL)]),
        Step([[*IP, ("extra", "1")]], [NONE]),
    ],
    "nested descriptors": [
        Step([[*MARKETING, ("to_number", "1")]], [of(4, 5, "WEEK")], {"owner": "sms"}),
        Step([MARKETING], [of(11, 12, "MONTH", "marketing")], GROWTH),
        Step([[("message_type", "billing"), ("to_number", "1")]], [of(3, 4, "DAY")]),
        Step([[("message_type", "billing")]], [NONE]),
    ],
    "shadow mode": [*[Step([TRIAL], [of(left, 3)], {"trial": True}) for left in (2, 1, 0, 0)]],
    "a limit that replaces others of its request, and metadata of several, of which the first counts": [
        Step(
            [[("remote_address", "198.51.100.8")], [("user", "vip")]], [NONE, of(14, 15, name="vip")], {"owner": "vips"}
        ),
        Step([[("remote_address", "198.51.100.8")]], [of(19, 20, name="per-ip")]),
        Step([[("user", "ada")], MARKETING], [of(5, 6, name="user"), of(10, 12, "MONTH", "marketing")], ACCOUNTS),
    ],
    "no limit, a limit of 0, and what no file has": [
        Step([[("health", "check")]], [NONE]),
        Step([[("unknown", "x")]], [NONE]),
        Step([IP, IP], [NONE, NONE], domain="nobody"),
        Step([[("banned", "x")]], [over(0)], code=OVER_LIMIT),
    ],
    "wildcards, with a threshold that is shared, and with one for each value": [
        Step([[("path", "/files/a")]], [of(4, 10)], hits=6),
        Step([[("path", "/files/b")]], [of(0, 10)], hits=4),
        Step([[("path", "/files/c")]], [over(10)], code=OVER_LIMIT),
        *[Step([[("path", f"/img/{n}.png")]], [of(2, 3)], {"kind": "image"}) for n in range(2)],
        Step([[X]], [of(7, 8)], PAGE),
        Step([[X, ("method", "POST")]], [of(4, 5)]),
        Step([[X, ("method", "PUT")]], [of(3, 5)]),
        Step([[X, ("method", "GET")]], [NONE]),
    ],
    "quotas, which refuse only together": [
        Step([SMALL], [of(0, 4)], {"backend": "small"}, hits=4),
        Step([SMALL, LARGE], [over(4), of(8, 9)], {"backend": "large"}),
        Step([SMALL], [over(4)], code=OVER_LIMIT),
        Step([LARGE], [of(0, 9)], {"backend": "large"}, hits=8),
        Step([SMALL, LARGE], [over(4), over(9)], code=OVER_LIMIT),
        Step([SMALL, IP], [over(4), of(18, 20, name="per-ip")], code=OVER_LIMIT),
    ],
    "hits of a request and of its descriptors, and limits that come with them": [
        Step(
            [IP, descriptor(("user", "bob"), hits=2)],
            [of(15, 20, name="per-ip"), of(4, 6, name="user")],
            ACCOUNTS,
            hits=3,
        ),
        Step([descriptor(("user", "bob"), hits=0)], [of(4, 6, name="user")], ACCOUNTS),
        Step([descriptor(("user", "eve"), limit=(2, Unit.DAY))], [of(1, 2, "DAY")]),
        Step([descriptor(("user", "eve"), limit=(2, Unit.WEEK), hits=3)], [over(2, "WEEK")], code=OVER_LIMIT),
        Step([[("user", "eve")]], [of(5, 6, name="user")], ACCOUNTS),
    ],
    "hits that are given back, as Envoy's protocol has them": [
        Step([descriptor(("user", "gus"), hits=3)], [of(3, 6, name="user")], ACCOUNTS),
        Step([descriptor(("user", "gus"), hits=2, refund=True)], [of(5, 6, name="user")], ACCOUNTS),
    ],
}


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service("--envoy-config", str(EXAMPLES / "shop"), "--envoy-metadata", "on") as found:
        yield found.started()


def test_every_feature_is_answered_as_envoyproxy_ratelimit_answers_it(running: Service) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
        ask: Any = channel.unary_unary(PATH.decode())
        for feature, steps in STEPS.items():
            for step in steps:
                before = time()
                found = answered(ask(encoded(step.domain, *step.descriptors, hits_addend=step.hits)))
                expected = answer_of(step)
                for status, due in zip(found.statuses, expected.statuses, strict=True):
                    if due.HasField("current_limit"):
                        window, left = Unit(due.current_limit.unit).seconds, status.duration_until_reset.seconds
                        assert 0 <= window - left - int(before) % window <= time() - before + 1, feature
                        due.duration_until_reset.seconds = left
                del found.response_headers_to_add[:]
                found.ClearField("raw_body")
                del found.dynamic_metadata.fields["headgate"]
                assert found == expected, feature
                written = [each.SerializeToString(deterministic=True) for each in (found, expected)]
                assert written[0] == written[1], feature
    text = running.get("/metrics")[1].decode()
    for name in ("shop.message_type.to_number_1", "shop.path_/files/*", "shop.path_/x.method_P*", "shop.path_/x"):
        assert f'rule="{name}"' in text


def answer_of(step: Step) -> Any:
    answer: Any = RateLimitResponse(overall_code=step.code)
    for code, limit, remaining in step.statuses:
        status = answer.statuses.add(code=code, limit_remaining=remaining)
        if limit is not None:
            status.current_limit.requests_per_unit, status.current_limit.unit, status.current_limit.name = limit
    echoed: dict[str, Any] = {"domain": step.domain, "descriptors": [_echo(each) for each in step.descriptors]}
    echoed |= {"hitsAddend": step.hits} if step.hits else {}
    echoed |= {"metadata": step.metadata} if step.metadata else {}
    answer.dynamic_metadata.update(echoed)
    return answer


def _echo(given: Any) -> dict[str, Any]:
    made = given if isinstance(given, dict) else descriptor(*given)
    echoed: dict[str, Any] = {"entries": [f"{entry['key']}={entry['value']}" for entry in made["entries"]]}
    if "limit" in made:
        unit = made["limit"]["unit"]
        known = 7 if unit is Unit.WEEK else unit.name  # Envoy's protocol has no name for it here
        echoed["limit"] = f"requests_per_unit:{made['limit']['requests_per_unit']} unit:{known}"
    if "hits_addend" in made:
        echoed["hitsAddend"] = made["hits_addend"]["value"]
    return echoed
