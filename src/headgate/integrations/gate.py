"""The gate of an application: its settings, and whoever decides on its requests.

A `Gate` is for applications that may block, an `AsyncGate` for those in an event loop, which it never blocks. A request
passes as a `Visit` (see `headgate.integrations.visit`), whose flows the gate runs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypedDict

from headgate.clock import Clock
from headgate.core.errors import StoreError, UsageError
from headgate.core.key import NAME
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.engine import AsyncEngine, Engine, Ruling
from headgate.engine.verbs import Rules
from headgate.flows import drive, drive_async
from headgate.integrations.answers import Answers, Refusal
from headgate.integrations.budgets import (
    AsyncCounter,
    Budget,
    Counter,
    QuotaQuestion,
    Quotas,
    QuotasOfKey,
    name_of,
    name_of_function,
)
from headgate.integrations.visit import DEFAULT, UNDECIDED, UNREADABLE, Asked, EmptyKey, Flow, T, Visit
from headgate.policy.request import USER, Request, UnknownRule
from headgate.stores import open_resilient_async_store, open_resilient_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import MemoryStore
from headgate.web.address import UNKNOWN, AddressReader
from headgate.web.errors import InvalidSettings
from headgate.web.headers import ResponseHeaders, Spelling, as_text
from headgate.web.identity import Identifier
from headgate.web.lines import HeaderLines

log = logging.getLogger("headgate.integrations")
KEPT_PEERS = 4096
"""Addresses of peers of which the key is kept."""
_TEST_PEER = "testclient"
"""The peer that the test clients of Starlette and Litestar name, which have no address."""
_TERMS = frozenset({"cost", "count_when", "refund_on_error", "shadow"})
"""Settings that are about the budget of all routes."""


class Engines(Protocol):
    """An `Engine`, an `AsyncEngine`, or a client of the service (`headgate.sdk`), which have the same verbs."""

    clock: Clock

    def check(self, request: Request, /) -> Any: ...

    def refund(self, request: Ruling, /) -> Any: ...

    def reset(self, request: Request, /) -> Any: ...

    def reset_all(self, request: Request, /) -> Any: ...

    def close(self) -> Any: ...


class GateSettings(TypedDict, total=False):
    """What every integration may be told. One of `limits`, `rules` and `engine` says what is limited for all routes."""

    limits: Quotas | QuotasOfKey | Budget | Sequence[Budget]
    """Quotas for each client, over all routes: "100/minute; 5000/day"; a function of the key; or budgets."""
    rules: Rules
    """Instead: a file of rules, which is watched, or rules. They decide in this process, with `store`."""
    engine: Engines
    """Instead: an engine, or a client of the service. It is yours to close."""
    store: str | Store | AsyncStore
    """Where the state lives: "memory", each process for itself, or "redis://...", which all processes share."""
    on_store_failure: str
    """What to answer while Redis is away: local (the default), allow or deny."""
    nodes: int
    """How many processes share the limits, for "local"; default: as many as Redis counts."""
    clock: Clock
    """Where time comes from, for tests."""
    identity: AddressReader | Identifier
    """How to find out who asks; by default, the address of the peer."""
    key: Callable[..., Any]
    """Who is counted, see `Budget.key`; by default the user, API key or address that `identity` finds."""
    on_empty_key: str
    """What to do if `key` returns nothing: "refuse" (the default), or "address": count by the address."""
    cost: int | Callable[..., Any]
    exempt: Callable[..., Any]
    """Requests for which this is true are not limited at all, by their routes neither."""
    count_when: Callable[..., Any]
    refund_on_error: bool
    shadow: bool
    """See `Budget`; for what is limited for all routes."""
    headers: ResponseHeaders | None
    """Which header fields answers have; None: none."""
    on_refused: Callable[..., Any]
    """Called with the request and the `Refusal`. Where it returns something, that is answered instead, in the
    framework's own terms. Refusals of shadow budgets are told as well: see `Refusal.is_shadow`."""
    enabled: bool
    """Whether anything is limited at all; False for tests of other things."""


class Gatekeeping:
    """What both gates have: settings, and flows.

    Attributes:
        enabled: see `GateSettings`; may be changed at any time.
        budgets: those that are for all routes.
    """

    is_async: bool

    def __init__(self, settings: GateSettings, spelling: Spelling[Any] = as_text) -> None:
        unknown = set(settings) - set(GateSettings.__annotations__)
        if unknown:
            known = ", ".join(sorted(GateSettings.__annotations__))
            raise InvalidSettings(f"unknown setting {', '.join(sorted(unknown))}; there are: {known}")
        sources = {name: settings[name] for name in ("limits", "rules", "engine") if name in settings}
        if sources and all(value is None for value in sources.values()):  # a variable that is not set, as a rule
            raise InvalidSettings(
                f"{' and '.join(sources)} is None, so nothing would be limited: leave it out for that"
            )
        given: Any = {name: value for name, value in settings.items() if value is not None or name == "headers"}
        settings = given
        self.enabled = settings.get("enabled", True)
        if not isinstance(self.enabled, bool):
            raise InvalidSettings(f"enabled is True or False, not {short(self.enabled)}")
        self._settings = settings
        self.spelling = spelling
        self.decider: Any = self._decider(settings)
        self.by_rules = not isinstance(self.decider, Counter | AsyncCounter)
        self.counter: Any = None if self.by_rules else self.decider
        """Decides on quotas; where rules decide on all routes, it is made for the first route that has quotas."""
        self.waits = self._waits()
        """Whether decisions have to be waited for."""
        self.clock: Clock = self.decider.clock
        self.answers = Answers(
            settings.get("headers", ResponseHeaders()),
            spelling,
            *(getattr(self.decider, name, None) for name in ("mode_of", "refusal_of")),
        )
        identity = settings.get("identity", AddressReader())
        if not isinstance(identity, AddressReader | Identifier):
            raise InvalidSettings(f"identity is an AddressReader or an Identifier, not {short(identity)}")
        self.addresses = identity if isinstance(identity, AddressReader) else None
        self.identifier = identity if isinstance(identity, Identifier) else Identifier(identity)
        self.exempt, self.on_refused = settings.get("exempt"), settings.get("on_refused")
        self.key = settings.get("key")
        self.is_plain = self.exempt is None and self.key is None
        """Whether no function of the application has a say in what all requests are asked."""
        self._on_empty_key = settings.get("on_empty_key", "refuse")
        if self._on_empty_key not in {"refuse", "address"}:
            raise InvalidSettings(f"on_empty_key is 'refuse' or 'address', not {short(self._on_empty_key)}")
        self._warned: set[str] = set()
        self.known: set[Budget] = set()
        """Budgets of routes that were checked."""
        self.routes: list[Any] = []
        """What an integration knows about the routes of each application that has this gate."""
        self.key_of_peer = lru_cache(KEPT_PEERS)(self.key_of_address)
        """Finds the key where nothing but the peer counts."""
        self.budgets = self.checked(*_budgets(settings))
        self.check_functions(*[each for each in (self.exempt, self.on_refused, self.key) if each is not None])

    def checked(self, *budgets: Budget) -> tuple[Budget, ...]:
        """Return budgets, if this gate can decide on them. Raises UsageError: call it when an application starts."""
        for budget in budgets:
            self.check_functions(*budget.functions)
            if budget.rule is not None and not self.by_rules:
                raise InvalidSettings(f"rule {budget.rule!r} needs an engine or rules, and this gate has quotas")
            if budget.limits is not None and self.counter is None:
                if self._settings.get("engine") is not None and "store" not in self._settings:
                    raise InvalidSettings("quotas beside an engine need a store of their own, such as store='memory'")
                self.counter = self._made(None, self._settings)
                self.waits = self._waits()
            if budget.rule:
                self._check_rule(budget.rule)
        return budgets

    def decider_of(self, budget: Budget) -> Any:
        """Return what decides on a budget."""
        return self.decider if budget.rule is not None else self.counter

    @property
    def is_private(self) -> bool:
        """Whether nothing but this gate counts in its store."""
        store = self._settings.get("store", "memory")
        return isinstance(store, str) and store.startswith("memory")

    def _waits(self) -> bool:
        return self.is_async and not all(
            isinstance(each, Counter | Engine | None) for each in (self.decider, self.counter)
        )

    def know(self, *budgets: Budget) -> None:
        """Check budgets of a route when they are seen first; see `checked`."""
        for budget in budgets:
            if budget not in self.known:
                self.checked(budget)
                self.known.add(budget)

    def with_own(self, own: Sequence[Budget]) -> tuple[Budget, ...]:
        """Return what limits a route that has budgets of its own, besides those for all routes or instead."""
        return tuple(own) if any(budget.replaces for budget in own) else (*self.budgets, *own)

    def check_functions(self, *functions: Callable[..., Any]) -> None:
        """Refuse coroutine functions where nobody could wait for them."""
        for function in functions:
            if not callable(function):
                raise InvalidSettings(f"a function is needed, not {short(function)}")
            if not self.is_async and inspect.iscoroutinefunction(function):
                raise InvalidSettings(f"{function!r} is a coroutine function, and this application is synchronous")

    def forget(self, key: str, name: str, limits: Quotas | None) -> Any:
        """Begin a reset; returns what may have to be waited for."""
        if self.by_rules and limits is None:
            dimension, _, value = key.partition(":")
            principal = {dimension: value} if value else {USER: key}
            if name == DEFAULT:
                return self.decider.reset_all(Request(principal))
            return self.decider.reset(Request(principal, rule_id=name))
        found = [
            budget.families(name)[1] for budget in self.budgets if budget.name == name and not callable(budget.limits)
        ]
        if limits is not None:
            if not NAME.fullmatch(name):
                name = name_of(name)  # a route, as it is written
            (budget,) = self.checked(Budget(limits=limits, name=name))
            found = [budget.families(name)[1]]
        if not found:
            raise UsageError(f"there is no budget {name!r} for all routes: say which limits it has")
        plan = sum([family.plan(key) for family in found], ())
        return self.counter.reset(QuotaQuestion((name,) * len(plan), 1, joined=plan))

    def empty_key(self, budget: Budget) -> bool:
        """Whether somebody without a key is counted by address. Raises EmptyKey if not."""
        if self._on_empty_key == "address":
            return True
        function = budget.key or self.key
        assert function is not None  # noqa: S101  whoever asks has got nothing of it
        self._warn(f"the key function {name_of_function(function)} returned nothing: such requests are refused")
        raise EmptyKey("This request does not say whom it is from, so it cannot be counted.")

    def key_of_address(self, peer: str | None, lines: HeaderLines = ()) -> str:
        """Return the key of a client by its address; all without one share it, which is logged."""
        address = self.identifier.addresses.read(peer, lines).key
        if address == UNKNOWN and peer != _TEST_PEER:
            self._warn(
                "the address of a client is not known (a Unix socket?): all such clients share one budget. Behind a "
                "proxy, say where it writes the address: identity=AddressReader('x-forwarded-for', hops=1)"
            )
        return f"ip:{address}"

    def _warn(self, text: str) -> None:
        """Log a warning once: clients decide how often there is a reason."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)

    def _opened(self) -> list[Any]:
        """Return what the gate opened, and closes."""
        store, engine = self._settings.get("store", ""), self._settings.get("engine")
        counters = [self.counter] if self.counter is not None and isinstance(store, str) else []
        return [*counters, *([self.decider] if self.by_rules and engine is None else [])]

    def _check_rule(self, rule_id: str) -> None:
        try:
            policy = self.decider.policy
        except StoreError:  # a client of a service that is away: the first request tells
            return
        if rule_id not in policy.rules:
            raise UnknownRule(rule_id, policy.rules)

    def _decider(self, settings: GateSettings) -> Any:
        """Return who decides: an engine that was given or made here, or a counter."""
        engine, rules = settings.get("engine"), settings.get("rules")
        if sum(each is not None for each in (engine, rules, settings.get("limits"))) > 1:
            raise InvalidSettings("give one of limits, rules and engine: it says what is limited for all routes")
        if engine is None:
            return self._made(rules, settings)
        for name in ("on_store_failure", "nodes", "clock") if "store" not in settings else ("clock",):
            if name in settings:  # a store is for the quotas of routes
                raise InvalidSettings(f"an engine that is given has its own {name}")
        if not all(hasattr(engine, verb) for verb in ("check", "refund", "reset", "clock")):
            raise InvalidSettings(f"engine is an engine or a client of the service, not {short(engine)}")
        waits = inspect.iscoroutinefunction(engine.check)
        if waits and not self.is_async:
            raise InvalidSettings(f"{type(engine).__name__} is for event loops, and this application has none")
        in_memory = isinstance(engine, Engine) and engine.statistics() is None
        if self.is_async and not waits and not in_memory:
            raise InvalidSettings(f"{type(engine).__name__} would block the event loop: give its asynchronous twin")
        return engine

    def _made(self, rules: Rules | None, settings: GateSettings) -> Any:
        store: Any = settings.get("store", "memory")
        in_memory = isinstance(store, MemoryStore) or str(store).startswith("memory")
        engine, mode, nodes = settings.get("engine"), settings.get("on_store_failure"), settings.get("nodes")
        clock = settings.get("clock") if engine is None else engine.clock
        if rules is not None:
            made = AsyncEngine if self.is_async and not in_memory else Engine
            return made(rules, store=store, on_store_failure=mode or Mode.LOCAL, nodes=nodes, clock=clock)
        if self.is_async and not in_memory:
            far = open_resilient_async_store(store, clock=clock, on_store_failure=mode, nodes=nodes, shared="routes")
            return AsyncCounter(far, mode)
        near = open_resilient_store(store, clock=clock, on_store_failure=mode, nodes=nodes, shared="routes")
        return Counter(near, mode)


def nothing_limited(where: str) -> InvalidSettings:
    """Return the error of an application that nothing limits, which is a mistake: a setting that is missing."""
    sources = "limits='100/minute', rules or an engine"
    return InvalidSettings(f"{where} limits nothing: give {sources}; for tests of other things, enabled=False")


class Gate(Gatekeeping):
    """The gate of an application that may block."""

    is_async = False

    def run(self, flow: Flow[T]) -> T:
        """Return what a flow of a visit returns."""
        return drive(flow, at_once)

    def enter(self, visit: Visit, budgets: Sequence[Budget], route: str = DEFAULT) -> Refusal | None:
        """Let a request take what budgets of a route cost; returns the refusal, if it is one."""
        refusal = visit.at_once(budgets, route)
        return self.run(visit.enter(budgets, route)) if refusal is UNDECIDED else refusal

    def reset(self, key: str, name: str = DEFAULT, *, limits: Quotas | None = None) -> None:
        """Forget what a key used of a budget: ``reset("ip:203.0.113.9")``.

        A key is what a function returned, or ``user:42``, ``apikey:reporting``, ``ip:203.0.113.9`` for whom `identity`
        found. The budget of a route has its `limits` besides, and is called ``GET:/items/{item}`` where it has no name.
        By rules, `name` is the id of one; by default, all.
        """
        self.forget(key, name, limits)

    def close(self) -> None:
        """Release what the gate opened."""
        for decider in self._opened():
            decider.close()


class AsyncGate(Gatekeeping):
    """The gate of an application in an event loop, which it never blocks."""

    is_async = True

    async def run(self, flow: Flow[T]) -> T:
        """Return what a flow of a visit returns."""
        return await drive_async(flow, _awaited)

    async def enter(self, visit: Visit, budgets: Sequence[Budget], route: str = DEFAULT) -> Refusal | None:
        """See `Gate.enter`."""
        refusal: Refusal | None = visit.at_once(budgets, route)
        if refusal is not UNDECIDED:
            return refusal
        if self.waits:
            try:
                question = visit.plain(budgets, route)
                if question is not None:
                    answer = await _awaited(self.decider_of(budgets[0]).check(question))
                    visit.refused = visit.answered(Asked(budgets[0], question, answer))
                    if visit.refused is None:
                        return None
            except UNREADABLE as error:
                visit.refused = self.answers.unreadable(error)
        return await self.run(visit.enter(budgets, route))

    async def reset(self, key: str, name: str = DEFAULT, *, limits: Quotas | None = None) -> None:
        """See `Gate.reset`."""
        await _awaited(self.forget(key, name, limits))

    async def close(self) -> None:
        """See `Gate.close`."""
        for decider in self._opened():
            await _awaited(decider.close())


def _budgets(settings: GateSettings) -> Sequence[Budget]:
    """Return the budgets that are for all routes."""
    limits: Any = settings.get("limits")
    terms: Any = {name: value for name, value in settings.items() if name in _TERMS}
    given = [limits] if isinstance(limits, Budget) else limits
    if isinstance(given, Sequence) and any(isinstance(each, Budget) for each in given):
        if terms or not all(isinstance(each, Budget) for each in given):
            raise InvalidSettings("give budgets alone: each says for itself what it costs, and when")
        return given
    if settings.get("rules") is not None or settings.get("engine") is not None:
        return [Budget(rule="", **terms)]
    return [Budget(limits=limits, name=DEFAULT, **terms)] if limits is not None else []


def at_once(value: T) -> T:
    """Return what a function of the application returned. Raises UsageError for what would have to be waited for."""
    if inspect.isawaitable(value):  # which is true, whatever it comes to: nobody would be limited
        if inspect.iscoroutine(value):
            value.close()
        raise UsageError(f"{short(value)} has to be awaited, and this application is synchronous: return what it is")
    return value


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
