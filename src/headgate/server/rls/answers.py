"""What Envoy is answered, as bytes: the parts that both policies, rules and trees, have in common.

An answer is made of a decision that stands for the whole request: its header fields, the problem document of a denial,
and metadata. A refusal that is due to the store, under the mode ``deny``, is over the limit as well: with an error
Envoy would let the request pass, unless it is told otherwise. Only the document says whose fault it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.core.decision import Decision
from headgate.core.plan import combine
from headgate.policy.envoy.answering import Code
from headgate.server.rls import encoding
from headgate.web.headers import MOST_SHOWN, ResponseHeaders
from headgate.web.problem import CONTENT_TYPE, Problem, of_status, quota_exceeded, reduced_capacity

TOO_MANY_REQUESTS = 429
_CONTENT_TYPE = encoding.header("content-type", CONTENT_TYPE)
_NO_STORE = encoding.header("Cache-Control", "no-store")


class Options(msgspec.Struct, frozen=True):
    """What is told besides the decision itself."""

    headers: ResponseHeaders | None = ResponseHeaders()
    """Which header fields a response gets; None: none. Those that Envoy makes itself are its own business."""
    body: bool = True
    """Whether a denial has a problem document."""
    metadata: bool = True
    """Whether there is dynamic metadata, for access logs and other filters."""


class Answers:
    """Writes answers.

    Args:
        options: what is told.
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def plain(self, statuses: bytes, fields: Mapping[str, Any]) -> bytes:
        """Return the answer to what passes without a limit."""
        return encoding.OK + statuses + self.metadata(fields)

    def decided(
        self,
        code: Code,
        statuses: bytes,
        decision: Decision,
        names: Sequence[str],
        *,
        fields: Mapping[str, Any],
        now: int,
        is_ours: bool = False,
    ) -> bytes:
        """Return the answer to what limits decided.

        Args:
            code: the overall code.
            statuses: all of them, encoded.
            decision: of all limits together.
            names: of their policies, in the order of ``decision.limits``.
            fields: of the metadata.
            now: microseconds since the epoch.
            is_ours: whether a refusal is our own fault.
        """
        if len(names) > MOST_SHOWN:  # header fields have an end
            decision, names = msgspec.structs.replace(decision, parts=(), index=0), (names[decision.index],)
        headers = self.options.headers
        told = encoding.headers(headers.of(decision, names, now=now)) if headers is not None else b""
        if code is Code.OK:
            return encoding.OK + statuses + told + self.metadata(fields)
        problem = reduced_capacity(decision, names) if is_ours else quota_exceeded(decision, names)
        return self._refused(statuses, told, problem, fields)

    def refused(self, statuses: bytes, detail: str, fields: Mapping[str, Any]) -> bytes:
        """Return the refusal of what no limit was asked about."""
        return self._refused(statuses, _NO_STORE, of_status(TOO_MANY_REQUESTS, detail), fields)

    def metadata(self, fields: Mapping[str, Any]) -> bytes:
        """Return the dynamic metadata, if any is wanted."""
        return encoding.dynamic_metadata(fields) if self.options.metadata else b""

    def _refused(self, statuses: bytes, headers: bytes, problem: Problem, fields: Mapping[str, Any]) -> bytes:
        body = _CONTENT_TYPE + encoding.raw_body(problem.encode()) if self.options.body else b""
        return encoding.OVER_LIMIT + statuses + headers + body + self.metadata(fields)


def joint(decisions: Sequence[Decision]) -> Decision:
    """Return what single limits say together."""
    return combine(decisions)
