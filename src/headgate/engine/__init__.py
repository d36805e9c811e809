"""A policy and a store in one object: a request in, a ruling out. What the service, the gateway and frameworks use."""

from headgate.engine.aio import AsyncEngine
from headgate.engine.explained import Explained
from headgate.engine.ruling import Passed, Reset, RuleDecision, Ruling
from headgate.engine.sync import Engine
from headgate.engine.together import Part

__all__ = ["AsyncEngine", "Engine", "Explained", "Part", "Passed", "Reset", "RuleDecision", "Ruling"]
