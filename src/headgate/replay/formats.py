"""Parse access logs in plain text formats.

The common line has a fast path through `str.split`, at half the cost of a regular expression. Lines with anything
unusual, such as an escaped quote or a user with a space, go to the regular expression.
"""

from __future__ import annotations

import re

from headgate.replay.entry import Entry, clf_time, moment, parse_request_line, strip_port, unescape

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_COMBINED = re.compile(
    rf'(\S+) (\S+) (.*?) \[([^\]"]+)\] {_QUOTED} (\d{{3}}|-)(?: (?:\d+|-))?(?: {_QUOTED} {_QUOTED})?(?: .*)?'
)
_VHOST = re.compile(r"([^\s:\[\]]+|\[[0-9A-Fa-f:.]+\]):\d+ (?=[0-9A-Za-z:\[])")
_ALB_TYPES = frozenset({"http", "https", "h2", "grpcs", "ws", "wss"})
_ISTIO_ADDRESS = 4
"""The client's address, by its position after the last quote of an Istio line."""


def combined(line: str) -> Entry:
    """Parse a line of nginx or Apache in the format `combined` or `common`. Raises ValueError.

    Fields that a longer format appends are ignored.
    """
    try:
        head, request, size, *more = line.split('"')
        address, _, user, date, zone, _ = head.split(" ")
        method, path, protocol = request.split(" ")
        status = int(size[1:4])
    except ValueError:
        return _combined(line)
    if path[:1] != "/" or protocol[:5] != "HTTP/" or date[:1] != "[" or zone[-1:] != "]" or "\\" in line:
        return _combined(line)
    return Entry(
        clf_time(f"{date[1:]} {zone[:-1]}"),
        "" if address in {"-", "unix:"} else address,
        "" if user == "-" else user,
        method,
        path.partition("?")[0] if "?" in path else path,
        "",
        status,
        _known(more[2]) if len(more) > 2 else "",
    )


def _combined(line: str) -> Entry:
    match = _COMBINED.fullmatch(line)
    if match is None:
        raise ValueError("not a line of this format")
    address, _, user, date, request, status, _, agent = match.groups()
    method, path, host = parse_request_line(unescape(request))
    user, agent = unescape(_known(user)), unescape(_known(agent))
    return Entry(clf_time(date), strip_port(address), user, method, path, host, _status(status), agent)


def vhost_combined(line: str) -> Entry:
    """Parse a line of Apache that begins with the virtual host and its port. Raises ValueError."""
    match = _VHOST.match(line)
    if match is None:
        raise ValueError("no virtual host and port at the start")
    found = combined(line[match.end() :])
    return found._replace(host=match[1].strip("[]"))


def envoy(line: str) -> Entry:
    """Parse a line of Envoy's default format, or of Istio's. Raises ValueError.

    The client is the last address of X-Forwarded-For, which the edge Envoy has appended. Envoy does not escape quotes,
    so lines with additional quotes are rejected.
    """
    parts = line.split('"')
    if len(parts) not in {13, 15} or parts[0][:1] != "[" or parts[0][-2:] != "] ":
        raise ValueError("not a line of this format, or quotes inside a field")
    forwarded, agent, _, authority, _ = parts[-10::2]
    method, path, host = parse_request_line(parts[1])
    address = forwarded.rpartition(",")[2].strip()
    if address in {"-", ""} and len(parts) == 15:
        address = "".join(parts[-1].split(" ")[_ISTIO_ADDRESS : _ISTIO_ADDRESS + 1])
    return Entry(
        moment(parts[0][1:-2]),
        strip_port(address),
        "",
        method,
        path,
        strip_port(authority) or host,
        _status(parts[2].strip().partition(" ")[0]),
        _known(agent),
    )


def alb(line: str) -> Entry:
    """Parse a line of an AWS Application Load Balancer. Raises ValueError."""
    head, _, rest = line.partition(' "')
    parts = head.split(" ")
    if len(parts) != 12 or parts[0] not in _ALB_TYPES:
        raise ValueError("not a line of this format")
    request, agent, *_ = rest.split('" "', 1) if '" "' in rest else (rest, "")
    method, path, host = parse_request_line(request)
    address, _, _ = parts[3].rpartition(":")
    return Entry(
        moment(parts[1]),
        address.strip("[]"),
        "",
        method,
        path,
        host,
        _status(parts[8]),
        _known(agent.partition('"')[0]),
    )


def _known(text: str | None) -> str:
    return "" if text is None or text == "-" else text


def _status(text: str) -> int:
    return int(text) if text != "-" else 0
