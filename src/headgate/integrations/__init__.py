"""Limits where applications meet their requests: one small file for each framework, which alone imports it.

=========================  ===========================================================================
`integrations.asgi`        middleware for any ASGI application: HTTP, WebSocket, streams
`integrations.fastapi`     FastAPI and Starlette: dependency and decorator
`integrations.wsgi`        middleware for any WSGI application
`integrations.flask`       extension and decorator
`integrations.django`      middleware and decorator, for views of both kinds; settings
`integrations.litestar`    middleware and guards
`integrations.grpc`        interceptors of servers, both kinds
`integrations.celery`      tasks that wait for their turn
`integrations.functions`   any function: raises, waits or answers otherwise
=========================  ===========================================================================

They share `integrations.budgets` (what is counted), `integrations.gate` (how a request passes) and
`integrations.answers` (what is answered).
"""

from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget

__all__ = ["Budget", "Refusal"]
