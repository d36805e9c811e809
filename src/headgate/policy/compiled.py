"""The policy: all rules, tiers, users and lists as one immutable value. A request in, a selection out.

What a request gets:

1. Whoever is on the deny list is refused, whoever is on the allow list passes; who is on both is refused.
2. Every enabled rule applies whose endpoint, methods, tier, `when` and `key_pattern` the request meets and which counts
   by what the request has, unless another rule that applies names it in `replaces`. So if a replaces b and b replaces
   c, and all three match, a and c apply.
3. A rule that is a shadow (for this principal, if it is enforced for some percent) replaces nothing: what is tried out
   must not switch off what is in force.
4. If by that nothing is enforced, the default rule applies, if its own conditions are met.

Everything that can be computed beforehand is; the rest depends on the request, not on the number of rules. The rules
that apply are worked out once for each kind of request, and remembered. Of one kind are requests whose paths match the
same patterns, and which have the same method and tier, and principals and attributes of the same names; where a rule
asks for the value of an attribute (`when`), also those that meet that condition or do not. A rule for some keys, one
that is enforced for some percent, and overrides depend on the caller. Such requests are tested, and what follows from
the outcome is remembered, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from headgate.cache import BoundedCache
from headgate.core.numbers import short
from headgate.policy.addresses import address_of, counted_by
from headgate.policy.facts import EVERYBODY, IDENTITIES, address_given, check_request, check_text, facts_of, shown
from headgate.policy.lists import Entries
from headgate.policy.model import Change, Entry, Ruleset, User
from headgate.policy.prepared import LAST, Applied, PreparedRule, TermsByTier, replaced_among
from headgate.policy.request import (
    ENDPOINT,
    GLOBAL,
    IP,
    PRINCIPALS,
    USER,
    InvalidRequest,
    Request,
    UnknownRule,
    principal_name,
)
from headgate.policy.selection import Selection, Steps, Verdict
from headgate.policy.trie import Conditions, Ends, Trie, matches

MOST = 4096
"""Kinds of requests that are remembered; also outcomes of tests."""
MOST_OVERRIDES = 16_384
"""Different overrides that are remembered when users change, those that nobody has any more included."""
MOST_ENDPOINTS = 16_384
"""Endpoints whose kind of request is remembered; more than kinds, since many contain ids."""
LONGEST = 512
"""Characters of an endpoint, or of a method, a tier and all names together; longer ones are not remembered."""
_place = attrgetter("place")


class _Kind:
    """What follows for all requests of one kind: the rules that may apply, and what has to be tested.

    Args:
        rules: that match but for what is tested, in order.
        default: that applies if none of them is enforced, or none.
        tier: of the callers.
        is_named: whether requests name the one rule, so that it is for any key.
        is_listed: whether requests have what lists are about.
        is_plain: whether their rules look at no value, and each name of theirs stands for itself.
        unmatched: see `Selection.unmatched_principals`.
    """

    __slots__ = ("_default", "_is_named", "_rules", "is_listed", "is_plain", "steps", "tests", "tier", "unmatched")

    def __init__(
        self,
        rules: list[PreparedRule],
        default: list[PreparedRule],
        tier: str,
        *,
        is_named: bool,
        is_listed: bool,
        is_plain: bool,
        unmatched: tuple[str, ...],
    ) -> None:
        self._rules, self._default, self.tier, self._is_named = rules, default, tier, is_named
        self.is_listed, self.unmatched = is_listed, unmatched
        self.tests = [
            rule for rule in rules + default if rule.is_enforced is None or (rule.only is not None and not is_named)
        ]
        """Rules that match, or are enforced, only for some values."""
        self.is_plain = is_plain and not is_listed and not self.tests
        """Whether it is remembered by the path and the names of a request, whoever asks."""
        self.steps: Steps | None = None
        """For requests that need no test, of users without overrides."""

    def overrides(self, given: Mapping[str, TermsByTier]) -> tuple[TermsByTier | None, ...]:
        """Return what overrides each of the rules, of what overrides any; empty if nothing does."""
        found = tuple([given.get(rule.id) for rule in self._rules + self._default])
        return found if any(found) else ()

    def outcome(self, facts: Mapping[str, str], address: str) -> tuple[bool | None, ...]:
        """Return whether each of `tests` is enforced; None: it does not match."""
        outcome: list[bool | None] = []
        for rule in self.tests:
            is_met = rule.only is None or self._is_named or rule.only.find(facts, address) is not None
            outcome.append(rule.enforces(rule.value(facts) or "") if is_met else None)
        return tuple(outcome)

    def applying(self, outcome: tuple[bool | None, ...]) -> list[tuple[PreparedRule, bool]]:
        """Return the rules that apply, and whether they are enforced."""
        tested = dict(zip(self.tests, outcome, strict=True)) if outcome else {}
        states = [(rule, tested.get(rule, rule.is_enforced)) for rule in self._rules]
        chosen, replacing = states, [rule for rule, state in states if state and rule.replaces]
        if replacing:
            replaced = replaced_among(replacing)
            chosen = [(rule, state) for rule, state in states if rule.id not in replaced]
        if self._default and not any(state for _, state in states):
            chosen = chosen + [(rule, tested.get(rule, rule.is_enforced)) for rule in self._default]
        return [(rule, state) for rule, state in chosen if state is not None]


class Policy:
    """The compiled rules.

    Args:
        ruleset: the rules, as written.
        version: how this snapshot is called in answers and logs.
        enforcing: whether limits refuse. If not, every rule is a shadow: counted and reported where it would have
            applied. Lists hold all the same.
        last: a policy of other rules, whose parts are used for those that are the same objects in both.
    """

    __slots__ = (
        *("__weakref__", "_allow", "_deny", "_kinds", "_known", "_listed", "_names", "_overridden"),
        *("_overrides", "_steps", "_trie", "_users", "enforcing", "rules", "ruleset", "version"),
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
        rules = _prepared(ruleset, last, old)
        self.rules: Mapping[str, PreparedRule] = MappingProxyType(rules)
        """All rules by id, in the order of the ruleset, the default last."""
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
        asked = [rule.rule.when for rule in rules.values() if rule.rule.when]
        self._names = self._listed.union(*counted.values(), *asked)
        """What a rule counts by or asks for, or a list is about; where users are special, "user" as well."""
        self._overridden: BoundedCache[tuple[PreparedRule, Change], TermsByTier] = (
            BoundedCache(MOST_OVERRIDES) if last is None else last._overridden  # noqa: SLF001
        )
        """By rule and override: many users have few different ones, and most have the same when some have changed."""
        self._users = dict(ruleset.users)  # a policy stays what it is, whatever becomes of the mapping
        self._overrides: dict[str, Mapping[str, TermsByTier]] = {}
        """By user, as far as they were seen: what is different for them, by rule."""
        self._known: BoundedCache[tuple[Any, ...], tuple[_Kind, str]] = BoundedCache(MOST_ENDPOINTS)
        """The plain kinds, and the path in canonical form, by what is the same in requests of many callers."""
        self._kinds: BoundedCache[tuple[Any, ...], _Kind] = BoundedCache(MOST)
        self._steps: BoundedCache[tuple[Any, ...], Steps] = BoundedCache(MOST)

    def select(self, request: Request, now: int, *, asking: bool = True) -> Selection:
        """Return what is to be done about `request`.

        Args:
            request: who asks for what.
            now: microseconds since the epoch, for overrides that end.
            asking: whether the cost is to be taken. Not for a refund or a reset: they name the limits of a request that
                passed earlier, perhaps under higher limits, so that no cost is too large. (A store gives back no more
                than a limit has counted as used.)

        Raises:
            InvalidRequest: the request cannot be matched with rules; it must not pass.
            UnknownRule: it names a rule that does not exist or is disabled, and `unknown_rule` of the rules is "error".
            InvalidCost: the cost is not a whole number from 0 to 100 000; CostTooLarge: a limit could never admit it.
            InvalidKey: a principal is longer than 65 536 characters, or not Unicode text.
        """
        try:
            principal, attributes, cost, rule_id = request.principal, request.attributes, request.cost, request.rule_id
        except AttributeError:
            right = "a Request, such as Request({'user': '42'}, '/api/v1/orders', 'POST')"
            raise InvalidRequest(f"what is decided is {right}, not {short(request)}") from None
        key = None
        if type(principal) is dict and type(attributes) is dict and type(request.address) is str:
            key = (request.endpoint, rule_id, request.method, request.tier, len(principal), *principal, *attributes)
            known = self._known_by(key)
            if (
                known is not None
                and _are_texts(principal, attributes)
                and not (self._users and principal.get(USER, "") in self._users)
            ):
                kind, path = known
                steps = kind.steps
                if steps is not None and steps.since <= now < steps.until:
                    found: Mapping[str, str] = principal
                    if steps.needs_facts:
                        found = {**attributes, **principal, ENDPOINT: path, GLOBAL: EVERYBODY}
                    if IP in principal:
                        found = _counted(found)
                    return steps.selection(found, cost, cost if asking else 0, kind.unmatched)
        return self._selected(request, key, now, asking=asking)

    def applying(self, request: Request, facts: Mapping[str, str], now: int) -> Sequence[Applied]:
        """Return the rules that apply, in the order of the ruleset, the default last; see `facts_of`."""
        if request.rule_id != "" and self._unknown(request) is not None:
            return ()
        if request.rule_id:
            self._check_named(request.rule_id, facts)
        user = self._users.get(facts.get(USER, ""))
        return self._steps_of(self._kind_of(request, facts, user), request, facts, user, now).applying

    def request_of(self, client_id: str, rule_id: str) -> Request:
        """Return the request that asks one rule about one value of its dimension. Raises InvalidRequest."""
        check_text(client_id=client_id, rule_id=rule_id)
        rule = self.rules.get(rule_id)
        if not rule_id:  # a request that names none asks all that apply, and here none would
            raise UnknownRule(rule_id, self.rules)
        if rule is None or rule.dimension == GLOBAL:
            return Request(rule_id=rule_id)
        if rule.dimension == ENDPOINT:
            return Request(endpoint=client_id, rule_id=rule_id)
        if len(rule.dimensions) > 1:
            raise InvalidRequest(
                f"rule {rule_id!r} counts by {rule.dimension}: ask with a request that has all of them"
            )
        return Request({rule.dimension: client_id}, rule_id=rule_id)

    def tier_of(self, user: str) -> str:
        """Return the tier of a user, unless a request says otherwise; empty for none."""
        special = self._users.get(user)
        return (special.tier if special is not None else "") or self.ruleset.default_tier

    def _unknown(self, request: Request) -> Selection | None:
        """Return what applies to a request that names a rule which does not exist or is disabled: nothing.

        Raises UnknownRule if that is an error, and InvalidRequest if the rule counts by nothing that the request has.
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

    def _selected(self, request: Request, key: tuple[Any, ...] | None, now: int, *, asking: bool) -> Selection:
        """Return what is to be done about any request; its kind is remembered by the key, if there is one."""
        if request.rule_id != "":
            unknown = self._unknown(request)
            if unknown is not None:
                return unknown
        facts = facts_of(request, ignore_case=self.ruleset.ignore_case)
        user = self._users.get(facts.get(USER, "")) if self._users else None
        kind = self._kind_of(request, facts, user)
        if kind.is_listed:
            listed = self._of_listed(request, facts)
            if listed is not None:
                return listed
        if request.rule_id:
            self._check_named(request.rule_id, facts)
        if kind.is_plain and user is None and key is not None and len(request.endpoint) <= LONGEST:
            self._known.keep(key, (kind, facts[ENDPOINT]))
        steps = self._steps_of(kind, request, facts, user, now)
        return steps.selection(facts, request.cost, request.cost if asking else 0, kind.unmatched)

    def _known_by(self, key: tuple[Any, ...]) -> tuple[_Kind, str] | None:
        try:
            return self._known.get(key)
        except TypeError:  # a part of it is not even something that can be looked up
            return None

    def _check_named(self, rule_id: str, facts: Mapping[str, str]) -> None:
        """Raise InvalidRequest unless a request has all that the rule counts by which it names."""
        rule = self.rules[rule_id]
        if rule.value(facts) is None:
            raise InvalidRequest(f"rule {rule.id!r} counts by {rule.dimension}: say by which")
        if len(rule.dimensions) > 1 and ENDPOINT in rule.dimensions and not matches(rule.segments, facts[ENDPOINT]):
            raise InvalidRequest(
                f"rule {rule.id!r} counts by {rule.dimension}: say which endpoint, one of {rule.rule.endpoint}"
            )

    def _of_listed(self, request: Request, facts: Mapping[str, str]) -> Selection | None:
        """Return what is to be done about somebody who is on a list."""
        if request.rule_id and request.endpoint == "/" and ENDPOINT not in self.rules[request.rule_id].dimensions:
            facts = {name: value for name, value in facts.items() if name != ENDPOINT}  # nobody said it
        address = address_given(request)
        for verdict, name, entries in ((Verdict.DENIED, "deny", self._deny), (Verdict.ALLOWED, "allow", self._allow)):
            entry = entries.find(facts, address)
            if entry is not None:
                return Selection(verdict, reason=_on_list(name, entry, facts, address))
        return None

    def _steps_of(self, kind: _Kind, request: Request, facts: Mapping[str, str], user: User | None, now: int) -> Steps:
        """Return the steps for a request at a time, which those before it perhaps have taken."""
        outcome = kind.outcome(facts, address_given(request)) if kind.tests else ()
        given = self._overrides_of(facts[USER], user) if user is not None and user.overrides else {}
        overrides = kind.overrides(given) if given else ()
        is_usual = not outcome and not overrides
        steps = kind.steps if is_usual else self._steps.get((kind, outcome, overrides))
        if steps is None or not steps.since <= now < steps.until:
            steps = Steps(
                [
                    Applied(rule, given.get(rule.id, rule.terms).at(kind.tier, now), is_enforced and self.enforcing)
                    for rule, is_enforced in kind.applying(outcome)
                ],
                request.principal if kind.is_plain else (),
            )
            if is_usual:
                kind.steps = steps
            else:
                self._steps.keep((kind, outcome, overrides), steps)
        return steps

    def _overrides_of(self, name: str, user: User) -> Mapping[str, TermsByTier]:
        """Return what is different for a user, by rule; users who have the same override have the same terms."""
        found = self._overrides.get(name)
        if found is None:
            found = self._overrides[name] = {
                rule_id: self._terms_of(self.rules[rule_id], change) for rule_id, change in user.overrides.items()
            }
        return found

    def _terms_of(self, rule: PreparedRule, change: Change) -> TermsByTier:
        made = self._overridden.get((rule, change))
        return made or self._overridden.keep((rule, change), TermsByTier(rule.rule, rule.tiers, change))

    def _kind_of(self, request: Request, facts: Mapping[str, str], user: User | None) -> _Kind:
        """Return the kind of a request, which perhaps has been seen before."""
        principal, path = request.principal, facts[ENDPOINT]
        tier = request.tier or (user.tier if user is not None else "") or self.ruleset.default_tier
        ends = self._trie.ends(path)
        key: tuple[Any, ...] = (request.rule_id or ends, request.method, tier, len(principal), *principal)
        if request.attributes:
            key = (*key, *request.attributes)
        for end in ends:
            for name, values in end.values.items():
                value = facts.get(name)
                key = (*key, value if value in values else None)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._worked_out(request, facts, ends, tier)
            if sum(map(len, (request.method, tier, *principal, *request.attributes))) <= LONGEST:
                self._kinds.keep(key, kind)
            else:
                kind.is_plain = False
        return kind

    def _worked_out(self, request: Request, facts: Mapping[str, str], ends: Ends[PreparedRule], tier: str) -> _Kind:
        """Return what follows for a request, and for all others of its kind."""
        named = {name: principal_name(name) for name in (*request.principal, *request.attributes)}
        known = self._names | {USER} if self._users else self._names
        unmatched = tuple([name for name in request.principal if named[name] not in known])
        is_listed = not self._listed.isdisjoint({*named, *named.values(), ENDPOINT, GLOBAL})
        ordinary: list[PreparedRule] = []
        default: list[PreparedRule] = []
        if request.rule_id:
            ordinary.append(self.rules[request.rule_id])  # whatever it is for
        else:
            found: list[PreparedRule] = []
            for end in ends:
                end.collect(found, request.method.upper(), tier, facts)
            for rule in sorted(found, key=_place):
                if facts.keys() >= set(rule.dimensions):
                    (ordinary if rule.place < LAST else default).append(rule)
        return _Kind(
            ordinary,
            default,
            tier,
            is_named=request.rule_id != "",
            is_listed=is_listed,
            is_plain=not any(end.values for end in ends)
            and not any(named[name] in PRINCIPALS and named[name] != name for name in request.principal)
            and IDENTITIES.isdisjoint([named[name] for name in request.attributes]),
            unmatched=unmatched,
        )


def _follows(ruleset: Ruleset, last: Policy) -> bool:
    """Whether rules that a policy had are in the order that they had there, and others come after them."""
    places = [last.rules[rule.id].place if rule.id in last.rules else LAST for rule in ruleset.rules]
    return places == sorted(places)


def _prepared(ruleset: Ruleset, last: Policy | None, old: Mapping[str, PreparedRule]) -> dict[str, PreparedRule]:
    """Return the rules by id, those of the last policy where neither they nor what tiers change of them differ."""
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


def _are_texts(principal: Mapping[str, object], attributes: Mapping[str, object]) -> bool:
    """Whether all values are text, and no principal is empty; what is not is looked at more closely."""
    for value in principal.values():
        if type(value) is not str or not value:
            return False
    return not attributes or {*map(type, attributes.values())} == {str}


def _counted(facts: Mapping[str, str]) -> Mapping[str, str]:
    """Return facts as they are counted, one of which is an address."""
    address = counted_by(facts[IP])
    return facts if address == facts[IP] else {**facts, IP: address}


def _on_list(name: str, entry: Entry, facts: Mapping[str, str], address: str) -> str:
    value = address_of(address).text if entry.dimension == IP and address else facts[entry.dimension]
    return f"{entry.dimension} {shown(value)} is on the {name} list: {shown(entry.value)}"
