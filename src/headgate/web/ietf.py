"""The IETF's header fields ``RateLimit`` and ``RateLimit-Policy``, by version of the draft.

Since the draft still changes, only this module knows its parameters. ``draft-11`` (May 2026) has::

    RateLimit-Policy: "burst";q=20;w=1, "daily";q=5000;w=86400
    RateLimit: "burst";r=19;t=1, "daily";r=4999;t=18

* ``q`` is the capacity of a limit and ``w`` the seconds in which all of it becomes available: the window or, for a
  bucket with a burst, longer in proportion. So ``r`` never exceeds ``q``, and q / w is the sustainable rate. A window
  below a second cannot be written, and is omitted.
* ``r`` is the remaining quota, and ``t`` the seconds for which it should last: until everything is available or, for
  the limit that refuses, until it admits the request. So ``t`` of a refusing limit is never later than Retry-After.
* ``pk`` distinguishes partitions of a policy, such as users, without identifying them: see `partition_key`.
"""

from __future__ import annotations

import hmac
import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Protocol

from headgate.core.decision import Decision
from headgate.core.numbers import short
from headgate.core.quota import SECOND, Quota
from headgate.web.errors import InvalidHeader

Headers = list[tuple[str, str]]
LARGEST = 999_999_999_999_999
"""The largest integer of a structured field (RFC 9651)."""
POLICY, STATE = "RateLimit-Policy", "RateLimit"
"""The names of the fields."""
_PRINTABLE = re.compile(r"[ -~]{1,256}")


class Encoder(Protocol):
    """Writes the fields of one version of the draft."""

    def __call__(self, limits: Sequence[Decision], names: Sequence[str], partitions: Sequence[bytes] = ()) -> Headers:
        """Return the fields of limits, given the names of their policies, and their partition keys."""
        ...


def draft_11(limits: Sequence[Decision], names: Sequence[str], partitions: Sequence[bytes] = ()) -> Headers:
    """Write the fields of draft-ietf-httpapi-ratelimit-headers-11."""
    policies, states = [], []
    for decision, name, partition in zip(limits, names, partitions or [b""] * len(limits), strict=True):
        key = f";pk={sf_bytes(partition)}" if partition else ""
        policies.append(policy_item(name, decision.quota) + key)
        states.append(state_item(sf_string(name), decision) + key)
    return [(POLICY, ", ".join(policies)), (STATE, ", ".join(states))]


def nothing(limits: Sequence[Decision], names: Sequence[str], partitions: Sequence[bytes] = ()) -> Headers:  # noqa: ARG001  of `Encoder`
    """Write no fields."""
    return []


VERSIONS: Mapping[str, Encoder] = {"draft-11": draft_11, "off": nothing}
"""Encoders by their names in settings."""


def policy_item(name: str, quota: Quota) -> str:
    """Return the constant item of RateLimit-Policy for one limit."""
    return f"{sf_string(name)};q={min(quota.capacity, LARGEST)}{_window(quota)}"


def state_item(quoted: str, decision: Decision) -> str:
    """Return the item of RateLimit for one limit, whose name `sf_string` has quoted."""
    until_us = decision.reset_after_us if decision.allowed or not decision.retry_after_us else decision.retry_after_us
    remaining = decision.remaining
    if remaining > LARGEST:  # noqa: PLR1730  min() is slower
        remaining = LARGEST
    return f"{quoted};r={remaining};t={-(-until_us // SECOND)}"


def sf_string(text: object) -> str:
    """Return a String of RFC 9651 with its quotes. Raises InvalidHeader unless it is printable ASCII."""
    if not isinstance(text, str) or not _PRINTABLE.fullmatch(text):
        raise InvalidHeader(f"the name of a policy must have 1 to 256 printable ASCII characters, got {short(text)}")
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def sf_bytes(value: bytes) -> str:
    """Return a Byte Sequence of RFC 9651."""
    return f":{b2a_base64(value, newline=False).decode()}:"


def partition_key(secret: bytes, principal: str) -> bytes:
    """Return 12 bytes that represent a principal without identifying it, for `partitions`."""
    return hmac.digest(secret, principal.encode(), "sha256")[:12]


def _window(quota: Quota) -> str:
    if not quota.limit:  # a one-off allowance is not renewed
        return ""
    whole_us = quota.window_us * quota.capacity // quota.limit if quota.burst else quota.window_us
    return f";w={min(-(-whole_us // SECOND), LARGEST)}" if whole_us >= SECOND else ""
