"""A TCP proxy that spoils connections: for tests of what a client does then."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 60
"""Seconds after which a connection of the proxy is given up, whatever happens."""


class Proxy:
    """Between a client and the server at `port` of the loopback.

    Its attributes may be changed at any time.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self.port: int = self._listener.getsockname()[1]
        self.open = threading.Event()
        """Replies pass; while it is cleared they are held, and delivered when it is set again."""
        self.open.set()
        self.segment = 0
        """Replies are cut into pieces of this many bytes, if it is not 0."""
        self.cut_after: int | None = None
        """The connection is closed after this many more bytes of replies."""
        self.extra = b""
        """Added to the next reply, once."""
        self.hold_from = b""
        """If it is not empty, the first reply that begins so clears `open`."""
        self._threads[0].start()

    def address(self, options: str) -> str:
        return f"redis://127.0.0.1:{self.port}/0?{options}"

    def close(self) -> None:
        self.open.set()
        self._hang_up(self._listener)
        self._threads[0].join(PATIENCE)  # connections that were accepted last are closed as well
        self._hang_up(*self._sockets)
        for thread in self._threads:
            thread.join(PATIENCE)
        for end in [self._listener, *self._sockets]:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), PATIENCE)
            except OSError:  # the server is down now
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(PATIENCE)
            self._sockets += [client, server]
            for pump in (self._questions, self._replies):
                thread = threading.Thread(target=pump, args=(client, server), name="proxy")
                self._threads.append(thread)
                thread.start()

    def _questions(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                server.sendall(data)
        self._hang_up(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if self.hold_from and data.startswith(self.hold_from):
                    self.open.clear()
                self.open.wait(PATIENCE)
                data, self.extra = data + self.extra, b""
                if self.cut_after is not None and self.cut_after < len(data):
                    client.sendall(data[: self.cut_after])
                    self.cut_after = None
                    break
                step = self.segment or len(data)
                for at in range(0, len(data), step):
                    client.sendall(data[at : at + step])
                    if self.segment:
                        time.sleep(0)  # let the other side read: pieces would be put together otherwise
        self._hang_up(client, server)

    @staticmethod
    def _hang_up(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    between = Proxy(port)
    try:
        yield between
    finally:
        between.close()
