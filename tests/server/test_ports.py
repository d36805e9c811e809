from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.core.errors import UsageError
from headgate.server.ports import Port, listen, listen_at, stand_aside, stop_accepting
from tests.servers import until


@pytest.fixture
def port() -> Iterator[Port]:
    port = listen("http", "127.0.0.1", 0)
    yield port
    port.close()


def test_any_free_port_is_the_same_for_all_workers() -> None:
    port = listen("http", "127.0.0.1", 0, 3)
    try:
        assert {each.getsockname() for each in port.sockets} == {("127.0.0.1", port.number)}
    finally:
        port.close()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("others", [1, 2])
def test_a_port_in_use_is_refused_even_where_it_could_be_shared(count: int, others: int) -> None:
    port = listen("grpc", "127.0.0.1", 0, others)
    try:
        with pytest.raises(UsageError, match=r"another program listens.*--grpc-port"):
            listen("grpc", "127.0.0.1", port.number, count)
    finally:
        port.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "x" * 300])
def test_a_host_that_is_not_here_is_refused(host: str) -> None:
    with pytest.raises(UsageError):
        listen("http", host, 0)


def test_each_worker_has_a_unix_socket_of_its_own(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.sock", "b.sock")]
    port = listen_at("grpc", paths)
    try:
        for path, listening in zip(paths, port.sockets, strict=True):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                accepted, _ = listening.accept()
                accepted.close()
            assert not stop_accepting(listening)
        with pytest.raises(UsageError, match=r"cannot listen at .*a\.sock for grpc: Address already in use"):
            listen_at("grpc", paths)
    finally:
        port.close()
    with pytest.raises(UsageError, match="too long"):
        listen_at("grpc", [str(tmp_path / ("a" * 200))])


def test_a_deaf_socket_keeps_who_waits_and_takes_nobody_new(port: Port) -> None:
    listening = port.sockets[0]
    with socket.create_connection(("127.0.0.1", port.number)):
        stop_accepting(listening)
        stop_accepting(listening)
        with socket.socket() as late:
            late.setblocking(False)
            assert late.connect_ex(("127.0.0.1", port.number))
            until(lambda: _accepts(listening), "it is accepted")
            with pytest.raises(BlockingIOError):
                listening.accept()
            port.close()
            until(lambda: late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "the late one is refused")


def test_a_socket_that_cannot_be_made_deaf_goes_on_to_listen(port: Port) -> None:
    """The system may refuse the filter. Here the socket has one that is locked."""
    listening = port.sockets[0]
    take_all = ctypes.create_string_buffer(bytes.fromhex("0600000000000400"))
    program = (1).to_bytes(8, sys.byteorder) + ctypes.addressof(take_all).to_bytes(8, sys.byteorder)
    listening.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    listening.setsockopt(socket.SOL_SOCKET, 44, 1)  # SO_LOCK_FILTER
    assert not stop_accepting(listening)
    with socket.create_connection(("127.0.0.1", port.number)):
        until(lambda: _accepts(listening), "it is accepted")


def test_a_socket_that_stands_aside_leaves_new_connections_to_the_others_until_it_listens_again() -> None:
    port = listen("http", "127.0.0.1", 0, 2)
    try:
        (first, second), address = port.sockets, ("127.0.0.1", port.number)
        stand_aside(second)
        stand_aside(second)
        with ExitStack() as clients:
            for _ in range(20):
                clients.enter_context(socket.create_connection(address))
                until(lambda: _accepts(first), "it is accepted")
        second.listen()
        first.close()
        with socket.create_connection(address):
            until(lambda: _accepts(second), "it is accepted")
    finally:
        port.close()


def _accepts(listening: socket.socket) -> bool:
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def room(soft: int, hard: int, wanted: int) -> tuple[list[int], str]:
    """What a process of its own returns with these limits, and its soft limit then; and what it logs."""
    code = (
        "import resource\n"
        "from headgate.server.ports import room_for\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"print(room_for({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return [int(word) for word in ended.stdout.split()], ended.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (1000, 1000, 500, (500, 1000)),
        (300, 1000, 500, (500, 628)),
    ],
)
def test_as_many_files_are_allowed_as_connections_need(
    soft: int, hard: int, wanted: int, found: tuple[int, int]
) -> None:
    assert room(soft, hard, wanted) == ([*found], "")


def test_where_that_cannot_be_there_are_fewer_connections_and_the_log_says_so() -> None:
    found, logged = room(300, 400, 500)
    assert found == [272, 400]
    assert "272 connections at most, not 500: this process may open only 400 files (ulimit -n)" in logged


def test_there_is_always_room_for_one() -> None:
    assert room(100, 100, 500)[0] == [1, 100]
