"""Parses metrics as Prometheus does."""

from __future__ import annotations

from typing import Any

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser


def samples(text: bytes, *, openmetrics: bool = False) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families(text, openmetrics=openmetrics)
        for sample in family.samples
    }


def families(text: bytes, *, openmetrics: bool = False) -> list[Any]:
    """Return all metrics."""
    parse = openmetrics_parser.text_string_to_metric_families if openmetrics else parser.text_string_to_metric_families
    return list(parse(text.decode()))


def value(text: bytes, name: str, **labels: str) -> float:
    """Return one sample."""
    return samples(text)[name, frozenset(labels.items())]
