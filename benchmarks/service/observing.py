"""What metrics, hot keys and denials' logs cost a check: the recorder alone, called as the service calls it."""

from __future__ import annotations

from time import perf_counter_ns

from benchmarks.service.asking import RULES, user
from benchmarks.timing import Figure, Pace, alternate, time_calls
from headgate.engine import Engine
from headgate.observe.recorder import Recorder
from headgate.policy.loading import load
from headgate.policy.request import Request

CALLS = 2000
"""Checks per round."""


def measure(pace: Pace) -> Figure:
    """Return the nanoseconds that observing one check takes."""
    recorder = Recorder()
    try:
        with Engine(load(RULES)) as engine:
            request = Request({"user": user(0)}, "/api/v1/orders", "POST")
            ruling = engine.check(request)

            def observe(request: Request) -> None:
                began = perf_counter_ns()
                deciding = perf_counter_ns()
                recorder.ruled(ruling, request, perf_counter_ns() - deciding, "check")
                recorder.called("check", "allowed", perf_counter_ns() - began)

            requests = [request] * CALLS
            return alternate({"observing": lambda _: time_calls(observe, requests)}, pace)["observing"]
    finally:
        recorder.close()
