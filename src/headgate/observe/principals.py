"""Who asked, as logs and lists of hot keys show it: by default not by name.

What a rule counted somebody by is bounded text, since it is remembered.
"""

from __future__ import annotations

from hashlib import blake2b

from headgate.core.errors import UsageError
from headgate.core.key import LITERAL
from headgate.engine import AsyncEngine
from headgate.policy.envoy.matching import Match
from headgate.policy.facts import facts_of
from headgate.policy.request import Request

LONGEST_SECRET = 64


class Principals:
    """Decides what is shown of a principal.

    Args:
        plain: whether they are shown as they are.
        secret: makes the digests of this installation differ from all others', so that nobody can find out who is
            meant by trying names; up to 64 bytes. All nodes need the same one if their logs are to be compared.
    """

    __slots__ = ("_secret", "plain")

    def __init__(self, *, plain: bool = False, secret: bytes = b"") -> None:
        if len(secret) > LONGEST_SECRET:
            raise UsageError(f"the secret for digests has up to {LONGEST_SECRET} bytes, not {len(secret)}")
        self.plain, self._secret = plain, secret

    def shown(self, value: str) -> str:
        """Return the principal, or its digest: ``#`` and 16 hexadecimal digits, always the same for the same text."""
        if self.plain:
            return value
        return "#" + blake2b(value.encode(errors="surrogatepass"), digest_size=8, key=self._secret).hexdigest()


def value_of(request: Request, rule_id: str, engine: AsyncEngine | None) -> str:
    """Return what the rule counts a request by; where that is not known any more, what the request has."""
    if engine is not None and rule_id:
        policy = engine.policy
        rule = policy.rules.get(rule_id)
        if rule is not None:
            value = request.principal.get(rule.dimension)
            if value is not None and rule.dimension != "ip":
                return bounded(value)
            try:
                facts = facts_of(request, ignore_case=policy.ruleset.ignore_case)
            except UsageError:  # it was decided all the same, by rules that have changed since
                facts = {}
            found = rule.value(facts)
            if found is not None:
                return bounded(found)
    return bounded(",".join([f"{name}={value}" for name, value in request.principal.items()]))


def descriptor_value(match: Match) -> str:
    """Return the entries of a descriptor."""
    return bounded(",".join([f"{key}={value}" if value else key for key, value in match.entries]))


def bounded(value: str) -> str:
    """Return a text that is short enough to be kept; a long one as its beginning and its digest."""
    if len(value) <= LITERAL:
        return value
    digest = blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{value[: LITERAL - 20]}...#{digest}"
