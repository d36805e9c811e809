"""Limiters of requests: their settings, and the engine or the store that decides.

`RequestLimiter` is for applications that may block, `AsyncRequestLimiter` for those in an event loop, which it never
blocks. A request is an `Exchange` (see `headgate.integrations.exchange`), whose flows they run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from headgate.clock import Clock
from headgate.core.errors import StoreError, UsageError
from headgate.core.key import NAME
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Verb
from headgate.engine import AsyncEngine, Engine
from headgate.engine.verbs import Rules
from headgate.flows import drive, drive_async
from headgate.integrations.answers import Answers
from headgate.integrations.budget import Budget, Quotas, QuotasOfKey, family_of
from headgate.integrations.exchange import DEFAULT, Exchange, Flow, T
from headgate.integrations.routes import budget_name, function_name
from headgate.policy.request import USER, InvalidRequest, Request, UnknownRule
from headgate.stores import open_resilient_async_store, open_resilient_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import MemoryStore
from headgate.waiting import Pause
from headgate.web.address import UNKNOWN, AddressReader
from headgate.web.errors import InvalidSettings
from headgate.web.headers import ResponseHeaders, Spelling, as_text
from headgate.web.identity import Identifier
from headgate.web.lines import HeaderLines

if TYPE_CHECKING:
    from headgate.sdk import AsyncClient, Client

log = logging.getLogger("headgate.integrations")
_TEST_PEER = "testclient"
"""The peer in the test clients of Starlette and Litestar."""
_TERMS = frozenset({"cost", "count_when", "refund_on_error", "shadow"})
"""Settings of the budget for all routes."""


class DeciderSettings(TypedDict, total=False):
    """The store or the engine that decides, for routes and for functions."""

    rules: Rules
    """Rules, or a file of rules, which is watched. This process evaluates them, with `store`."""
    engine: Engine | AsyncEngine | Client | AsyncClient
    """Instead: an engine, or a client of the service. The application closes it."""
    store: str | Store | AsyncStore
    """Where the state lives: "memory", each process for itself, or "redis://...", which all processes share."""
    on_store_failure: str
    """The decision while Redis is unavailable: local (the default), allow or deny."""
    nodes: int
    """How many processes share the limits, for "local"; default: as many as Redis counts."""
    clock: Clock
    """The source of time, for tests."""
    on_refused: Callable[..., Any]
    """Called with the request and the `Refusal`; a response that it returns replaces the refusal's. It is also called
    for shadow budgets: see `Refusal.is_shadow`."""
    enabled: bool
    """False disables all limits, for tests of other features."""


class LimiterSettings(DeciderSettings, total=False):
    """The settings of every integration. One of `limits`, `rules` and `engine` limits all routes."""

    limits: Quotas | QuotasOfKey | Budget | Sequence[Budget]
    """Quotas for each client, over all routes: "100/minute; 5000/day"; a function of the key; or budgets."""
    identity: AddressReader | Identifier
    """How to identify the caller; default: by the address of the peer."""
    key: Callable[..., Any]
    """See `Budget.key`; default: the user, API key or address that `identity` finds."""
    on_empty_key: str
    """What to do if `key` returns nothing: "refuse" (the default), or "address": count by the address."""
    cost: int | Callable[..., Any]
    exempt: Callable[..., Any]
    """Requests for which this is true are not limited at all, not even by their routes."""
    count_when: Callable[..., Any]
    refund_on_error: bool
    shadow: bool
    """See `Budget`; of the budget for all routes."""
    headers: ResponseHeaders | None
    """The header fields of responses; None: none."""


class LimiterBase:
    """The common part of both limiters.

    Attributes:
        enabled: see `LimiterSettings`; may be changed at any time.
        budgets: for all routes.
    """

    is_async: bool

    def __init__(self, settings: LimiterSettings, spelling: Spelling[Any] = as_text) -> None:
        unknown = set(settings) - set(LimiterSettings.__annotations__)
        if unknown:
            known = ", ".join(sorted(LimiterSettings.__annotations__))
            raise InvalidSettings(f"unknown setting {', '.join(sorted(unknown))}; the settings are: {known}")
        sources = {name: settings[name] for name in ("limits", "rules", "engine") if name in settings}
        if sources and all(value is None for value in sources.values()):  # typically an unset variable
            raise InvalidSettings(f"{' and '.join(sources)} is None, so nothing would be limited; omit it if intended")
        given: Any = {name: value for name, value in settings.items() if value is not None or name == "headers"}
        settings = given
        self._settings = settings
        self.enabled = settings.get("enabled", True)
        if not isinstance(self.enabled, bool):
            raise InvalidSettings(f"enabled must be True or False, got {short(self.enabled)}")
        self.spelling = spelling
        self.engine: Any = self._open_engine()
        """Decides by rules; None if quotas limit all routes."""
        self.has_rules = self.engine is not None
        self.store: Any = self._open_store() if self.engine is None else None
        """Decides by quotas; if rules limit all routes, it is opened for the first route that has quotas."""
        decider: Any = self.engine or self.store
        self.clock: Clock = decider.clock
        mode_of = getattr(self.engine, "mode_of", lambda _: settings.get("on_store_failure"))
        refusal_of = getattr(self.engine, "refusal_of", None)
        self.answers = Answers(settings.get("headers", ResponseHeaders()), spelling, mode_of, refusal_of)
        identity = settings.get("identity", AddressReader())
        if not isinstance(identity, AddressReader | Identifier):
            raise InvalidSettings(f"identity must be an AddressReader or an Identifier, got {short(identity)}")
        self.addresses = identity if isinstance(identity, AddressReader) else None
        self.identifier = identity if isinstance(identity, Identifier) else Identifier(identity)
        self.exempt, self.on_refused = settings.get("exempt"), settings.get("on_refused")
        self.key = settings.get("key")
        self._on_empty_key = settings.get("on_empty_key", "refuse")
        if self._on_empty_key not in {"refuse", "address"}:
            raise InvalidSettings(f"on_empty_key must be 'refuse' or 'address', got {short(self._on_empty_key)}")
        self._warned: set[str] = set()
        self.known: set[Budget] = set()
        """Budgets of routes that were validated."""
        self.routes: list[Any] = []
        """The routes of each application, as an integration has analysed them."""
        self.budgets = self.validate(*_budgets(settings))
        self.check_functions(*[each for each in (self.exempt, self.on_refused, self.key) if each is not None])

    def check(self, exchange: Exchange, budgets: Sequence[Budget], route: str = DEFAULT) -> Any:
        """Return the refusal of a request, or None: awaitable in an event loop. See `Exchange.check`."""
        return self.run(exchange.check(budgets, route))

    def run(self, flow: Flow[T]) -> Any:
        """Return the result of a flow: awaitable in an event loop."""
        raise NotImplementedError

    def validate(self, *budgets: Budget) -> tuple[Budget, ...]:
        """Return the budgets if this limiter can check them, else raise UsageError. For an application's start."""
        for budget in budgets:
            self.check_functions(*budget.functions)
            if budget.rule is not None and not self.has_rules:
                raise InvalidSettings(f"rule {budget.rule!r} needs the setting rules or engine instead of limits")
            if budget.limits is not None and self.store is None:
                if self._settings.get("engine") is not None and "store" not in self._settings:
                    raise InvalidSettings("quotas besides an engine need a separate store, such as store='memory'")
                self.store = self._open_store()
            if budget.rule:
                self._check_rule(budget.rule)
        return budgets

    def validate_once(self, *budgets: Budget) -> None:
        for budget in budgets:
            if budget not in self.known:
                self.validate(budget)
                self.known.add(budget)

    def with_own(self, own: Sequence[Budget]) -> tuple[Budget, ...]:
        """Return the budgets that apply to a route with budgets of its own."""
        return tuple(own) if any(budget.replaces for budget in own) else (*self.budgets, *own)

    def check_functions(self, *functions: Callable[..., Any]) -> None:
        """Raise InvalidSettings for an object that cannot be called, or a coroutine function that cannot be awaited."""
        for function in functions:
            if not callable(function):
                raise InvalidSettings(f"expected a function, got {short(function)}")
            if not self.is_async and inspect.iscoroutinefunction(function):
                raise InvalidSettings(f"{function!r} is a coroutine function, and this application is synchronous")

    def reset(self, key: str, name: str = DEFAULT, *, limits: Quotas | None = None) -> Any:
        """Clear the usage of a key: ``reset("ip:203.0.113.9")``. Awaitable in an event loop.

        The key is the result of a key function, or the caller: ``user:42``, ``apikey:reporting``, ``ip:203.0.113.9``.
        The name is that of a budget, or of a route, such as ``GET:/items/{item}``, whose quotas are `limits`. With
        rules, it is the id of one; default: all of them.
        """
        return self.run(self._resetting(key, name, limits))

    def close(self) -> Any:
        """Close the engines and stores that it opened; a coroutine function in an event loop."""
        return self.run(self._closing())

    def _resetting(self, key: str, name: str, limits: Quotas | None) -> Flow[None]:
        if self.has_rules and limits is None:
            dimension, _, value = key.partition(":")
            principal = {dimension: value} if value else {USER: key}
            if name == DEFAULT:
                yield self.engine.reset_all(Request(principal))
            else:
                yield self.engine.reset(Request(principal, rule_id=name))
            return
        found: list[Any] = [
            each.limits for each in self.budgets if each.name == name and each.limits and not callable(each.limits)
        ]
        if limits is not None:
            if not NAME.fullmatch(name):
                name = budget_name(name)  # it is a route
            found = [budget.limits for budget in self.validate(Budget(limits=limits, name=name))]
        if not found:
            raise UsageError(f"no budget {name!r} limits all routes: pass limits= for the budget of a route")
        plan = sum([family_of(name, quotas).plan(key) for quotas in found], ())
        yield self.store.run(Call(Verb.RESET, plan))

    def _closing(self) -> Flow[None]:
        if self.store is not None and isinstance(self._settings.get("store", ""), str):
            yield self.store.close()
        if self.has_rules and self._settings.get("engine") is None:
            yield self.engine.close()

    def counts_by_address(self, function: Callable[..., Any]) -> bool:
        """Whether a request counts by its address if the key function returned nothing. Else raises InvalidRequest."""
        if self._on_empty_key == "address":
            return True
        self._warn(f"the key function {function_name(function)} returned no key: such requests are refused")
        raise InvalidRequest("This request does not identify its caller, so it cannot be counted.")

    def key_of_address(self, peer: str | None, lines: HeaderLines = ()) -> str:
        """Return the key of a client by its address; clients without one share a key, which is logged."""
        address = self.identifier.addresses.read(peer, lines).key
        if address == UNKNOWN and peer != _TEST_PEER:
            self._warn(
                "the address of a client is not known (a Unix socket?): all such clients share one budget. Behind a "
                "proxy, set the header that contains the address: identity=AddressReader('x-forwarded-for', hops=1)"
            )
        return f"ip:{address}"

    def _warn(self, text: str) -> None:
        """Log a warning once, since clients control how often it arises."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)

    def _check_rule(self, rule_id: str) -> None:
        try:
            policy = self.engine.policy
        except StoreError:  # a client of a service that is unavailable: the first request will report it
            return
        if rule_id not in policy.rules:
            raise UnknownRule(rule_id, policy.rules)

    def _open_engine(self) -> Any:
        """Return the engine for all routes: the given one, or one for the given rules; None if quotas limit them."""
        settings = self._settings
        engine, rules = settings.get("engine"), settings.get("rules")
        if sum(each is not None for each in (engine, rules, settings.get("limits"))) > 1:
            raise InvalidSettings("set only one of limits, rules and engine: each of them limits all routes")
        if rules is not None:
            kind = AsyncEngine if self._is_store_async else Engine
            mode, nodes, clock = settings.get("on_store_failure"), settings.get("nodes"), settings.get("clock")
            store: Any = settings.get("store", "memory")
            return kind(rules, store=store, on_store_failure=mode or Mode.LOCAL, nodes=nodes, clock=clock)
        if engine is None:
            return None
        for name in ("on_store_failure", "nodes", "clock") if "store" not in settings else ("clock",):
            if name in settings:  # with a store, they are about the quotas of routes
                raise InvalidSettings(f"the given engine has its own {name}")
        if not all(hasattr(engine, verb) for verb in ("check", "refund", "reset", "clock")):
            raise InvalidSettings(f"engine must be an engine or a client of the service, got {short(engine)}")
        is_async = inspect.iscoroutinefunction(engine.check)
        if is_async and not self.is_async:
            raise InvalidSettings(f"{type(engine).__name__} is for event loops, and this application is synchronous")
        in_memory = isinstance(engine, Engine) and engine.statistics() is None
        if self.is_async and not is_async and not in_memory:
            raise InvalidSettings(f"{type(engine).__name__} would block the event loop: use its asynchronous form")
        return engine

    @property
    def _is_store_async(self) -> bool:
        """Whether the store is awaited; one in memory is not, since it never waits."""
        store = self._settings.get("store", "memory")
        return self.is_async and not (isinstance(store, MemoryStore) or str(store).startswith("memory"))

    def _open_store(self) -> Any:
        settings, engine = self._settings, self._settings.get("engine")
        mode, nodes = settings.get("on_store_failure"), settings.get("nodes")
        clock = settings.get("clock") if engine is None else engine.clock
        open_store: Any = open_resilient_async_store if self._is_store_async else open_resilient_store
        store = settings.get("store", "memory")
        return open_store(store, clock=clock, on_store_failure=mode, nodes=nodes, shared="routes")


def nothing_limited(where: str) -> InvalidSettings:
    """Return the error of an application without any limit, where a setting is probably missing."""
    sources = "limits='100/minute', rules or an engine"
    return InvalidSettings(f"{where} limits nothing: set {sources}; for tests of other features, enabled=False")


class RequestLimiter(LimiterBase):
    """Limits the requests of an application that may block."""

    is_async = False

    def run(self, flow: Flow[T]) -> T:
        return drive(flow, self._do)

    def _do(self, step: Any) -> Any:
        if isinstance(step, Pause):
            self.clock.wait(threading.Event(), step.until)
            return None
        return reject_awaitable(step)


class AsyncRequestLimiter(LimiterBase):
    """Limits the requests of an application in an event loop, which it never blocks."""

    is_async = True

    async def run(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._do)

    async def close(self) -> None:  # frameworks look at what it is
        await super().close()

    async def _do(self, step: Any) -> Any:
        if isinstance(step, Pause):
            await self.clock.wait_async(asyncio.Event(), step.until)
            return None
        return await resolve(step)


def _budgets(settings: LimiterSettings) -> Sequence[Budget]:
    limits: Any = settings.get("limits")
    terms: Any = {name: value for name, value in settings.items() if name in _TERMS}
    given = [limits] if isinstance(limits, Budget) else limits
    if isinstance(given, Sequence) and any(isinstance(each, Budget) for each in given):
        if terms or not all(isinstance(each, Budget) for each in given):
            raise InvalidSettings("do not mix budgets with quotas, or with settings such as cost: each budget has them")
        return given
    if settings.get("rules") is not None or settings.get("engine") is not None:
        return [Budget(rule="", **terms)]
    return [Budget(limits=limits, name=DEFAULT, **terms)] if limits is not None else []


def reject_awaitable(value: T) -> T:
    """Return a function's result. Raises UsageError if it is awaitable, since that would always be true."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise UsageError(f"{short(value)} is awaitable, but this application is synchronous: return the result itself")
    return value


async def resolve(value: Any) -> Any:
    """Return a result, awaited if necessary."""
    return await value if inspect.isawaitable(value) else value
