"""Listening sockets, and the private folder of a process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from headgate.core.errors import UsageError
from headgate.server.ports import Port, listen, listen_at, stop_accepting, stop_listening
from headgate.server.private_folder import PrivateFolder
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


def test_a_port_in_use_is_refused_even_where_it_could_be_shared_and_so_is_a_host_that_is_not_here() -> None:
    for count, others in product((1, 2), (1, 2)):
        port = listen("grpc", "127.0.0.1", 0, others)
        try:
            with pytest.raises(UsageError, match=r"another program listens.*--grpc-port"):
                listen("grpc", "127.0.0.1", port.number, count)
        finally:
            port.close()
    for host in ("no.such.host.invalid", "192.0.2.1", "x" * 300):
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
        with pytest.raises(UsageError, match=r"cannot listen on .*a\.sock for grpc: Address already in use"):
            listen_at("grpc", paths)
    finally:
        port.close()
    with pytest.raises(UsageError, match="too long"):
        listen_at("grpc", [str(tmp_path / ("a" * 200))])


def test_a_socket_that_stops_accepting_keeps_its_queue(port: Port) -> None:
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


def test_a_socket_that_cannot_stop_accepting_continues_to_listen(port: Port) -> None:
    """The system may refuse the filter. Here the socket has one that is locked."""
    listening = port.sockets[0]
    take_all = ctypes.create_string_buffer(bytes.fromhex("0600000000000400"))
    program = (1).to_bytes(8, sys.byteorder) + ctypes.addressof(take_all).to_bytes(8, sys.byteorder)
    listening.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    listening.setsockopt(socket.SOL_SOCKET, 44, 1)  # SO_LOCK_FILTER
    assert not stop_accepting(listening)
    with socket.create_connection(("127.0.0.1", port.number)):
        until(lambda: _accepts(listening), "it is accepted")


def test_a_socket_that_stops_listening_leaves_new_connections_to_the_others() -> None:
    port = listen("http", "127.0.0.1", 0, 2)
    try:
        (first, second), address = port.sockets, ("127.0.0.1", port.number)
        stop_listening(second)
        stop_listening(second)
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


def test_the_limit_of_open_files_is_raised_or_bounds_the_connections() -> None:
    cases = [*((1000, 1000, 500, 1000), (300, 1000, 500, 628)), *((300, 400, 272, 400), (100, 100, 1, 100))]
    code = f"""
import os, resource, sys
from headgate.server.ports import room_for
for soft, hard, room, raised in {cases}:
    if not os.fork():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        found = room_for(500), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        os._exit(found != (room, raised))
    assert os.wait()[1] == 0, (soft, hard)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    logged = [
        f"accepting at most {room} connections instead of 500: this process can open only {hard} files (ulimit -n)"
        for _, hard, room, _ in cases
        if room < 500
    ]
    assert ended.stderr.splitlines() == logged


def test_folders_of_killed_processes_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "headgate-run-else").write_text("not a folder")
    (tmp_path / "headgate-run-link").symlink_to(tmp_path)
    script = f"""
from headgate.server.private_folder import PrivateFolder
with PrivateFolder({str(tmp_path)!r}) as folder:
    (folder.path / "shared").mkdir()
    print(folder.path, flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        with PrivateFolder(str(tmp_path)) as mine:
            assert left.exists(), "its process lives"
            process.kill()
            process.wait()
            assert left.exists()
            with PrivateFolder(str(tmp_path)):
                assert not left.exists()
                assert mine.path.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["headgate-run-else", "headgate-run-link"]


def test_concurrent_starts_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A folder may be seen before it is locked: then another one is made."""

    def used(_: int) -> bool:
        with PrivateFolder(str(tmp_path)) as folder:
            (folder.path / "file").write_text("mine")
            with PrivateFolder(str(tmp_path)):
                return (folder.path / "file").exists()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(used, range(200)))
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_was_removed_is_made_again_for_the_rest_of_the_process(tmp_path: Path) -> None:
    """Cleaners of temporary files may remove it; then other processes must not."""
    with PrivateFolder(tmp_path) as folder:
        assert not folder.restore(), "it is there"
        for _ in range(2):
            folder.path.rmdir()
            assert folder.restore()
            assert folder.path.stat().st_mode & 0o777 == 0o700
            with PrivateFolder(tmp_path):
                assert folder.path.exists()
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_another_process_has_made_in_its_place_is_reported(tmp_path: Path) -> None:
    with PrivateFolder(tmp_path) as folder:
        folder.path.rmdir()
        folder.path.mkdir()
        theirs = os.open(folder.path, os.O_RDONLY)
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(PermissionError, match="cannot be created again: another process uses it"):
            folder.restore()
    assert folder.path.exists(), "it is the other one's"
    os.close(theirs)


def test_an_unusable_parent_folder_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"create a folder in .*/nowhere"),
        PrivateFolder(f"{tmp_path}/nowhere"),
    ):
        raise AssertionError("it was made")
