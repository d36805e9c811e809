"""The error tree: as drawn in its module, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from headgate.core import errors
from headgate.core.decision import Decision
from headgate.core.errors import (
    CostTooLarge,
    HeadgateError,
    InvalidCost,
    InvalidQuota,
    LimitExceeded,
    UsageError,
    not_installed,
)
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota

REFUSAL = Decision(False, 5, 0, 200_000, 1_500_000, Pressure.THROTTLED, Quota(5, 1_000_000))


def drawn() -> dict[str, str]:
    """Return child -> parent, as in the drawing: each level is four columns deep."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in str(errors.__doc__).splitlines():
        found = re.match(r"^( {4}[ │├└─]*)([A-Z]\w+)(?:  .*)?$", line)
        if found:
            depth = len(found[1]) // 4 - 1
            path = [*path[:depth], found[2]]
            parents[found[2]] = path[depth - 1] if depth else "Exception"
    return parents


def test_the_drawing_is_the_tree() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]
    assert drawn() == {each.__name__: each.__bases__[0].__name__ for each in classes}


@pytest.mark.parametrize("error", [UsageError, *UsageError.__subclasses__(), CostTooLarge])
def test_misuse_is_a_value_error(error: type[UsageError]) -> None:
    assert issubclass(error, HeadgateError)
    assert issubclass(error, ValueError)


def test_a_refusal_is_not_misuse() -> None:
    assert not issubclass(LimitExceeded, ValueError)
    assert issubclass(CostTooLarge, InvalidCost)


def test_misuse_says_which_argument_it_is_about() -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(0, 1_000_000)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields == ("limit",)  # noqa: S301
    assert InvalidQuota("all of it").fields == ()


class TestLimitExceeded:
    error = LimitExceeded("user:42", REFUSAL)

    def test_carries_the_decision(self) -> None:
        assert (self.error.key, self.error.decision) == ("user:42", REFUSAL)

    def test_says_which_limit_and_when(self) -> None:
        assert str(self.error) == "limit 5/second exceeded for 'user:42': retry in 0.2 s"

    def test_crosses_processes(self) -> None:
        twin = pickle.loads(pickle.dumps(self.error))  # noqa: S301  our own bytes
        assert (twin.key, twin.decision, str(twin)) == (self.error.key, self.error.decision, str(self.error))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("hpack", "hpack is not installed: pip install hpack, or in a checkout of Headgate pip install '.[server]'"),
        ("google.protobuf", "protobuf is not installed: pip install protobuf, or"),
        ("grpc", "grpcio is not installed: pip install grpcio, or"),
        ("yaml", "pyyaml is not installed: pip install pyyaml, or"),
        ("jwt", "pyjwt is not installed: pip install 'pyjwt[crypto]', or"),
        ("opentelemetry.sdk.trace", "opentelemetry-exporter-otlp-proto-http is not installed"),
        (None, "something that is needed is not installed: in a checkout of Headgate pip install '.[server]'"),
    ],
)
def test_what_is_missing_has_the_name_that_pip_knows(module: str | None, told: str) -> None:
    assert not_installed(module, "server").startswith(told)
