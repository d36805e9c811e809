"""``examples/night`` does what its README describes, with any environment of an operator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "night"


def test_the_four_scenes() -> None:
    environment = {"HEADGATE_ADMIN_KEY": "a-key-of-the-operators-own-service", "HEADGATE_HTTP_PORT": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert (done.returncode, done.stderr) == (0, "")
    customer, outage, publish, halving = scenes(done.stdout)
    assert "user 4711: 10 of 13 orders pass" in customer
    assert "POST /api/v1/orders/**" in customer
    assert "user 4711: 13 of 13 orders pass" in customer
    assert "ticket 1871" in customer.split("headgate audit list")[1]
    assert "allowed=True, remaining=9, degraded: " in outage
    assert "user 8: 10 of 20 orders pass" in outage
    assert "Redis is back; the next answer: allowed=True" in outage
    assert "user 21: 1 of 5 orders pass" in publish
    assert "revision 3 is undone, revision 4 in force" in publish
    assert "user 22: 5 of 5 orders pass" in publish
    assert "all-ip" in publish.split("headgate rules list")[1]
    assert "user 31: 0 of 1 orders pass" in halving
    assert "user 32: 5 of 8 orders pass" in halving


def scenes(output: str) -> list[str]:
    """Return the output of each scene."""
    found = []
    for number in range(1, 5):
        _, _, rest = output.partition(f"\n{number}. ")
        found.append(rest.partition(f"\n{number + 1}. ")[0])
    return found
