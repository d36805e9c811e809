"""What Larkfield's colleagues publish before the curtain rises, and what happens again and again after it.

All of it goes through the admin plane's REST API, each change with its author's key and a reason, so that revisions and
the audit trail read as those of a team.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from examples.demo.company import ABUSER, PARTNERS, Company
from examples.demo.servers import Colleague, Redis, Refused
from examples.demo.traffic import Traffic

ROUND = 200
"""Seconds after which the events begin again."""
BAD = 6
"""The limit that should have been 600."""
_PEOPLE = ("Ada", "Grace", "Linus", "Mei")
_RULES = Path(__file__).with_name("rules.yaml")
_EXPORTS = {
    "id": "exports",
    "name": "Exports per customer",
    "endpoint": "/api/v1/exports",
    "methods": ["POST"],
    "limit": 10,
    "window": "1h",
    "algorithm": "fixed_window",
    "on_store_failure": "deny",
    "refusal_message": "Exports are slow to make. More an hour come with the plan pro.",
}
_SEARCH = {
    "name": "Searches per address, on trial",
    "dimension": "ip",
    "endpoint": "/api/v1/search",
    "limit": 12,
    "window": "1m",
    "algorithm": "fixed_window",
    "shadow": True,
}
_SCRIPTS = {
    "name": "Scripts, by address",
    "dimension": "ip",
    "endpoint": "/api/**",
    "when": {"client": "script"},
    "limit": 60,
    "window": "1m",
    "algorithm": "sliding_window_counter",
    "shadow": True,
}


class Moment(NamedTuple):
    """When a round goes on."""

    second: float
    has_shown: Callable[[], bool] = lambda: True
    """Whether what was begun has been seen in answers: a busy machine gets more time for that."""


def publish(admin: Colleague, company: Company) -> tuple[dict[str, str], dict[str, str]]:
    """Publish the rules, one colleague after the other; returns the keys of these, and those of the partners."""
    team = {}
    for name in _PEOPLE:
        made = admin.ask("POST", "keys", {"name": name, "role": "editor"}, reason="Joins the team")
        team[name] = made["key"]
    ada, grace, linus, mei = (Colleague(admin.url, team[name]) for name in _PEOPLE)
    rules = yaml.safe_load(_RULES.read_text())
    rules["users"] = {user: {"tier": tier} for user, tier in company.tiers.items()}
    grace.ask("POST", "apply", yaml.safe_dump(rules), reason="Limits of the new API, as agreed with sales")
    ada.ask("POST", "rules", _EXPORTS, reason="Launch of exports")
    ada.ask("PATCH", "tiers/pro", {"exports": {"limit": 50}}, reason="Launch of exports: more for pro")
    ada.ask("PATCH", "tiers/enterprise", {"exports": {"limit": 500}}, reason="Launch of exports: more for enterprise")
    linus.ask("PUT", "rules/search-address", _SEARCH, reason="Search was slow on Friday: whom would a limit affect?")
    linus.ask("PUT", "rules/scripts", _SCRIPTS, reason="Scrapers: a shadow first")
    keys = {}
    for name in PARTNERS:
        made = mei.ask("POST", "consumers", {"name": name, "tier": "enterprise"}, reason="Partner programme")
        keys[name] = made["key"]
    mei.ask("PATCH", "rules/partners", {"burst": 40}, reason="Nightly jobs of partners come in bursts")
    free = company.free
    override = {"rule_id": "search-user", "limit": 200}
    mei.ask("POST", f"users/{free[0]}/override", override, reason="Ticket 1871: moves to pro next month")
    grace.ask("POST", f"users/{free[1]}/override", _for_minutes(4), reason="Ticket 1902: a migration")
    return team, keys


def _for_minutes(minutes: int) -> dict[str, Any]:
    """Return an override that ends soon."""
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=minutes)
    return {"rule_id": "search-user", "limit": 90, "until": ends.isoformat().replace("+00:00", "Z")}


class Story:
    """The events of one round after the other.

    Args:
        team: who publishes and undoes.
        customer: who gets more for a while.
        traffic: of which the events make more.
        redis: which fails; None: it is not there.
        say: shows a line in the terminal.
    """

    def __init__(
        self,
        team: dict[str, Colleague],
        customer: str,
        traffic: Traffic,
        redis: Redis | None,
        say: Callable[[str], None],
    ) -> None:
        self._customer = customer
        self._linus, self._ada = team["Linus"], team["Ada"]
        self._traffic, self._redis, self._say = traffic, redis, say

    def round(self) -> Iterator[Moment]:
        """Play one round: each moment that is yielded is when it goes on."""
        seen, say = self._traffic.seen, self._say
        yield Moment(20)
        say(f"an abuser begins: {ABUSER} tries passwords and scrapes the search. See Overview, Who")
        self._traffic.is_abused, denied = True, seen["denied:login-address"]
        yield Moment(40, lambda: seen["denied:login-address"] > denied)
        yield from self._outage()
        yield Moment(70)
        yield from self._bad_publish()
        self._traffic.is_abused = False
        say("the abuser has left")
        yield Moment(140)
        self._override()
        yield Moment(150)
        say("the nightly job of the partner globex sends too many requests. See the rule partners")
        self._traffic.is_noisy = True
        yield Moment(175)
        self._traffic.is_noisy = False
        say("the nightly job has ended")
        yield Moment(ROUND)

    def _outage(self) -> Iterator[Moment]:
        """Redis fails for a quarter of a minute."""
        seen, say = self._traffic.seen, self._say
        if self._redis is None:
            return
        say("Redis is stopped for 15 s: each node decides by the mode of each rule. See Overview, Nodes")
        self._redis.stop()
        before = seen["degraded"]
        yield Moment(55, lambda: seen["degraded"] > before)
        self._redis.start()
        say(f"Redis is back; {seen['degraded'] - before} decisions were made without it")

    def _bad_publish(self) -> Iterator[Moment]:
        """A colleague publishes a wrong limit; visitors have a minute to undo it."""
        say, seen, denied = self._say, self._traffic.seen, self._traffic.seen["denied:orders-user"]
        with suppress(Refused):
            self._linus.ask("PATCH", "rules/orders-user", {"limit": BAD}, "Round numbers")
        say(f"a colleague's mistake: orders-user allows {BAD} a minute instead of 600. Undo it in Revisions")
        for second in range(74, 130, 4):
            yield Moment(second)
            if not self._bad_revision():
                say("the bad publish is undone. Thank you")
                return
        yield Moment(130, lambda: seen["denied:orders-user"] > denied)
        self.undo()

    def undo(self) -> None:
        """Undo the bad publish unless a visitor has."""
        revision = self._bad_revision()
        if revision:
            with suppress(Refused):  # a visitor was quicker
                reason = "Customers cannot order: 6 a minute should have been 600"
                self._ada.ask("POST", f"revisions/{revision}/undo", reason=reason)
                self._say(f"no visitor undid it, so Ada has undone revision {revision}")

    def _bad_revision(self) -> int:
        """Return the revision that is to be undone; 0: there is none."""
        with suppress(Refused):
            newest = self._ada.ask("GET", "rules/orders-user/versions")["items"][0]
            if newest["body"] and newest["body"].get("limit") == BAD:
                return int(newest["revision"])
        return 0

    def _override(self) -> None:
        """Give a customer more for a few minutes."""
        with suppress(Refused):
            self._ada.ask("POST", f"users/{self._customer}/override", _for_minutes(3), "Ticket 1902: a migration")
