"""Peeks and denials that need not go to the store."""

from __future__ import annotations

from headgate import Limiter
from headgate.stores import open_store
from headgate.stores.cached import CachedStore

store = CachedStore(open_store("redis://localhost:6379/0"), peeks=0.05, denials=True)
limiter = Limiter("1/hour", store=store, name="cached", on_store_failure="local")
print(limiter.check("user:42").allowed, limiter.check("user:42").allowed)  # True False
print(limiter.check("user:42").allowed, store.statistics().denial_hits)  # False 1
limiter.close()
