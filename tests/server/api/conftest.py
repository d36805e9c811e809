"""A service for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import Service, serving


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service
