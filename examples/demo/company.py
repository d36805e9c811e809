"""The customers of Larkfield, a shop with an API, and their requests: always the same customers, in a random order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

USERS = 1500
ADDRESSES = 400
"""Of visitors who are not logged in."""
PARTNERS = (
    *("acme-logistics", "globex", "initech-erp", "umbrella-retail", "stark-fulfilment", "wayne-pay", "hooli-ads"),
    *("cyberdyne-bi", "soylent-foods", "tyrell-support", "oscorp-mobile", "wonka-gifts"),
)
NOISY = "globex"
"""The partner whose job occasionally sends too many requests."""
ABUSER, ABUSER_ADDRESS = "rob.banks", "203.0.113.66"
PER_SECOND = 190.0
"""Requests on an average working day; see `busyness`."""
_FIRST = """
ada ben chloe dev elif finn grace hana ivan jun kofi lena mia noor omar pia quinn rosa sam tala uma vik wen yara zoe
amir bea carl dina emil
"""
_LAST = """
abe berg costa diaz evans fox garcia holm ito jones kaya lund meyer novak okoye park quist rossi sato tanaka ueda vargas
weber xu young zhang adams baker clark diallo ekman fischer gupta hansen ivanov jensen khan lopez moreau ndiaye olsen
patel reyes silva turner urban voss wolf yilmaz zimmer
"""
_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
_APP, _SCRIPT, _SDK = "Larkfield/7.2 (iPhone; iOS 19.1)", "python-requests/2.32.4", "larkfield-partner/3.4 (java 21)"
Choice = tuple[Sequence[tuple[str, str]], Sequence[int]]


def _choice(*weighted: tuple[int, str, str]) -> Choice:
    return [(method, path) for _, method, path in weighted], list(accumulate(weight for weight, *_ in weighted))


_OF_USERS = _choice(
    (310, "GET", "/api/v1/products/{}"),
    (240, "GET", "/api/v1/search"),
    (140, "GET", "/api/v1/orders"),
    (90, "GET", "/api/v1/orders/{}"),
    (70, "POST", "/api/v1/orders"),
    (97, "GET", "/api/v1/basket"),
    (50, "PUT", "/api/v1/basket/items/{}"),
    (3, "POST", "/api/v1/exports"),
)
_OF_PARTNERS = _choice(
    (40, "GET", "/api/v1/inventory/{}"),
    (25, "GET", "/api/v1/orders"),
    (20, "PUT", "/api/v1/shipments/{}"),
    (14, "GET", "/api/v1/prices"),
    (1, "POST", "/api/v1/exports"),
)
_OF_VISITORS = _choice((55, "GET", "/api/v1/products/{}"), (15, "GET", "/api/v1/prices"), (30, "POST", "/api/v1/login"))


class Call(NamedTuple):
    """A request of a customer."""

    method: str
    path: str
    address: str
    agent: str
    user: str = ""
    partner: str = ""

    @property
    def client(self) -> str:
        """The kind of program that sent it, by its user agent."""
        return {_BROWSER: "browser", _APP: "app", _SDK: "partner"}.get(self.agent, "script")


def busyness(at: float) -> float:
    """Return how much happens at a time, in seconds since the epoch, UTC: 1 on an average working day."""
    hour = at / 3600 % 24
    weekday = int(at // 86400 + 3) % 7
    day = 1 - 0.42 * math.cos((hour - 3.5) / 24 * 2 * math.pi) + 0.12 * math.sin(hour / 24 * 4 * math.pi)
    return day * (0.72 if weekday >= 5 else 1.0)


class Company:
    """Makes requests: few customers send most of them, by a Zipf law.

    Args:
        random: what it draws from.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        steady = Random(7)  # who is who stays the same
        names = [f"{first}.{last}" for first in _FIRST.split() for last in _LAST.split()]
        self.users = steady.sample(names, USERS)
        self._user_weights = list(accumulate(1 / (rank + 8) ** 0.9 for rank in range(1, USERS + 1)))
        self._partner_weights = list(accumulate(1 / rank**0.7 for rank in range(1, len(PARTNERS) + 1)))
        self._address_weights = list(accumulate(1 / (rank + 15) for rank in range(1, ADDRESSES + 1)))
        tiers = steady.choices(("free", "pro", "enterprise"), (76, 20, 4), k=USERS)
        self.tiers = {user: tier for user, tier in zip(self.users, tiers, strict=True) if tier != "free"}

    @property
    def free(self) -> list[str]:
        """The users of the tier free, those first who request most."""
        return [user for user in self.users if user not in self.tiers]

    def call(self) -> Call:
        """Return the request of a random customer."""
        random = self._random
        kind = random.random()
        if kind < 0.72:
            rank = random.choices(range(USERS), cum_weights=self._user_weights)[0]
            agent = _SCRIPT if rank % 29 == 3 else _APP if rank % 3 else _BROWSER
            address = f"100.{64 + rank // 250}.{rank % 250}.{1 + rank % 7}"
            return Call(*self._request(_OF_USERS), address, agent, self.users[rank])
        if kind < 0.88:
            partner = random.choices(PARTNERS, cum_weights=self._partner_weights)[0]
            return self.partner_call(partner)
        number = random.choices(range(ADDRESSES), cum_weights=self._address_weights)[0]
        agent = _SCRIPT if number % 11 == 2 else _BROWSER
        return Call(*self._request(_OF_VISITORS), f"192.0.2.{number % 200}", agent)

    def partner_call(self, partner: str) -> Call:
        """Return a request of a partner."""
        address = f"198.18.{PARTNERS.index(partner)}.10"
        return Call(*self._request(_OF_PARTNERS), address, _SDK, partner, partner)

    def abuse(self) -> Call:
        """Return a request of the abuser, who tries passwords, and reads all that search finds."""
        if self._random.random() < 0.5:
            return Call("POST", "/api/v1/login", ABUSER_ADDRESS, _SCRIPT)
        return Call("GET", "/api/v1/search", ABUSER_ADDRESS, _SCRIPT, ABUSER)

    def _request(self, choice: Choice) -> tuple[str, str]:
        method, path = self._random.choices(choice[0], cum_weights=choice[1])[0]
        return method, path.format(self._random.randrange(1000, 4000))
