"""New connections use the current certificates and addresses, without long waits for either."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from headgate.core.errors import StoreError, StoreUnavailable
from headgate.core.plan import Call, Plan, Verb
from headgate.stores.base import Store
from headgate.stores.redis.dialing import Names
from headgate.testing.conformance import family
from tests.server.process.service import Service, service
from tests.servers import RedisServer, redis_server, until
from tests.stores.redis.load import lasting, resumed

Open = Callable[[str], Store]
HOST = "store.example"
_CLIENT = [("ca", "cert"), ("cert", "cert"), ("key", "key")]
_SERVER = [("cert", "cert"), ("key", "key"), ("ca-cert", "cert")]
"""Which file is used for what."""


def a_plan() -> Plan:
    return family(lasting(1000)).plan("ada")


def certify(folder: Path) -> None:
    """Put a new certificate for 127.0.0.1, self-signed, and its key into a folder."""
    program = shutil.which("openssl")
    assert program, "openssl is needed: apt-get install openssl"
    subject = ["-subj", "/CN=headgate test", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "key.pem", "-out", "cert.pem"]
    folder.mkdir(exist_ok=True)
    request = [program, "req", "-x509", "-nodes", "-days", "2", *made, *subject]
    subprocess.run(request, cwd=folder, check=True, capture_output=True)


def tls_files(folder: Path) -> list[str]:
    """Return the lines of a server's configuration that name the files of a folder."""
    return [f"tls-{use}-file {folder}/{name}.pem" for use, name in _SERVER]


class TlsServer:
    """A server that shows a certificate and wants to see the same one; and files of a client, all in one folder."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder, self._server = folder, server

    @property
    def address(self) -> str:
        files = "&".join(f"{use}={self.folder}/client/{name}.pem" for use, name in _CLIENT)
        return f"rediss://127.0.0.1:{self._server.bus}?timeout=5&connect_timeout=5&{files}"

    def rotate(self) -> None:
        """Let the server use a new certificate, and trust only that; connections end."""
        certify(self.folder / "new")
        words = [word for line in tls_files(self.folder / "new") for word in line.split()]
        self._server.ask("CONFIG", "SET", *words)
        self._server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def hand_out(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.folder / "new" / f"{name}.pem", self.folder / "client" / f"{name}.new")
            (self.folder / "client" / f"{name}.new").rename(self.folder / "client" / f"{name}.pem")


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    certify(tmp_path / "server")
    shutil.copytree(tmp_path / "server", tmp_path / "client")
    with redis_server("tls-port {bus}", *tls_files(tmp_path / "server"), "tls-auth-clients yes") as server:
        yield TlsServer(tmp_path, server)


def test_certificates_that_are_replaced_are_used_without_a_restart(
    tls: TlsServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store, plan = opened(tls.address), a_plan()
    assert store.run(Call(Verb.CHECK, plan)).remaining == 999
    tls.rotate()
    refused(store, plan)
    tls.hand_out("cert")  # the key does not belong to it: the old ones are kept, and tried in vain
    with caplog.at_level(logging.WARNING):
        until(lambda: refused(store, plan) and "previous ones stay" in caplog.text, "the files are looked at")
    tls.hand_out("key")
    assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == 998
    store.ready()


def refused(store: Store, plan: Plan) -> bool:
    with pytest.raises(StoreError):
        store.run(Call(Verb.CHECK, plan))
    return True


def test_a_service_reports_invalid_certificates_and_follows_new_ones(tls: TlsServer) -> None:
    with service("--store", tls.address) as serving:
        assert is_said(serving.started(), "ready")
        tls.rotate()
        until(lambda: is_said(serving, "degraded"), "it says so")
        tls.hand_out("cert", "key")
        until(lambda: is_said(serving, "ready"), "it follows")


def is_said(serving: Service, status: str) -> bool:
    _, body = serving.get("/readyz")
    return f'"status":"{status}"'.encode() in body


class SlowNames:
    """Stands between a program and its name server, which answers for HOST only when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = 0, threading.Semaphore(0)
        self._real = socket.getaddrinfo

    def __call__(self, host: str, *rest: Any, **options: Any) -> Any:
        if host != HOST or options.get("flags"):
            return self._real(host, *rest, **options)
        self.asked += 1
        assert self.let.acquire(timeout=60)
        return self._real("127.0.0.1", *rest, **options)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.let.release(100)


def test_an_address_found_too_late_serves_the_next_call(server: RedisServer, opened: Open, names: SlowNames) -> None:
    store, plan = opened(f"redis://{HOST}:{server.port}?timeout=5&connect_timeout=0.5&connections=1"), a_plan()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            store.run(Call(Verb.CHECK, plan))
    assert names.asked == 1, "one search is enough for all who wait"
    names.let.release()
    assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == 999
    assert names.asked == 1, "any further search would have been too late again"


def test_an_address_found_in_time_is_not_cached(names: SlowNames) -> None:
    found = Names()
    for asked in (1, 2):
        names.let.release()
        (address,) = found.addresses(HOST, 6379, monotonic() + 60)
        assert (address[4], names.asked) == (("127.0.0.1", 6379), asked)


def test_an_unknown_host_name_is_an_error(opened: Open) -> None:
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        opened("redis://name.invalid:6379?timeout=5&connect_timeout=20").run(Call(Verb.CHECK, a_plan()))
