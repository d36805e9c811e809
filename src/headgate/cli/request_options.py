"""The options that say who asks for what, as ``explain`` and ``check`` have them."""

from __future__ import annotations

import argparse

from headgate.core.errors import UsageError

_PRINCIPALS = {"user": "user", "ip": "address", "apikey": "name of the API key"}


def add_principal_options(parser: argparse.ArgumentParser, about: str = "who asks") -> None:
    """Add the options that name somebody; `about` says what for."""
    for name, noun in _PRINCIPALS.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"{about}: the {noun}")
    repeated = f"{about}: anything else that rules count by; may be repeated"
    parser.add_argument("--attribute", metavar="NAME=VALUE", action="append", default=[], help=repeated)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who asks, and how."""
    add_principal_options(parser)
    parser.add_argument("--method", default="GET", help="the HTTP method; default: GET")
    parser.add_argument("--tier", default="", help="the tier; default: that of the user")
    parser.add_argument("--cost", type=int, default=1, help="what the request takes; default: 1")


def principal_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return who asks."""
    return {name: getattr(arguments, name) for name in _PRINCIPALS if getattr(arguments, name) is not None}


def attributes_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the attributes; UsageError if one has no name."""
    return dict(named(text, "--attribute", "region=eu") for text in arguments.attribute)


def named(text: str, option: str, example: str) -> tuple[str, str]:
    """Return the name and the value that an option has, as in the example. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} takes NAME=VALUE, such as {example}, not {text!r}")
    return name, value
