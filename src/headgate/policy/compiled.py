"""The policy: all rules, tiers, users and lists as one immutable value. A request in, a selection out.

1. A request on the deny list is refused, one on the allow list passes, one on both is refused.
2. Every enabled rule applies whose endpoint, methods, tier, `when` and `key_pattern` match the request, and whose
   dimensions the request has, unless another rule that applies names it in `replaces`. So if a replaces b, b replaces
   c, and all three match, a and c apply.
3. A shadow rule (also one that is enforced for some percent, but not for this principal) replaces nothing: a trial must
   not turn off what is in force.
4. If no rule is enforced, the default rule applies, provided that its own conditions match.

A trie finds the matching rules, so the cost depends on them, not on the number of rules. Nothing is cached about
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from operator import attrgetter
from types import MappingProxyType

from headgate.cache import BoundedCache
from headgate.core.numbers import short
from headgate.policy.addresses import address_of
from headgate.policy.lists import Entries
from headgate.policy.model import Change, Entry, Ruleset
from headgate.policy.prepared import LAST, Applied, PreparedRule, TermsByTier, replaced_among
from headgate.policy.request import (
    ENDPOINT,
    GLOBAL,
    IP,
    USER,
    InvalidRequest,
    Request,
    UnknownRule,
    principal_name,
)
from headgate.policy.request_facts import address_given, check_request, check_text, facts_of, shown
from headgate.policy.selection import Selection, Verdict, selection_of
from headgate.policy.trie import Conditions, Trie, matches

MOST_OVERRIDES = 16_384
"""Different overrides that are kept when users change, including unused ones."""
_place = attrgetter("place")
_NOTHING: Mapping[str, Change] = {}


class Policy:
    """The compiled rules.

    `version` identifies them in responses and logs. If not `enforcing`, every rule is a shadow, but lists still apply.
    Parts of `last`, a policy of earlier rules, are shared where the rules are the same objects.
    """

    __slots__ = (
        *("__weakref__", "_allow", "_deny", "_listed", "_names", "_overridden", "_trie", "_users", "enforcing"),
        *("rules", "ruleset", "version"),
    )

    def __init__(
        self, ruleset: Ruleset, *, version: int = 0, enforcing: bool = True, last: Policy | None = None
    ) -> None:
        self.ruleset = ruleset
        self.version = version
        self.enforcing = enforcing
        if last is not None and (last.ruleset.ignore_case != ruleset.ignore_case or not _follows(ruleset, last)):
            last = None
        old: Mapping[str, PreparedRule] = {} if last is None else last.rules
        rules = _prepare(ruleset, last, old)
        self.rules: Mapping[str, PreparedRule] = MappingProxyType(rules)
        """By id, in the order of the ruleset, the default last."""
        self._trie: Trie[PreparedRule] = Trie(
            (
                (rule.segments, Conditions(rule.methods, rule.rule.tier, rule.rule.when), rule)
                for rule in rules.values()
                if rule.rule.enabled and old.get(rule.id) is not rule
            ),
            None if last is None else last._trie,  # noqa: SLF001  of the same class
            [(rule.segments, rule) for rule in old.values() if rule.rule.enabled and rules.get(rule.id) is not rule],
        )
        self._allow = Entries(ruleset.allow, ignore_case=ruleset.ignore_case)
        self._deny = Entries(ruleset.deny, ignore_case=ruleset.ignore_case)
        self._listed = {entry.dimension for entry in (*ruleset.allow, *ruleset.deny)}
        counted = {rule.dimension: rule.dimensions for rule in rules.values()}
        attributes = [rule.rule.when for rule in rules.values() if rule.rule.when]
        self._names = self._listed.union(*counted.values(), *attributes)
        """Names of facts that rules or lists use; if there are users, also "user"."""
        if ruleset.users:
            self._names |= {USER}
        self._overridden: BoundedCache[tuple[PreparedRule, Change], TermsByTier] = (
            BoundedCache(MOST_OVERRIDES) if last is None else last._overridden  # noqa: SLF001
        )
        """By rule and override: many users have few different overrides, and most of them survive a change."""
        self._users = dict(ruleset.users)  # the policy does not change with the mapping

    def select(self, request: Request, now: int, *, takes_cost: bool = True) -> Selection:
        """Return the selection for `request`; `now` is in microseconds since the epoch, for overrides that end.

        `takes_cost` is false for a refund or a reset: the request may have passed under higher limits, so no cost is
        too large.

        Raises:
            InvalidRequest: the request cannot be matched with rules; it must not pass.
            UnknownRule: it names a rule that does not exist or is disabled, and `unknown_rule` of the rules is "error".
            InvalidCost: the cost is not a whole number from 0 to 100 000; CostTooLarge: a limit could never admit it.
            InvalidKey: a principal is longer than 65 536 characters, or not Unicode text.
        """
        try:
            rule_id, cost = request.rule_id, request.cost
        except AttributeError:
            right = "a Request, such as Request({'user': '42'}, '/api/v1/orders', 'POST')"
            raise InvalidRequest(f"request must be {right}, not {short(request)}") from None
        if rule_id != "":
            unknown = self._unknown(request)
            if unknown is not None:
                return unknown
        facts = facts_of(request, ignore_case=self.ruleset.ignore_case)
        if self._listed and (listed := self._of_listed(request, facts)) is not None:
            return listed
        if rule_id:
            self._check_named(rule_id, facts)
        unmatched: tuple[str, ...] = ()
        for name in request.principal:
            if name not in self._names and principal_name(name) not in self._names:
                unmatched += (name,)
        return selection_of(self._applying(request, facts, now), cost, cost if takes_cost else 0, unmatched)

    def applying(self, request: Request, facts: Mapping[str, str], now: int) -> Sequence[Applied]:
        """Return the rules that apply, in the order of the ruleset, the default last; see `facts_of`."""
        if request.rule_id != "" and self._unknown(request) is not None:
            return ()
        if request.rule_id:
            self._check_named(request.rule_id, facts)
        return self._applying(request, facts, now)

    def request_of(self, client_id: str, rule_id: str) -> Request:
        """Return the request for one rule and one value of its dimension. Raises InvalidRequest."""
        check_text(client_id=client_id, rule_id=rule_id)
        rule = self.rules.get(rule_id)
        if not rule_id:  # otherwise, the request would be for all matching rules
            raise UnknownRule(rule_id, self.rules)
        if rule is None or rule.dimension == GLOBAL:
            return Request(rule_id=rule_id)
        if rule.dimension == ENDPOINT:
            return Request(endpoint=client_id, rule_id=rule_id)
        if len(rule.dimensions) > 1:
            raise InvalidRequest(f"rule {rule_id!r} counts by {rule.dimension}: send a request with all of them")
        return Request({rule.dimension: client_id}, rule_id=rule_id)

    def tier_of(self, user: str) -> str:
        """Return the tier of a user, for requests without a tier; empty for none."""
        special = self._users.get(user)
        return (special.tier if special is not None else "") or self.ruleset.default_tier

    def _unknown(self, request: Request) -> Selection | None:
        """Return the selection for a request whose rule does not exist or is disabled; None if it is enabled.

        Raises UnknownRule if that is an error, and InvalidRequest if the rule counts by none of the principals.
        """
        check_request(request)
        rule = self.rules.get(request.rule_id)
        if rule is None or not rule.rule.enabled:
            unknown = UnknownRule(request.rule_id, self.rules)
            if self.ruleset.unknown_rule == "error":
                raise unknown
            return Selection(Verdict.UNLIMITED, reason=str(unknown))
        texts = [name for name in request.principal if isinstance(name, str)]
        if texts and {*map(principal_name, texts), *request.attributes}.isdisjoint(rule.dimensions):
            given = ", ".join(map(shown, texts))
            raise InvalidRequest(f"rule {rule.id!r} counts by {rule.dimension}, not by {given}")
        return None

    def _check_named(self, rule_id: str, facts: Mapping[str, str]) -> None:
        """Raise InvalidRequest unless a request has all dimensions of the rule that it names."""
        rule = self.rules[rule_id]
        if rule.value(facts) is None:
            raise InvalidRequest(
                f"rule {rule.id!r} counts by {rule.dimension}: the request must have that principal or attribute"
            )
        if len(rule.dimensions) > 1 and ENDPOINT in rule.dimensions and not matches(rule.segments, facts[ENDPOINT]):
            raise InvalidRequest(
                f"rule {rule.id!r} counts by {rule.dimension}: the endpoint must match {rule.rule.endpoint}"
            )

    def _of_listed(self, request: Request, facts: Mapping[str, str]) -> Selection | None:
        """Return the selection for a request that is on a list."""
        names = {*request.principal, *request.attributes}
        if self._listed.isdisjoint({*names, *map(principal_name, names), ENDPOINT, GLOBAL}):
            return None
        if request.rule_id and request.endpoint == "/" and ENDPOINT not in self.rules[request.rule_id].dimensions:
            facts = {name: value for name, value in facts.items() if name != ENDPOINT}  # it is the default
        address = address_given(request)
        for verdict, name, entries in ((Verdict.DENIED, "deny", self._deny), (Verdict.ALLOWED, "allow", self._allow)):
            entry = entries.find(facts, address)
            if entry is not None:
                return Selection(verdict, reason=_on_list(name, entry, facts, address))
        return None

    def _applying(self, request: Request, facts: Mapping[str, str], now: int) -> list[Applied]:
        """Return the rules that apply, in order, on their terms at this time."""
        user = self._users.get(facts.get(USER, "")) if self._users else None
        tier = request.tier or (user.tier if user is not None else "") or self.ruleset.default_tier
        changes = user.overrides if user is not None else _NOTHING
        if request.rule_id:
            found = [self.rules[request.rule_id]]  # whatever its conditions
        else:
            found = self._trie.find(facts[ENDPOINT], request.method.upper(), tier, facts)
            if len(found) > 1:
                found.sort(key=_place)
        applying: list[Applied] = []
        replacing: list[PreparedRule] = []
        for rule in found:
            value = facts.get(rule.dimension) if rule.is_single else rule.value(facts)
            if value is None:
                continue
            if rule.only is not None and not request.rule_id and not rule.only.find(facts, address_given(request)):
                continue
            if rule.place == LAST and not request.rule_id and any(each.is_enforced for each in applying):
                break
            is_enforced = rule.enforces(value) if rule.is_enforced is None else rule.is_enforced
            if is_enforced and rule.replaces and rule.place < LAST:
                replacing.append(rule)
            terms = self._terms_of(rule, changes[rule.id]) if rule.id in changes else rule.terms
            applying.append(Applied(rule, terms.at(tier, now), is_enforced, value))
        if replacing:
            replaced = replaced_among(replacing)
            applying = [each for each in applying if each.rule.id not in replaced]
        if self.enforcing:
            return applying
        return [Applied(each.rule, each.terms, False, each.value) for each in applying]

    def _terms_of(self, rule: PreparedRule, change: Change) -> TermsByTier:
        made = self._overridden.get((rule, change))
        return made or self._overridden.keep((rule, change), TermsByTier(rule.rule, rule.tiers, change))


def _follows(ruleset: Ruleset, last: Policy) -> bool:
    """Whether the rules of the last policy are still in the same order, and new ones after them."""
    places = [last.rules[rule.id].place if rule.id in last.rules else LAST for rule in ruleset.rules]
    return places == sorted(places)


def _prepare(ruleset: Ruleset, last: Policy | None, old: Mapping[str, PreparedRule]) -> dict[str, PreparedRule]:
    """Return the rules by id, from the last policy where neither the rule nor its changes by tier differ."""
    before = {} if last is None else last.ruleset.tiers
    other = [tier for tier in {*before, *ruleset.tiers} if before.get(tier) is not ruleset.tiers.get(tier)]
    retiered = {rule_id for tiers in (before, ruleset.tiers) for tier in other for rule_id in tiers.get(tier, ())}
    rules: dict[str, PreparedRule] = {}
    following = count(1 + max([rule.place for rule in old.values() if rule.place < LAST], default=-1))
    for rule in ruleset.rules if ruleset.default is None else (*ruleset.rules, ruleset.default):
        known = old.get(rule.id)
        is_default = rule is ruleset.default
        if known is not None and (known.place == LAST) != is_default:
            known = None
        if known is None or known.rule is not rule or rule.id in retiered:
            place = LAST if is_default else next(following) if known is None else known.place
            changes = {tier: given[rule.id] for tier, given in ruleset.tiers.items() if rule.id in given}
            known = PreparedRule(rule, changes, place=place, ignore_case=ruleset.ignore_case)
        rules[rule.id] = known
    return rules


def _on_list(name: str, entry: Entry, facts: Mapping[str, str], address: str) -> str:
    value = address_of(address).text if entry.dimension == IP and address else facts[entry.dimension]
    return f"{entry.dimension} {shown(value)} is on the {name} list: {shown(entry.value)}"
