"""The options that say which service is asked, and as whom."""

from __future__ import annotations

import argparse
import os
import ssl

from headgate.core.errors import UsageError
from headgate.load_generator.targets import Target, client_tls

DEFAULT_URL = "http://127.0.0.1:8080"
_FILES = {
    "ca": "trust the authorities in this file (PEM) rather than the system's",
    "cert": "the client certificate (PEM), where the service wants one",
    "key": "its private key (PEM), if it is in a file of its own",
}


def url() -> str:
    """Return where the service is by default."""
    return os.environ.get("HEADGATE_URL") or DEFAULT_URL


def add_service_options(parser: argparse.ArgumentParser, *, timeout: str) -> None:
    """Add the options; `timeout` says what it is for."""
    parser.add_argument(
        "--caller-key",
        metavar="KEY",
        default=os.environ.get("HEADGATE_CALLER_KEY") or None,
        help="the key, where the service wants one; better as HEADGATE_CALLER_KEY",
    )
    for name, about in _FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=about)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help=timeout)


def tls_of(arguments: argparse.Namespace, target: Target) -> ssl.SSLContext | None:
    """Return how to speak TLS with the service; None if it is not spoken."""
    if target.tls:
        return client_tls(arguments.ca, arguments.cert, arguments.key)
    given = [f"--{name}" for name in _FILES if getattr(arguments, name) is not None]
    if given:
        secure = "grpcs" if target.grpc else "https"
        raise UsageError(f"{given[0]} is for TLS: the address should be {secure}://{target.place}")
    return None
