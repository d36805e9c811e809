"""Requests of hostile clients to a proxy, byte for byte, and an upstream that records what reaches it.

Once a client's limit is used up, none of them may reach the upstream: the proxy refuses it, or Headgate does.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import hpack

from headgate.server.wire.http2 import frames
from tests.server.wire.http2.conversation import GREETING, Frame, split, unchecked

ServerT = TypeVar("ServerT", bound=socketserver.BaseServer)
PATIENCE = 60.0
"""Seconds for a response; a proxy that waits for more of a request sends none, and the test fails."""


class Upstream(socketserver.ThreadingTCPServer):
    """Answers whatever a proxy passes on, and keeps the first line of each request, and its header."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.served: list[bytes] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        """Of each request, names in lower case."""


class _Handler(socketserver.StreamRequestHandler):
    server: Upstream

    def handle(self) -> None:
        while self._answered():
            pass

    def _answered(self) -> bool:
        lines: list[bytes] = []
        while (line := self.rfile.readline()) not in {b"\r\n", b""}:
            lines.append(line)
        if not lines:
            return False
        self.server.served.append(lines[0].strip())
        pairs = [line.split(b":", 1) for line in lines[1:] if b":" in line]
        self.server.headers.append([(name.lower(), value.strip()) for name, value in pairs])
        fields = dict(line.lower().strip().split(b":", 1) for line in lines[1:] if b":" in line)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        else:
            self.rfile.read(int(fields.get(b"content-length", 0)))
        self.wfile.write(b"HTTP/1.1 200 OK\r\nx-tokens: 70\r\ncontent-length: 13\r\n\r\nfrom upstream")
        return True


@contextmanager
def serving(server: ServerT) -> Iterator[ServerT]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def upstream() -> AbstractContextManager[Upstream]:
    return serving(Upstream())


def sent(port: int, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        try:
            client.sendall(data)
            while not _is_last(received) and (part := client.recv(65536)):
                received += part
        except (BrokenPipeError, ConnectionResetError):
            pass
    return received


def _is_last(received: bytes) -> bool:
    """Whether a proxy announced the close, which some delay."""
    head, end, _ = received.lower().rpartition(b"\r\n\r\n")
    return bool(end) and b"\r\nconnection: close" in head


def sent_over_http2(port: int, fields: list[tuple[bytes, bytes]], trailers: bytes = b"") -> bytes:
    """Send the fields of a request as they are, and return the status of what is answered; empty for a reset.

    Args:
        port: of the proxy.
        fields: of the header.
        trailers: a block of those that follow; default: none.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(GREETING + frames.headers(1, unchecked(fields), end=not trailers))
        if trailers:
            client.sendall(frames.headers(1, trailers, end=True))
        while True:
            for frame in _whole(received):
                if frame.kind == frames.HEADERS:
                    return bytes(dict(hpack.Decoder().decode(frame.payload, raw=True))[b":status"])
                if frame.kind in {frames.RST_STREAM, frames.GOAWAY}:
                    return b""
            part = client.recv(65536)
            if not part:
                return b""
            received += part


def _whole(received: bytes) -> list[Frame]:
    end = 0
    while (rest := received[end:])[3:] and len(rest) >= (size := frames.HEADER_SIZE + int.from_bytes(rest[:3])):
        end += size
    return split(received[:end])


def post(target: bytes = b"/orders/7", lines: Iterable[bytes] = (), *, method: bytes = b"POST") -> bytes:
    """Return a request with these header lines, after which the proxy closes."""
    head = [method + b" " + target + b" HTTP/1.1", b"Host: api", b"Connection: close", b"Content-Length: 2", *lines]
    return b"\r\n".join(head) + b"\r\n\r\nhi"


CONTROLS = [bytes([byte]) for byte in (*range(9), *range(11, 13), *range(14, 32), 127)]
"""All but the tab and the ends of lines, which have a meaning of their own."""
NAMES = [b"X-Odd", b"Authorization", b"X-Api-Key", b"Cookie", b"X-User", b"X-Forwarded-For", b"X-Original-URI"]
NOT_UTF_8 = [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"ada\xe9", b"\x80" * 300]
FORGED = [
    *[b"%b: 198.51.100.%d" % (name, last) for name in (b"X-Forwarded-For", b"X-Real-IP") for last in range(5)],
    *[b"X-Forwarded-For: %b" % text for text in (b"", b",", b"127.0.0.1", b"::1", b"unknown", b"10.0.0.1, 192.0.2.1")],
    *[b"Forwarded: for=%b" % text for text in (b"198.51.100.7", b'"[2001:db8::1]"', b"unknown")],
    *[name + b": 198.51.100.7" for name in (b"X-Envoy-External-Address", b"X-Cluster-Client-IP", b"True-Client-IP")],
    *[name + b": /free" for name in (b"X-Envoy-Original-Path", b"X-Original-URI", b"X_Original_URI", b"X-Rewrite-URL")],
    *[name + b": GET" for name in (b"X-Original-Method", b"X-Forwarded-Method", b"X-HTTP-Method-Override")],
    *(b"X-Envoy-Internal: true", b"X-Forwarded-Uri: /free", b"X-Original-Host: free"),
    b"Connection: X-Forwarded-For, X-Original-URI, X-Original-Method, X-User",
    b"Connection: X-Forwarded-Uri, X-Forwarded-Method, X-Forwarded-For",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"X-Original-URI: /free\r\nX-Original-URI: /also-free",
]
ODD = [
    *(b"X-Folded: a\r\n b", b" X-Led: a", b"X-Spaced : a", b"No colon", b": no name", b"X-\xff: a"),
    *(b"X-Bare: a\rb", b"X-Line: a\nX-Next: b", b"Host: another", b"Expect: the unexpected", b"Expect: 100-continue"),
    *(b"Content-Length: 2", b"TE: trailers, deflate", b"Accept: " + b"a" * 7000, b"Cookie: " + b"c" * 7000),
]
MUCH = {
    "17 KB": [b"X-Long-%d: %b" % (number, b"a" * 1700) for number in range(10)],
    "30 KB": [b"X-Long-%d: %b" % (number, b"a" * 7000) for number in range(4)],
    "17 KB of cookies": [b"Cookie: %b" % (b"a" * 5800) for _ in range(3)],
    "credentials of 14 KB": [b"Authorization: Bearer %b" % (b"a" * 7000), b"X-Api-Key: %b" % (b"a" * 7000)],
    "a path of 7 KB and as many credentials": [b"Authorization: Bearer %b" % (b"a" * 7800), b"X-K: " + b"k" * 7800],
    "110 headers": [b"X-Many-%d: a" % number for number in range(110)],
    "900 headers": [b"X-Many-%d: a" % number for number in range(900)],
    "110 of one name": [b"X-Forwarded-For: 198.51.100.7"] * 110,
}
HEADERS = {
    **{f"{control!r} in {name.decode()}": [name + b": a" + control + b"b"] for control in CONTROLS for name in NAMES},
    **{f"{value[:8]!r} in {name.decode()}": [name + b": " + value] for value in NOT_UTF_8 for name in NAMES},
    **{f"forged: {line.decode()[:60]!r}": [line] for line in FORGED},
    **{f"odd: {line[:20]!r}": [line] for line in ODD},
    **MUCH,
}
"""Header lines, by their attack."""
TARGETS = [
    *(b"//orders/7", b"///orders/7", b"/.//orders/7", b"/./orders/7", b"/orders//7", b"/orders/./7"),
    *(b"/free/../orders/7", b"/free/%2e%2e/orders/7", b"/free/..%2forders/7", b"/free/.%2e/orders/7"),
    *(b"/free/%252e%252e/orders/7", b"/free/..%00/orders/7", b"/free/..;/orders/7", b"/free;/../orders/7"),
    *(b"/free?/../orders/7", b"/free#/../orders/7", b"/free\\..\\orders\\7", b"/free%5c..%5corders/7"),
    *(b"/%6frders/7", b"/%6f%72ders/7", b"/%u006frders/7", b"/orders%2f7", b"/orders%09/7", b"/orders\\7"),
    *(b"/orders/%2e%2e/orders/7", b"/orders/%37", b"/orders/7;a=b", b"/orders;/7", b"/orders;a=b/7"),
    *(b"/orders/7?a=b", b"/orders/7#free", b"/orders/7%00", b"/orders/7%", b"/orders/%zz", b"/orders/" + b"a" * 7000),
    *(b"/orders/\xff", b"/orders/%ff", b"/orders/%c0%af", b"/orders/\x017", b"/orders/\x7f7", b"*", b"orders/7"),
    *(b"http://api/orders/7", b"http://other/orders/7", b"HTTP://api//orders/7", b"http://user@api/orders/7"),
    *(b"http:///orders/7", b"api:orders/7"),
]
"""Spellings of a path, under /orders or not, that servers interpret differently."""
_INNER = b"POST /smuggled HTTP/1.1\r\nHost: api\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LENGTH, _CHUNKED = b"Content-Length: 5", b"Transfer-Encoding: chunked"
SMUGGLED = {
    f"{lines!r:.60}": b"POST /orders/7 HTTP/1.1\r\nHost: api\r\n" + lines + b"\r\n\r\n" + body + _INNER
    for lines, body in [
        (b"Content-Length: 0\r\nContent-Length: %d" % len(_INNER), b""),
        *[(b"Content-Length" + rest, b"") for rest in (b": %d, 0" % len(_INNER), b": +0", b" : 0", b": 0x0")],
        *[(lines, b"0\r\n\r\n") for lines in (_LENGTH + b"\r\n" + _CHUNKED, _CHUNKED + b"\r\n" + _LENGTH)],
        *[(_CHUNKED[:17] + rest, b"0\r\n\r\n") for rest in (b" : chunked", b": xchunked", b":\x0bchunked")],
        *[(_CHUNKED[:17] + rest, b"0\r\n\r\n") for rest in (b": identity, chunked", b": chunked, identity")],
        (_CHUNKED + b"\r\nTransfer-Encoding: x", b"0\r\n\r\n"),
        *[
            (_CHUNKED, chunks + b"\r\n\r\n")
            for chunks in (b"0;a=\nb", b"0" * 17, b"0\r\nContent-Length: 9", b"1\r\nZ\n0")
        ],
        *((b"\nContent-Length: 0", b""), (b"X: a\r\n\rContent-Length: 0", b"")),
    ]
}
"""Two requests, of which some servers see one. The second must be checked like the first."""


USUAL = {b":method": b"POST", b":scheme": b"http", b":authority": b"api", b":path": b"/orders/7"}
"""The fields of a request over HTTP/2 that is like any other."""
FIELDS: dict[str, Mapping[bytes, bytes] | list[tuple[bytes, bytes]]] = {
    **{f"path {target[:40]!r}": {b":path": target} for target in TARGETS},
    "a path with another line": {b":path": b"/free HTTP/1.1\r\nhost: api\r\n\r\n"},
    "a path with a tab": {b":path": b"/free\t/orders/7"},
    "an empty path": {b":path": b""},
    "a method with another line": {b":method": b"GET /free HTTP/1.1\r\nx:"},
    "a method in small letters": {b":method": b"post"},
    "another scheme": {b":scheme": b"gopher"},
    "CONNECT": {b":method": b"CONNECT"},
    "an authority with another line": {b":authority": b"api\r\nx-user: root"},
    "two authorities": {b":authority": b"api, free"},
    "a path after a header": [*[*USUAL.items()][:3], (b"x-a", b"b"), (b":path", b"/free")],
    **{
        f"more: {name!r}: {value!r}": [*USUAL.items(), (name, value)]
        for name, value in [
            *((b":path", b"/free"), (b":method", b"GET"), (b":user", b"root"), (b":protocol", b"websocket")),
            *((b"host", b"free"), (b"X-Capitals", b"a"), (b"x-spaced ", b"a"), (b"x:colon", b"a"), (b"", b"a")),
            *((b"x-line", b"a\r\nx-user: root"), (b"x-line", b"a\nx-user: root"), (b"x-nul", b"a\0b")),
            *((b"transfer-encoding", b"chunked"), (b"te", b"chunked"), (b"connection", b"close")),
            *((b"upgrade", b"websocket"), (b"content-length", b"7"), (b"content-length", b"-1")),
            *((b"x-forwarded-for", b"198.51.100.7"), (b"x-envoy-internal", b"true"), (b"x-long", b"a" * 17_000)),
        ]
    },
    "150 crumbs": [*USUAL.items(), *[(b"cookie", b"a=b")] * 150],
}
"""Over HTTP/2: the fields that differ from the usual ones, or all fields."""


def hostile_over_http2() -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    for name, fields in FIELDS.items():
        yield name, [*{**USUAL, **fields}.items()] if isinstance(fields, Mapping) else fields


def hostile() -> Iterator[tuple[str, bytes]]:
    for name, lines in HEADERS.items():
        yield name, post(lines=lines)
    long = b"/orders/" + b"a" * 7000
    yield "a long path and long credentials", post(long, MUCH["a path of 7 KB and as many credentials"])
    for target in TARGETS:
        yield f"path {target[:40]!r}", post(target)
    for method in (b"post", b"Post", b"POST\x01", b"P" * 300, b"GET", b"PRI", b"CONNECT", b"TRACE", b"OPTIONS", b"_"):
        yield f"method {method[:20]!r}", post(method=method)
    for name, data in SMUGGLED.items():
        yield f"smuggled {name}", data
    for version in (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1.1 ", b""):
        yield f"version {version!r}", post().replace(b"HTTP/1.1", version, 1)
    yield "bare line feeds", post().replace(b"\r\n", b"\n")
