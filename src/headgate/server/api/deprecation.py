"""Versions of the API that will go: said in each of their answers, as RFC 9745 and RFC 8594 have it.

::

    Deprecation: @1798761600
    Sunset: Thu, 01 Jul 2027 00:00:00 GMT
    Link: <https://example.com/v2>; rel="deprecation"; type="text/html"
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime

from headgate.server.wire.messages import Fields, Handler, HttpRequest, HttpResponse
from headgate.web.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class Deprecation:
    """When a version goes. Raises InvalidSettings."""

    since: datetime
    """From when on it should not be used for anything new."""
    sunset: datetime
    """When it stops to answer; not before `since`."""
    link: str = ""
    """Where to read about it."""

    def __post_init__(self) -> None:
        if self.since.tzinfo is None or self.sunset.tzinfo is None:
            raise InvalidSettings("the times of a deprecation have a time zone: datetime(2027, 1, 1, tzinfo=UTC)")
        if self.sunset < self.since:
            raise InvalidSettings("a version is deprecated first, and goes then: the sunset is before the deprecation")
        if not self.link.isascii() or not self.link.isprintable() or set(self.link) & set('<>" '):
            raise InvalidSettings("the link of a deprecation is an address, without spaces, quotation marks and <>")

    def fields(self) -> Fields:
        """Return the header fields that announce it."""
        announced: Fields = (
            (b"deprecation", b"@%d" % int(self.since.timestamp())),
            (b"sunset", format_datetime(self.sunset.astimezone(UTC), usegmt=True).encode()),
        )
        if self.link:
            announced = (*announced, (b"link", f'<{self.link}>; rel="deprecation"; type="text/html"'.encode()))
        return announced


def announcing(handler: Handler, deprecation: Deprecation) -> Handler:
    """Return a handler that answers as `handler` does, and announces that it will go."""
    fields = deprecation.fields()

    async def handle(request: HttpRequest) -> HttpResponse:
        response = await handler(request)
        return HttpResponse(response.status, response.body, (*response.headers, *fields))

    return handle
