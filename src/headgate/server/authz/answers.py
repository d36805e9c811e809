"""The encoded responses to Envoy: a `CheckResponse`, assembled from prepared pieces.

A request that passes has its caller in headers that its upstream can trust, `UPSTREAM`; headers of these names from the
client are removed, in any spelling that a server might accept. The client gets the header fields of its limits in any
case, and a problem document if it is refused. Metadata has the caller, the outcome and its rule, for access logs and
later filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.protobuf import entry, framed, text_writer, varint
from headgate.server.proxied_clients import ClientAnswer
from headgate.server.wire.grpc.calls import StatusCode
from headgate.web.identity import Identity
from headgate.web.problem import CONTENT_TYPE, ProblemDocument

PREFIX = "x-headgate-"
"""Of headers with the caller, for upstreams."""
UPSTREAM = ("user", "apikey", "tenant", "tier")
"""The rest of their names."""
_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    429: StatusCode.RESOURCE_EXHAUSTED,
}
"""Statuses of gRPC by those of HTTP; UNAVAILABLE for others."""
_STATUS, _DENIED, _OK, _METADATA = b"\x0a", b"\x12", b"\x0a\x00\x1a", b"\x22"
_REQUEST_HEADER, _REMOVED_HEADER, _RESPONSE_HEADER, _REMOVED_PARAMETER = b"\x12", b"\x2a", b"\x32", b"\x42"
_HEADER, _BODY = b"\x12", b"\x1a"
_OVERWRITES = b"\x18\x02"
"""The append action: an existing header is replaced."""
_LEGIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_is_legible = re.compile("[!-$&-~]*").fullmatch


def header(name: str) -> Callable[[str], bytes]:
    """Return the writer of a `HeaderValueOption` of this name, without its tag: a spelling of `headgate.web`."""
    opening = framed(b"\x0a", name.encode()) + b"\x12"

    def before(size: int) -> bytes:
        value = opening + varint(size)
        option = b"\x0a" + varint(len(value) + size) + value
        return varint(len(option) + size + len(_OVERWRITES)) + option

    return text_writer(before, _OVERWRITES)


def _entry(key: str) -> Callable[[str], bytes]:
    """Return the writer of an entry of the metadata with text."""
    return text_writer(lambda size: entry(key, " " * size)[: -size or None])


_CONTENT_TYPE = _HEADER + header("Content-Type")(CONTENT_TYPE)
_ALLOWED, _REFUSED, _FAILED = (entry("outcome", outcome) for outcome in ("allowed", "denied", "error"))
_STATES = {state: entry("state", str(state)) for state in Pressure}
_rule_id, _ip = _entry("rule_id"), _entry("ip")
_WHO = [
    (what, header(PREFIX + what), framed(_REMOVED_HEADER, f"{PREFIX}{what}".encode()), _entry(what))
    for what in UPSTREAM
]
"""For each: the writer of its header, the removal of the header, and the writer of its metadata."""


def allowed(client: ClientAnswer[bytes], ruling: Ruling, identity: Identity, removed: bytes) -> bytes:
    """Return the response to a request that passes; `removed` is what its upstream does not get: see `removal`."""
    upstream, metadata = b"", _ALLOWED + _about(ruling) + _ip(identity.address.key)
    for what, set_header, remove_header, write_entry in _WHO:
        value = identity.tier if what == "tier" else identity.principal.get(what)
        if value:
            upstream += _REQUEST_HEADER + set_header(legible(value))
            metadata += write_entry(value)
        else:
            upstream += remove_header
    response = upstream + removed + _tagged(_RESPONSE_HEADER, client.fields)
    return framed(_OK, response) + framed(_METADATA, metadata)


def refused(
    client: ClientAnswer[bytes],
    problem: ProblemDocument,
    ruling: Ruling | None = None,
    identity: Identity | None = None,
) -> bytes:
    """Return the response to a request that is refused; the ruling and the identity may be unknown."""
    metadata = _FAILED if ruling is None else _REFUSED + _about(ruling)
    if identity is not None:
        metadata += _ip(identity.address.key)
        for what, _, _, write_entry in _WHO:
            value = identity.tier if what == "tier" else identity.principal.get(what)
            if value:
                metadata += write_entry(value)
    code = _CODES.get(problem.status, StatusCode.UNAVAILABLE)
    status = framed(b"\x0a", b"\x08" + varint(problem.status))
    response = status + _CONTENT_TYPE + _tagged(_HEADER, client.fields) + framed(_BODY, problem.encode())
    return framed(_STATUS, b"\x08" + varint(code)) + framed(_DENIED, response) + framed(_METADATA, metadata)


def removal(headers: Iterable[bytes], parameters: Iterable[bytes] = ()) -> bytes:
    """Return the fields that remove headers, and query parameters by their spelling, from a request that passes."""
    removed = [framed(_REMOVED_HEADER, name) for name in headers]
    return b"".join([*removed, *(framed(_REMOVED_PARAMETER, name) for name in parameters)])


def legible(value: str) -> str:
    """Return a value for a header: all but printable ASCII is percent-encoded, as are spaces and %."""
    return value if _is_legible(value) else quote(value, safe=_LEGIBLE)


def _tagged(tag: bytes, fields: Sequence[bytes]) -> bytes:
    return tag + tag.join(fields) if fields else b""


def _about(ruling: Ruling) -> bytes:
    """Return the metadata of a ruling."""
    about = _STATES[ruling.state]
    if ruling.rule_id:
        about += _rule_id(ruling.rule_id)
    if ruling.reason:
        about += entry("reason", ruling.reason)
    if ruling.shadow_rules and (denied := ruling.shadow_denied):
        about += entry("shadow_denied", denied)
    decision = ruling.decision
    if decision is not None:
        if decision.degraded:
            about += entry("degraded", decision.degraded)
        if decision.delay_us:
            about += entry("delay", decision.delay_us / SECOND)
    return about
