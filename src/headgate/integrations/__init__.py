"""Limits for web frameworks, gRPC servers, tasks and functions; each module imports only its own framework.

=========================  ===========================================================================
`integrations.asgi`        middleware for any ASGI application: HTTP, WebSocket, streams
`integrations.fastapi`     FastAPI and Starlette: dependency and decorator
`integrations.wsgi`        middleware for any WSGI application
`integrations.flask`       extension and decorator
`integrations.django`      middleware and decorator, for views of both kinds; settings
`integrations.litestar`    plugin and guards
`integrations.grpc`        interceptors of servers, both kinds
`integrations.celery`      tasks that wait for their turn
`integrations.functions`   any function: refused calls raise, wait, or call another function
=========================  ===========================================================================

They share `integrations.budget` (what is limited), `integrations.limiter` (settings and engine),
`integrations.exchange` (one request) and `integrations.answers` (responses).
"""

from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget

__all__ = ["Budget", "Refusal"]
