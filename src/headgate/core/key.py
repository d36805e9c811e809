"""Keys: which state belongs to which limit of which principal. Injective and bounded.

A key has two parts. The *space* is ``name|shape``: the name of the limit (a rule's id) and what of its quota decides
the meaning of the state (algorithm and window, not the limit: changing that keeps the state). The *principal* is the
caller: its text as it is, or, if that is long, its digest, as bytes. A name cannot contain ``|`` and text is
never equal to bytes, so no choice of one part can imitate another.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING

from headgate.core.errors import InvalidKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.core.plan import Plan
    from headgate.core.quota import Quota

LITERAL = 128
"""A principal of up to this many characters is kept as it is, a longer one as its 128-bit BLAKE2b digest."""
LONGEST = 65_536
LONGEST_ONCE = 512
"""The most characters of an idempotency key."""
ONCE_US = 300_000_000
"""How long a store remembers the answer that goes with a token of `once_token`: 5 minutes, in microseconds."""
Principal = str | bytes
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
"""The form of the name of a limit."""


def checked_name(name: object) -> str:
    """Return `name` if it can be the name of a limit, such as a rule's id."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidKey(f"a name must have 1 to 64 of A-Z a-z 0-9 _ . : / -, not {name!r:.100}")
    return name


def checked_principal(principal: object) -> str:
    """Return `principal` if a limit can be kept for it.

    Any text is accepted, delimiters and control characters included; it must not be empty, not longer than `LONGEST`,
    and must be valid Unicode (no lone surrogates, as left behind by a lenient decoder).
    """
    return _checked_text("a key", "user:42", principal, LONGEST)


def space(name: str, quota: Quota) -> str:
    """Return the part of the key that all principals of a limit share; the name has been checked."""
    return f"{name}|{quota.shape}"


def bounded(principal: str) -> Principal:
    """Return `principal`, which has been checked, in at most `LITERAL` characters."""
    if len(principal) <= LITERAL:
        return principal
    return blake2b(principal.encode(), digest_size=16).digest()


def once_token(plan: Plan, cost: int, idempotency_key: object) -> bytes:
    """Return the 16 bytes under which a store remembers its answer to a request with this idempotency key.

    They depend on the limits of the plan (not on their size), the principal, the cost and the key: each part is hashed
    with its length before it. Raises InvalidKey.
    """
    parts = [f"{cost}", checked_once(idempotency_key)]
    for limit in plan:
        principal = limit.principal
        parts += [limit.space, f"#{principal.hex()}" if isinstance(principal, bytes) else f"={principal}"]
    return digest_of(parts)


def digest_of(texts: Iterable[str]) -> bytes:
    """Return a digest of these texts, in this order; lone surrogates are accepted."""
    parts = [text.encode(errors="surrogatepass") for text in texts]
    return blake2b(b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=16).digest()


def checked_once(idempotency_key: object) -> str:
    """Return an idempotency key. Raises InvalidKey unless it is text of 1 to `LONGEST_ONCE` characters."""
    return _checked_text("an idempotency key", "order-1042", idempotency_key, LONGEST_ONCE)


def _checked_text(what: str, example: str, text: object, longest: int) -> str:
    if not isinstance(text, str):
        raise InvalidKey(
            f"{what} must be text, such as {example!r}, not {type(text).__name__}: decode or format it first"
        )
    if not 0 < len(text) <= longest:
        raise InvalidKey(f"{what} must have 1 to {longest} characters, not {len(text)}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidKey(
                f"{what} must be valid Unicode text; character {error.start} is a lone surrogate"
            ) from None
    return text
