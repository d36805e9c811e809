"""The policy: all rules, tiers, users and lists as one immutable value. A request in, its plan out.

What a request gets:

1. Whoever is on the deny list is refused, whoever is on the allow list passes; who is on both is refused.
2. Every enabled rule applies whose endpoint, methods, tier, `when` and `key_pattern` the request meets and which counts
   by what the request has, unless another rule that applies names it in `replaces`. So if a replaces b and b replaces
   c, and all three match, a and c apply.
3. A rule that is a shadow (for this principal, if it is enforced for some percent) replaces nothing: what is tried out
   must not switch off what is in force.
4. If by that nothing is enforced, the default rule applies, if its own conditions are met.

Everything that can be computed beforehand is; the rest depends on the request, not on the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from headgate.core.errors import InvalidRule
from headgate.core.numbers import short
from headgate.policy.addresses import address_of
from headgate.policy.conditions import Indexed
from headgate.policy.facts import address_given, check_request, check_text, facts_of, shown
from headgate.policy.lists import Entries
from headgate.policy.model import Entry, Ruleset, User
from headgate.policy.prepared import Applied, PreparedRule, Special, ranks_of, replaced_among, share_of
from headgate.policy.recipes import Recipes
from headgate.policy.request import ENDPOINT, GLOBAL, InvalidRequest, Request, UnknownRule, principal_name
from headgate.policy.selection import UNMATCHED, Selection, Verdict, select
from headgate.policy.terms import Drafting, in_force
from headgate.policy.trie import Trie, matches


class Policy:
    """The compiled rules.

    Args:
        ruleset: the rules, as written.
        version: how this snapshot is called in answers and logs.
        enforcing: whether limits refuse. If not, every rule is a shadow: counted and reported where it would have
            applied. Lists hold all the same.

    Raises:
        InvalidRule: a pattern is malformed, rules replace each other in a circle, or the override of a user makes no
            quota on top of that user's tier.
    """

    __slots__ = (
        "__weakref__",
        "_allow",
        "_default",
        "_default_tier",
        "_deny",
        "_in_order",
        "_names",
        "_recipes",
        "_trie",
        "_users",
        "enforcing",
        "has_lists",
        "rules",
        "ruleset",
        "version",
    )

    def __init__(self, ruleset: Ruleset, *, version: int = 0, enforcing: bool = True) -> None:
        self.ruleset = ruleset
        self.version = version
        self.enforcing = enforcing
        drafting, ignore_case = Drafting(ruleset.tiers), ruleset.ignore_case
        ranks = ranks_of(ruleset.rules)
        everything = ruleset.rules if ruleset.default is None else (*ruleset.rules, ruleset.default)
        prepared = tuple(
            [PreparedRule(rule, drafting, rank=ranks.get(rule.id, 0), ignore_case=ignore_case) for rule in everything]
        )
        self.rules: Mapping[str, PreparedRule] = MappingProxyType({rule.id: rule for rule in prepared})
        """All rules by id, in the order of the ruleset, the default last."""
        self._in_order = prepared
        self._default_tier = ruleset.default_tier
        ordinary = len(ruleset.rules)
        self._trie = _trie_of(enumerate(prepared[:ordinary]))
        self._default = _trie_of(enumerate(prepared[ordinary:], ordinary))
        self._users = {name: self._special(name, user, drafting) for name, user in ruleset.users.items()}
        self._allow = Entries(ruleset.allow, ignore_case=ignore_case)
        self._deny = Entries(ruleset.deny, ignore_case=ignore_case)
        self.has_lists = bool(ruleset.allow or ruleset.deny)
        self._names = {"user"} if ruleset.users else set[str]()
        """What a rule counts by or asks for, or a list is about."""
        for rule in everything:
            self._names |= {*rule.dimensions, *rule.when}
        self._names.update(entry.dimension for entry in (*ruleset.allow, *ruleset.deny))
        looks_at_values = self.has_lists or any(rule.when or rule.key_pattern for rule in everything)
        self._recipes = None if looks_at_values or not enforcing else Recipes(self._users)

    def plan(self, request: Request, now: int, *, asking: bool = True) -> Selection:
        """Return what is to be done about `request`.

        Args:
            request: who asks for what.
            now: microseconds since the epoch, for overrides that end.
            asking: whether the cost is to be taken. Not for a refund or a reset: they name the limits of a request that
                passed earlier, perhaps under higher limits, so that no cost is too large. (A store gives back no more
                than a limit has counted as used.)

        Raises:
            InvalidRequest: the request cannot be matched with rules; it must not pass.
            UnknownRule: it names a rule that does not exist, unless `unknown_rule` of the ruleset is "allow".
            InvalidCost: the cost is not a whole number from 0 to 100 000; CostTooLarge: a limit could never admit it.
            InvalidKey: a principal is longer than 65 536 characters, or not Unicode text.
        """
        try:
            rule_id = request.rule_id
        except AttributeError:
            right = "a Request, such as Request({'user': '42'}, '/api/v1/orders', 'POST')"
            raise InvalidRequest(f"what is decided is {right}, not {short(request)}") from None
        if rule_id != "":
            return self._of_one_rule(request, now, asking=asking)
        recipes = self._recipes
        if recipes is None or not recipes.is_worth_it:
            return self.worked_out(request, now, asking=asking)
        selection = recipes.selection(request)
        return self.worked_out(request, now, asking=asking, recipes=recipes) if selection is None else selection

    def worked_out(
        self, request: Request, now: int, *, asking: bool = True, recipes: Recipes | None = None
    ) -> Selection:
        """Return what `plan` returns, whatever is remembered of such requests; `recipes` are to remember it."""
        facts = facts_of(request, ignore_case=self.ruleset.ignore_case)
        if self.has_lists:
            listed = self.listed(facts, address_given(request))
            if listed is not None:
                return listed
        applying = self.applying(request, facts, now)
        selection = self.marked(select(applying, request.cost, asking=asking), request)
        if recipes is not None:
            recipes.remember(request, facts, applying, selection)
        return selection

    def marked(self, selection: Selection, request: Request) -> Selection:
        """Return a selection that says which principals of the request no rule and no list knows."""
        known = self._names
        unmatched = tuple([name for name in request.principal if principal_name(name) not in known])
        return msgspec.structs.replace(selection, unmatched_principals=unmatched) if unmatched else selection

    def request_of(self, client_id: str, rule_id: str) -> Request:
        """Return the request that asks one rule about one value of its dimension. Raises InvalidRequest."""
        check_text(client_id=client_id, rule_id=rule_id)
        rule = self.rules.get(rule_id)
        if rule is None or rule.dimension == GLOBAL:
            return Request(rule_id=rule_id)
        if rule.dimension == ENDPOINT:
            return Request(endpoint=client_id, rule_id=rule_id)
        if len(rule.dimensions) > 1:
            raise InvalidRequest(
                f"rule {rule_id!r} counts by {rule.dimension}: ask with a request that has all of them"
            )
        return Request({rule.dimension: client_id}, rule_id=rule_id)

    def _of_one_rule(self, request: Request, now: int, *, asking: bool) -> Selection:
        """Return what is to be done about a request that names its rule."""
        check_request(request)
        rule = self.rules.get(request.rule_id)
        if rule is None or not rule.rule.enabled:
            otherwise = self.ruleset.unknown_rule
            if otherwise == "error" or (rule is None and not otherwise):
                raise UnknownRule(request.rule_id, self.rules)
            return UNMATCHED
        names = {*map(principal_name, request.principal), *request.attributes}
        if request.principal and names.isdisjoint(rule.dimensions):
            given = ", ".join(map(shown, request.principal))
            raise InvalidRequest(f"rule {rule.id!r} counts by {rule.dimension}, not by {given}")
        facts = facts_of(request, ignore_case=self.ruleset.ignore_case)
        value = rule.value(facts)
        if value is None:
            raise InvalidRequest(f"rule {rule.id!r} counts by {rule.dimension}: say by which")
        if len(rule.dimensions) > 1 and ENDPOINT in rule.dimensions and not matches(rule.segments, facts[ENDPOINT]):
            raise InvalidRequest(
                f"rule {rule.id!r} counts by {rule.dimension}: say which endpoint, one of {rule.rule.endpoint}"
            )
        if request.endpoint == "/" and ENDPOINT not in rule.dimensions:
            del facts[ENDPOINT]  # nobody said it: no list is about it
        if self.has_lists:
            listed = self.listed(facts, address_given(request))
            if listed is not None:
                return listed
        special = self.special_of(facts.get("user", ""))
        applied = self.apply(rule, value, special, request.tier or self.tier_of(special), now)
        return self.marked(select(self._as_enforced([applied]), request.cost, asking=asking), request)

    def listed(self, facts: Mapping[str, str], address: str = "") -> Selection | None:
        """Return what is to be done about somebody who is on a list; `address` is the whole one, as it was given."""
        entry = self._deny.find(facts, address)
        if entry is not None:
            return Selection(Verdict.DENIED, reason=_on_list("deny", entry, facts, address))
        entry = self._allow.find(facts, address)
        if entry is not None:
            return Selection(Verdict.ALLOWED, reason=_on_list("allow", entry, facts, address))
        return None

    def special_of(self, user: str) -> Special | None:
        """Return what is special about a user, if anything."""
        return self._users.get(user)

    def tier_of(self, special: Special | None) -> str:
        """Return the tier of a user who is special in that way, unless a request says otherwise; empty for none."""
        return (special.tier if special is not None else "") or self._default_tier

    def applying(self, request: Request, facts: dict[str, str], now: int) -> list[Applied]:
        """Return the rules that apply, in the order of the ruleset, the default last."""
        special = self._users.get(facts.get("user", "")) if self._users else None
        tier = request.tier or self.tier_of(special)
        asked = facts[ENDPOINT], request.method.upper(), tier, facts
        found = self._trie.find(*asked)
        if len(found) > 1:
            found.sort()
        applying = []
        is_enforced, replacing = False, list[PreparedRule]()
        for place in found:
            rule = self._in_order[place]
            value = rule.value(facts)
            if value is not None and (rule.only is None or rule.only.find(facts, address_given(request))):
                applied = self.apply(rule, value, special, tier, now)
                applying.append(applied)
                if applied.is_enforced:
                    is_enforced = True
                    if rule.replaces:
                        replacing.append(rule)
        if replacing:
            replaced = replaced_among(replacing)
            applying = [applied for applied in applying if applied.rule.id not in replaced]
        if not is_enforced:
            for place in self._default.find(*asked):
                rule = self._in_order[place]
                value = rule.value(facts)
                if value is not None and (rule.only is None or rule.only.find(facts, address_given(request))):
                    applying.append(self.apply(rule, value, special, tier, now))
        return self._as_enforced(applying)

    def _as_enforced(self, applying: list[Applied]) -> list[Applied]:
        return (
            applying
            if self.enforcing
            else [msgspec.structs.replace(applied, is_enforced=False) for applied in applying]
        )

    def apply(self, rule: PreparedRule, value: str, special: Special | None, tier: str, now: int) -> Applied:
        """Return what a rule means for somebody, at a time in microseconds since the epoch."""
        override = special.overrides.get(rule.id) if special is not None else None
        if override is None:
            schedule = rule.schedules.by_tier.get(tier, rule.schedules.untiered)
        else:
            schedule = override.schedule(tier)
        terms = schedule[0]
        if now >= terms.until:
            terms = in_force(schedule, now)
        is_enforced = rule.is_enforced
        if is_enforced is None:
            is_enforced = share_of(rule.id, value) < rule.rule.enforce_percent
        return Applied(rule, value, terms, is_enforced)

    def _special(self, name: str, user: User, drafting: Drafting) -> Special:
        usual = user.tier, self._default_tier
        try:
            overrides = {
                rule_id: drafting.overridden(self.rules[rule_id].rule, change, usual)
                for rule_id, change in user.overrides.items()
            }
        except InvalidRule as error:
            raise InvalidRule(f"user {name!r}: {error}") from None
        return Special(user.tier, overrides)


def _trie_of(rules: Iterable[tuple[int, PreparedRule]]) -> Trie[int]:
    """Return a trie that finds the places of rules: numbers are sorted faster than anything."""
    return Trie(
        (prepared.segments, Indexed(prepared.methods, prepared.rule.tier, prepared.rule.when), place)
        for place, prepared in rules
        if prepared.rule.enabled
    )


def _on_list(name: str, entry: Entry, facts: Mapping[str, str], address: str) -> str:
    value = address_of(address).text if entry.dimension == "ip" and address else facts[entry.dimension]
    return f"{entry.dimension} {shown(value)} is on the {name} list: {shown(entry.value)}"
