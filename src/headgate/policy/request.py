"""What is asked: a request, as a policy sees it, and how principals are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice
from types import MappingProxyType

import msgspec

from headgate.core.errors import UsageError
from headgate.core.numbers import short


class InvalidRequest(UsageError):
    """The request cannot be matched with rules as it is: answer 400. Never let it pass unlimited instead."""


class UnknownRule(InvalidRequest):
    """A rule was named that does not exist or is disabled, and `unknown_rule` of the rules is "error".

    Attributes:
        rule_id: the name that was given.
    """

    def __init__(self, rule_id: str, known: Collection[str] = (), text: str = "") -> None:
        super().__init__(rule_id, known, text)
        self.rule_id, self._known, self._text = rule_id, known, text

    def __str__(self) -> str:
        """Say which rules there are; made only when somebody reads it, since clients choose how often it is raised."""
        if self._text:  # it was said elsewhere
            return self._text
        if self.rule_id in self._known:
            return f"rule {short(self.rule_id)} is disabled"
        some = ", ".join(islice(self._known, _SHOWN)) or "none"
        more = f" and {len(self._known) - _SHOWN} more" if len(self._known) > _SHOWN else ""
        return f"rule {short(self.rule_id)} does not exist; there are: {some}{more}"


USER, IP, APIKEY, ENDPOINT, GLOBAL = "user", "ip", "apikey", "endpoint", "global"
PRINCIPALS = frozenset({USER, IP, APIKEY})
"""Who asks, in the names that all rules understand."""
ALIASES = MappingProxyType(
    {
        **dict.fromkeys(("user", "userid"), USER),
        **dict.fromkeys(("ip", "ipaddress", "ipaddr", "clientip", "clientaddress"), IP),
        **dict.fromkeys(("remoteip", "remoteaddress", "remoteaddr"), IP),
        **dict.fromkeys(("apikey", "apikeyid", "xapikey"), APIKEY),
        **dict.fromkeys(("endpoint",), ENDPOINT),
        **dict.fromkeys(("global",), GLOBAL),
    }
)
"""All names of what has a fixed meaning, in small letters, without - and _: api_key, API-KEY and apiKey are one."""
_LONGEST = 32
_SHOWN = 10
"""How many rules are named to somebody who named one that does not exist."""


def principal_name(name: str) -> str:
    """Return a name of a principal as rules have it: user_id, USER and userId are "user"; others stay as they are."""
    return _known(name) if len(name) <= _LONGEST else name


@lru_cache(maxsize=4096)  # clients choose names
def _known(name: str) -> str:
    return ALIASES.get(name.lower().replace("_", "").replace("-", ""), name)


class Request(msgspec.Struct, frozen=True, gc=False):
    """Who asks for what. Nothing is checked here; `headgate.policy.compiled.Policy.select` does that."""

    principal: Mapping[str, str] = {}
    """Who asks, by dimension: ``{"user": "42", "ip": "203.0.113.9"}``; see `ALIASES` for other names of the same. Only
    what has been verified belongs here. What is not known is left out; an empty text is an error. A single IPv6 address
    is counted, and compared by `when`, as its /64 network, while lists see it whole; a network is counted as it
    stands."""
    endpoint: str = "/"
    """The path as it was sent, *not* decoded (ASGI: raw_path); see `headgate.policy.paths`."""
    method: str = ""
    """The HTTP method, a token of RFC 9110; rules that name methods do not match without one. Upper and lower case do
    not matter."""
    attributes: Mapping[str, str] = {}
    """What else rules may ask for with `when`, or count by. An attribute that a rule counts by must be verified as a
    principal is: whoever chooses its value chooses whose limit is used, and escapes it with a new one for each request.
    The names user, ip, apikey, endpoint and global, and their aliases, are ignored here."""
    cost: int = 1
    """How much the request takes, 1 to 100 000; 0 to take nothing and only ask."""
    tier: str = ""
    """The tier, if somebody vouches for it (a verified token); empty: that of the user, as the rules have it."""
    address: str = ""
    """The client's whole address, where principal["ip"] is the network it is counted by (2001:db8:1:2::/64): what
    allow and deny lists look at. Empty: they look at principal["ip"] as it was given."""
    rule_id: str = ""
    """One rule that is asked, whatever endpoint, methods, tier, attributes and keys it is for; empty: all that apply.
    The request has what that rule counts by: principals that it does not count by at all are an error."""
