"""Clients of the decision service, with the verbs and results of an engine, over HTTP or gRPC::

engine = Engine("rules.yaml", store="redis://localhost")
engine = Client("http://localhost:8080")
engine.check(Request({"user": "42"}, "/api/v1/orders", "POST")).allowed
"""

from headgate.sdk.clients import AsyncClient, Client
from headgate.sdk.transport import CallerRefused

__all__ = ["AsyncClient", "CallerRefused", "Client"]
