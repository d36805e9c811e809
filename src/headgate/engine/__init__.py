"""A policy and a store in one object: a request in, a ruling out. Used by the service, the gateway and frameworks."""

from headgate.engine.engines import AsyncEngine, Engine
from headgate.engine.joint import JointCheck, JointRequest
from headgate.engine.ruling import Explained, Passed, Reset, RuleDecision, Ruling
from headgate.engine.verbs import Observer, SelectedCheck

__all__ = [
    "AsyncEngine",
    "Engine",
    "Explained",
    "JointCheck",
    "JointRequest",
    "Observer",
    "Passed",
    "Reset",
    "RuleDecision",
    "Ruling",
    "SelectedCheck",
]
