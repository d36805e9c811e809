"""Sends the requests of the company's customers to the services, and counts the answers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from examples.demo.company import NOISY, PER_SECOND, Call, Company, busyness

LEAST, MOST = 100.0, 300.0
"""Requests per second, those of the scripted events left out."""
ABUSE, NOISE = 30.0, 45.0
"""Requests per second of the abuser, and of the partner whose job runs wild."""
_TICK = 0.05
_BEHIND = 0.5
"""Seconds of requests that are sent late; on a machine that cannot keep up the rest is left out."""


class Traffic:
    """Asks several nodes in turn, each over one connection, at the pace of the company's customers.

    Requests of partners use forward authentication with an API key, as behind a proxy; all others use the check API, as
    an application that knows its users.

    Args:
        company: whose customers.
        nodes: the URLs of the services.
        keys: those of the partners.
    """

    def __init__(self, company: Company, nodes: Sequence[str], keys: dict[str, str]) -> None:
        self._company, self._keys = company, keys
        self._connections = [HTTPConnection(urlsplit(node).netloc, timeout=10) for node in nodes]
        self._at, self._debt = time.monotonic(), {"customers": 0.0, "abuse": 0.0, "noise": 0.0}
        self.is_abused = self.is_noisy = False
        self.seen: Counter[str] = Counter()
        """Answers: allowed, denied, degraded (which are among the others), failed; and `denied:RULE`."""

    def pause(self) -> None:
        """Wait for a moment, and send what is due after it."""
        time.sleep(_TICK)
        now = time.monotonic()
        elapsed, self._at = min(now - self._at, _BEHIND), now
        rate = min(MOST, max(LEAST, PER_SECOND * busyness(time.time())))
        company, due = self._company, self._debt
        due["customers"] += elapsed * rate
        due["abuse"] = due["abuse"] + elapsed * ABUSE if self.is_abused else 0
        due["noise"] = due["noise"] + elapsed * NOISE if self.is_noisy else 0
        calls = [company.call() for _ in range(int(due["customers"]))]
        calls += [company.abuse() for _ in range(int(due["abuse"]))]
        calls += [company.partner_call(NOISY) for _ in range(int(due["noise"]))]
        for name in due:
            due[name] %= 1
        for call in calls:
            self.send(call)

    def send(self, call: Call) -> None:
        """Send a request to the node whose turn it is."""
        connection = self._connections[0]
        self._connections.append(self._connections.pop(0))
        try:
            if call.partner:
                self._as_proxy(connection, call)
            else:
                self._as_application(connection, call)
        except (OSError, HTTPException):
            connection.close()
            self.seen["failed"] += 1

    def _as_application(self, connection: HTTPConnection, call: Call) -> None:
        principal = {"ip": call.address} | ({"user": call.user} if call.user else {})
        asked = {"principal": principal, "endpoint": call.path, "method": call.method}
        headers = {"content-type": "application/json", "user-agent": call.agent}
        body = json.dumps(asked | {"attributes": {"client": call.client}})
        connection.request("POST", "/api/v1/rate-limit/check", body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            self.seen["failed"] += 1
            return
        self._count(answer["allowed"], answer["rule_id"] or "", is_degraded=answer["degraded"])

    def _as_proxy(self, connection: HTTPConnection, call: Call) -> None:
        headers = {"x-forwarded-uri": call.path, "x-forwarded-method": call.method, "x-forwarded-for": call.address}
        headers |= {"user-agent": call.agent, "x-api-key": self._keys[call.partner]}
        connection.request("GET", "/api/v1/forward-auth", headers=headers)
        response = connection.getresponse()
        response.read()
        self._count(response.status == 200, "", is_degraded="x-ratelimit-degraded" in response.headers)

    def _count(self, is_allowed: bool, rule: str, *, is_degraded: bool) -> None:  # noqa: FBT001
        self.seen["allowed" if is_allowed else "denied"] += 1
        if not is_allowed and rule:
            self.seen[f"denied:{rule}"] += 1
        if is_degraded:
            self.seen["degraded"] += 1

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()
