"""Runs h2spec against ``headgate serve``, and writes what it found to docs/conformance/h2spec.txt.

    python docs/h2spec.py PATH_TO_H2SPEC

h2spec is a program in Go: ``go install github.com/summerwind/h2spec/cmd/h2spec@latest`` puts it into ``~/go/bin``. The
service is started twice, with a certificate made for the occasion and without one, and is stopped in the end.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

REPORT = Path(__file__).parent / "conformance" / "h2spec.txt"
SECONDS_TO_START = 60.0
CERTIFICATE = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")


@contextmanager
def service(folder: Path, *options: str) -> Iterator[int]:
    """Run a service; yield its HTTP port."""
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  ourselves
            [sys.executable, "-m", "headgate.cli", "serve", "--http-port", "0", "--grpc-port", "0", *options],
            stdout=out,
        )
    try:
        end = time.monotonic() + SECONDS_TO_START
        while (found := re.search(r"HTTP +https?://\S+:(\d+)\n", said.read_text())) is None:
            if process.poll() is not None or time.monotonic() > end:
                sys.exit("The service did not start.")
            time.sleep(0.05)
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def outcomes(h2spec: str, folder: Path, port: int, *options: str) -> list[tuple[str, str, bool]]:
    """Return (section, what was tried, whether the service did what it must) of each case."""
    path = folder / "report.xml"
    path.unlink(missing_ok=True)  # h2spec would leave the rest of a longer one at its end
    command = [h2spec, "--host", "127.0.0.1", "--port", str(port), "--strict", "--junit-report", str(path), *options]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)  # noqa: S603  its status says whether all passed
    report = ET.fromstring(path.read_text())  # noqa: S314  h2spec wrote it
    return [
        (
            case.get("package", ""),
            case.get("classname", ""),
            case.find("failure") is None and case.find("error") is None,
        )
        for case in report.iter("testcase")
    ]


def rendered(title: str, cases: list[tuple[str, str, bool]]) -> str:
    """Return the lines of one run."""
    passed = sum(is_right for _, _, is_right in cases)
    lines = [f"{title}: {len(cases)} cases, {passed} passed, {len(cases) - passed} failed", ""]
    lines += [f"{'passed' if is_right else 'FAILED'}  {section:<16} {what}" for section, what, is_right in cases]
    return "\n".join([*lines, "", ""])


def main(h2spec: str) -> None:
    """Run it over TLS, and in the clear."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
        subprocess.run([*CERTIFICATE, "-keyout", key, "-out", certificate], check=True, capture_output=True)  # noqa: S603
        with service(folder, "--tls-cert", certificate, "--tls-key", key) as port:
            text = rendered("HTTP/2 over TLS, by ALPN", outcomes(h2spec, folder, port, "--tls", "--insecure"))
        with service(folder) as port:
            text += rendered("HTTP/2 in the clear, by prior knowledge", outcomes(h2spec, folder, port))
    REPORT.write_text(text.rstrip() + "\n")
    print(*[line for line in text.splitlines() if "cases" in line or line.startswith("FAILED")], sep="\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/h2spec.py PATH_TO_H2SPEC")
    main(sys.argv[1])
