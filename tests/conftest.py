"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,  # machines are noisy: no test depends on how long it takes
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if "PYTEST_XDIST_WORKER" in os.environ:  # measured is what tests do here, not what the processes do that they start
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
