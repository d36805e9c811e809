"""``headgate serve``: the decision service, in this process or in several workers."""

from __future__ import annotations

import argparse
import os

from headgate.cli.command import Commands, add_command
from headgate.cli.serve_options import add_options, settings_of, unknown_variables
from headgate.cli.terminal import Terminal
from headgate.core.errors import UsageError, not_installed


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "serve",
        _serve,
        summary="answer checks over HTTP, gRPC and Envoy's rate limit protocol",
        more="Every option is also read from the environment: --http-port from HEADGATE_HTTP_PORT, and so on.\n\n"
        "SIGTERM and SIGINT drain: requests in progress are answered, and then it ends; a second one ends it at once.\n"
        "Files are watched: rules, certificates, caller keys, identity. SIGHUP makes it look at them at once.\n\n"
        "Exit codes: 0 it was told to end, 1 it could not start, 2 it cannot run as given.",
        examples="headgate serve\n"
        "headgate serve --rules rules.yaml --store redis://localhost:6379/0 --workers 4\n"
        "headgate serve --envoy-config ratelimit --host 0.0.0.0\n"
        "headgate serve --rules rules.yaml --tls-cert server.pem --tls-key server.key --client-ca clients.pem\n"
        "HEADGATE_RULES=rules.yaml HEADGATE_HTTP_PORT=9000 headgate serve --log-format json",
    )
    add_options(parser)
    parser.add_argument("--check", action="store_true", help="say whether it could start, and do not")


def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    settings = settings_of(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        terminal.complain(f"headgate: {warning}")
    try:
        from headgate.cli import serving  # noqa: PLC0415  what it needs is an extra, and takes time to load
    except ModuleNotFoundError as error:
        raise UsageError(not_installed(error.name, "server")) from None
    if arguments.check:
        return serving.check(settings, terminal)
    return serving.run(settings, terminal)
