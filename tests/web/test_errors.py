"""The errors of this package belong to the one tree."""

from __future__ import annotations

import pickle

import pytest

from headgate import UsageError
from headgate.web import errors


@pytest.mark.parametrize("name", ["AmbiguousIdentity", "InvalidHeader", "InvalidSettings", "InvalidToken"])
def test_all_are_usage_errors_and_drawn(name: str) -> None:
    assert issubclass(getattr(errors, name), UsageError)
    assert name in (errors.__doc__ or "")


def test_a_refused_token_has_a_reason_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(errors.InvalidToken("expired", "the token has expired")))  # noqa: S301  our own
    assert (error.reason, str(error)) == ("expired", "the token has expired")
