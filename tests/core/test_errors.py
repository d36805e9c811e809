"""The error tree: as drawn in its module, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from headgate.core import errors
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, HeadgateError, InvalidCost, InvalidQuota, LimitExceeded, UsageError
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


def test_misuse_is_a_value_error_and_a_refusal_is_not() -> None:
    misuse: list[type] = [UsageError, *UsageError.__subclasses__(), CostTooLarge]
    for error in misuse:
        assert issubclass(error, HeadgateError)
        assert issubclass(error, ValueError)
    assert not issubclass(LimitExceeded, ValueError)
    assert issubclass(CostTooLarge, InvalidCost)


def test_misuse_names_the_argument() -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(0, 1_000_000)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields == ("limit",)  # noqa: S301
    assert InvalidQuota("all of it").fields == ()


def test_an_exceeded_limit_carries_its_decision_also_to_another_process() -> None:
    error = LimitExceeded("user:42", REFUSAL)
    for each in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301  our own bytes
        assert (each.key, each.decision) == ("user:42", REFUSAL)
        assert str(each) == "limit 5/second exceeded for 'user:42': retry in 0.2 s"
