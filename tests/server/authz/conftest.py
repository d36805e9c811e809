"""The service without sockets, on a manual clock: requests as Envoy sends them, and decoded responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from headgate import AddressReader, ResponseHeaders
from headgate.protos import message_class
from headgate.server.authz import AuthorizationService
from headgate.server.authz.requests import JWT_AUTHN
from headgate.server.wire.grpc.calls import UnaryCall, answer_of
from headgate.server.wire.messages import Headers, Peer
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.identity import Identifier
from headgate.web.jwt import VerifiedClaims
from tests.server.serving import Service, serving

KEY = "ak_1"
RULES = """
version: 1
rules:
  - {id: users, dimension: user, limit: 3, window: 1m, algorithm: fixed_window}
  - {id: keys, dimension: apikey, limit: 7, window: 1m, algorithm: fixed_window}
  - {id: addresses, dimension: ip, limit: 5, window: 1m, algorithm: fixed_window}
  - {id: posts, dimension: ip, when: {service: orders}, methods: [POST], limit: 1, window: 1m, algorithm: fixed_window}
  - {id: tried, dimension: user, limit: 1, window: 1m, shadow: true}
tiers: {pro: {users: {limit: 100}}}
deny: [{ip: 192.0.2.0/24}]
"""
IDENTIFIER = Identifier(
    AddressReader("x-forwarded-for", trusted=["127.0.0.0/8"]),
    ApiKeys({digest(KEY): Holder("reporting", "ada", "acme", "pro"), digest("plain"): Holder("plain")}, query="key"),
    None,
    [VerifiedClaims(claims={"user": "sub", "tenant": "org", "tier": "plan"})],
)
_CheckRequest = message_class("envoy.service.auth.v3.CheckRequest")
_CheckResponse = message_class("envoy.service.auth.v3.CheckResponse")


def question(
    path: str = "/",
    method: str = "GET",
    lines: Sequence[tuple[str, bytes]] = (),
    *,
    claims: Mapping[str, Any] | None = None,
    route: Mapping[str, str] | None = None,
    client: str = "203.0.113.9",
    raw: bool = True,
) -> Any:
    """Return a request; `raw`: Envoy sends headers as received."""
    message = _CheckRequest()
    content = message.attributes
    if client:
        content.source.address.socket_address.address = client
    content.request.http.path, content.request.http.method = path, method
    for name, value in lines:
        if raw:
            content.request.http.header_map.headers.add(key=name, raw_value=value)
        else:
            content.request.http.headers[name] = value.decode()
    for name, text in (route or {}).items():
        content.context_extensions[name] = text
    if claims is not None:
        content.metadata_context.filter_metadata[JWT_AUTHN].update({"headgate": claims})
    return message


class Answer(NamedTuple):
    status: int
    """Of the response to the client; 200 if the request passes."""
    fields: dict[str, str]
    """Of that response, by their names in lower case."""
    upstream: dict[str, str]
    """Headers that are set for the upstream."""
    removed: list[str]
    parameters: list[str]
    """Of the query, that are removed."""
    metadata: dict[str, Any]
    problem: dict[str, Any]


def answered(raw: bytes) -> Answer:
    message = _CheckResponse.FromString(raw)
    assert message.SerializeToString(deterministic=True)
    metadata = dict(message.dynamic_metadata.items())
    ok, denied = message.ok_response, message.denied_response
    is_ok = message.WhichOneof("http_response") == "ok_response"
    assert is_ok == (message.status.code == 0)
    options = ok.response_headers_to_add if is_ok else denied.headers
    assert all(option.append_action == 2 for option in (*options, *ok.headers))
    fields = {option.header.key.lower(): option.header.value for option in options}
    assert len(fields) == len(options)
    problem = {} if is_ok else json.loads(denied.body)
    status = 200 if is_ok else denied.status.code
    assert is_ok or (fields["content-type"] == "application/problem+json" and problem["status"] == status)
    upstream = {option.header.key: option.header.value for option in ok.headers}
    removed, parameters = [*ok.headers_to_remove], [*ok.query_parameters_to_remove]
    return Answer(status, fields, upstream, removed, parameters, metadata, problem)


class Asking:
    def __init__(self, served: Service, identifier: Identifier = IDENTIFIER) -> None:
        self.served, self.identifier = served, identifier
        self.service = AuthorizationService(served.decisions, lambda: self.identifier, ResponseHeaders())

    def raw(
        self, message: bytes, *metadata: tuple[bytes, bytes], peer: str | None = "127.0.0.1", timeout: float = 1
    ) -> Answer:
        sent: Headers = [*metadata]
        call = UnaryCall(message, sent, Peer(peer), timeout or None)
        return answered(self.served.run(lambda: answer_of(self.service.check, call)))

    def ask(self, *values: Any, **more: Any) -> Answer:
        return self.raw(question(*values, **more).SerializeToString())


@contextmanager
def asking(rules: str = RULES, **options: Any) -> Iterator[Asking]:
    with serving(rules, **options) as served:
        yield Asking(served)
