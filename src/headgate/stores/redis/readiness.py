"""What a store asks to find out whether it could decide: the real script, on limits that nobody else uses.

What it asks about has two limits, since the script looks at all its permissions before it writes in several places.
Beside this, the server is vetted: see `headgate.stores.redis.wire.vetting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from headgate.core.errors import StoreUnavailable
from headgate.core.plan import Limit, Plan
from headgate.core.quota import Quota
from headgate.stores.redis.discovery import SLOTS, SlotMap, slot_of
from headgate.stores.redis.scripts import CHECK, Question, key_of, question

_SPACE = "!ready"
_QUOTAS = (Quota(1_000_000, 1_000_000), Quota(1_000_000, 2_000_000))


def probe(principal: str = "headgate") -> Question:
    """Return a question that reads and writes as any check does."""
    plan: Plan = tuple([Limit(f"{_SPACE}{number}", principal, quota) for number, quota in enumerate(_QUOTAS)])
    return question(CHECK, plan, 1)


def probes(slots: SlotMap) -> Iterator[Question]:
    """Return a question for each server of a cluster, whose map was just asked for. Raises StoreUnavailable."""
    if slots.trouble:
        raise StoreUnavailable(slots.trouble)
    missing = [slot for slot in range(SLOTS) if slots.owner(slot) is None]
    if missing:
        raise StoreUnavailable(f"no server of the cluster has slot {missing[0]} and {len(missing) - 1} others")
    unseen = {slots.owner(slot) for slot in range(SLOTS)}
    for number in count():
        if not unseen:
            return
        principal = f"headgate-{number}"
        owner = slots.owner(slot_of(key_of(_SPACE, principal)))
        if owner in unseen:
            unseen.discard(owner)
            yield probe(principal)
