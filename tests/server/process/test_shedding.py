"""A node that is asked too much says so, and still answers those who watch over it."""

from __future__ import annotations

from http.client import HTTPConnection

from tests.server.process.service import SECONDS, asked, service


def test_beyond_the_ceiling_requests_are_refused_and_counted() -> None:
    with service("--max-checks-per-second", "20") as found:
        connection = HTTPConnection("127.0.0.1", found.started().http_port, timeout=SECONDS)
        try:
            answers = [asked(connection, "u1") for _ in range(50)]
            assert any(b'"allowed"' in answer for answer in answers)
            assert any(b"more often than it may be" in answer for answer in answers)
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        finally:
            connection.close()
        shed = b'headgate_checks_total{api="check",outcome="shed"} '
        assert any(line.startswith(shed) and int(line.split()[-1]) for line in found.get("/metrics")[1].splitlines())
