"""A request, as a policy sees it, and the names of principals."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice
from types import MappingProxyType

import msgspec

from headgate.core.errors import UsageError
from headgate.core.numbers import short


class InvalidRequest(UsageError):
    """The request cannot be matched with rules: respond with 400. Never let it pass without a limit."""


class UnknownRule(InvalidRequest):
    """The rule `rule_id` does not exist or is disabled, and `unknown_rule` of the rules is "error"."""

    def __init__(self, rule_id: str, known: Collection[str] = (), text: str = "") -> None:
        super().__init__(rule_id, known, text)
        self.rule_id, self._known, self._text = rule_id, known, text

    def __str__(self) -> str:
        """List the rules that exist; made only when it is read, since clients choose how often this is raised."""
        if self._text:  # of a response of the service
            return self._text
        if self.rule_id in self._known:
            return f"rule {short(self.rule_id)} is disabled"
        some = ", ".join(islice(self._known, _SHOWN)) or "none"
        more = f" and {len(self._known) - _SHOWN} more" if len(self._known) > _SHOWN else ""
        return f"rule {short(self.rule_id)} does not exist; the rules are: {some}{more}"


USER, IP, APIKEY, ENDPOINT, GLOBAL = "user", "ip", "apikey", "endpoint", "global"
PRINCIPALS = frozenset({USER, IP, APIKEY})
"""The dimensions that identify a caller."""
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
"""Other names of dimensions with a fixed meaning, in lower case, without - and _: api_key, API-KEY, apiKey are one."""
_LONGEST = 32
_SHOWN = 10
"""Rules that are listed if the named one does not exist."""


def principal_name(name: str) -> str:
    """Return the canonical name of a principal: user_id, USER and userId are "user"; other names are unchanged."""
    return _known(name) if len(name) <= _LONGEST else name


@lru_cache(maxsize=4096)  # clients choose names
def _known(name: str) -> str:
    return ALIASES.get(name.lower().replace("_", "").replace("-", ""), name)


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request. `headgate.policy.compiled.Policy.select` checks it."""

    principal: Mapping[str, str] = {}
    """The caller, by dimension: ``{"user": "42", "ip": "203.0.113.9"}``; see `ALIASES` for other names. Only verified
    values belong here. Leave out unknown ones: an empty value is an error. An IPv6 address is counted, and compared by
    `when`, as its /64 network, while lists compare the whole address; a network is counted as it is."""
    endpoint: str = "/"
    """The path as the client sent it, *not* decoded (ASGI: raw_path); see `headgate.policy.paths`."""
    method: str = ""
    """The HTTP method, in any case; without one, rules that name methods do not match."""
    attributes: Mapping[str, str] = {}
    """Other values that rules compare with `when`, or count by. If a rule counts by an attribute, verify it like a
    principal: a client that chooses its value escapes the limit with a new value for each request. The names user, ip,
    apikey, endpoint and global, and their aliases, are ignored here."""
    cost: int = 1
    """1 to 100 000; 0 to take nothing."""
    tier: str = ""
    """A verified tier, such as that of a token; empty: the tier that the rules give the user."""
    address: str = ""
    """The client's whole address, for allow and deny lists, if principal["ip"] is a network (2001:db8:1:2::/64). Empty:
    lists compare principal["ip"]."""
    rule_id: str = ""
    """Apply only this rule, whatever its endpoint, methods, tier, attributes and key pattern; empty: all that match.
    The request must have what the rule counts by. It is an error if it counts by none of the principals."""
