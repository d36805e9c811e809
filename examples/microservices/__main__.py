"""A shop of three services behind `headgate gateway`, all started by one command, which says what to try.

python examples/microservices [--ports GATEWAY ORDERS USERS SEARCH] [--store redis://HOST:6379/0]
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import jwt
import yaml
from services import SERVICES, serving

HERE = Path(__file__).parent
PORTS = [8000, 9001, 9002, 9003]
HOURS = 12
"""How long the token is good for."""
GUIDE = """\
The gateway is at {url}; limits are counted in {store}. In another terminal:

  TOKEN={token}

Anybody may search, by address: 30 rows a minute; a search costs the number of rows that it finds. Each of these finds
5 rows: 200 six times, then 429. (The rows are counted a moment after the response.)
  curl -i '{url}/search?q=tea'
  for i in $(seq 8); do {status} '{url}/search?q=tea'; sleep 0.2; done; echo

Orders need a user: without one, or with an invalid token, 401.
  curl -i {url}/orders/7
  curl -i -H "Authorization: Bearer ${{TOKEN}}x" {url}/orders/7

Bob has a token, and 5 orders a minute: 200 with x-ratelimit-remaining: 4, then four more, then 429.
  curl -i -H "Authorization: Bearer $TOKEN" {url}/orders/7
  for i in $(seq 6); do {status} -H "Authorization: Bearer $TOKEN" {url}/orders/7; done; echo

Ada has an API key and the tier pro, so 20 orders a minute: 200 with x-ratelimit-remaining: 19, then 19 more, then 429.
  curl -i -H 'X-Api-Key: {ada}' {url}/orders/7
  for i in $(seq 21); do {status} -H 'X-Api-Key: {ada}' {url}/orders/7; done; echo

A nightly job has an API key without a user: it may read users, 8 times a minute, and gets 401 for orders.
  curl -i -H 'X-Api-Key: {nightly}' {url}/users/bob
  for i in $(seq 9); do {status} -H 'X-Api-Key: {nightly}' {url}/users/bob; done; echo
  curl -i -H 'X-Api-Key: {nightly}' {url}/orders/7

Change a number in {rules}, and try again. Ctrl-C ends everything.
A line for each request follows, with the decision (outcome) and its rule.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python examples/microservices", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--ports",
        nargs=4,
        type=port,
        default=PORTS,
        metavar=("GATEWAY", "ORDERS", "USERS", "SEARCH"),
        help=f"default: {' '.join(map(str, PORTS))}",
    )
    parser.add_argument(
        "--store",
        default=os.environ.get("HEADGATE_STORE") or "memory",
        help="where limits are counted, such as redis://HOST:6379/0; default: HEADGATE_STORE, or memory",
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        try:
            for number, name in zip(options.ports, ("gateway", *SERVICES), strict=True):
                if name == "gateway":
                    socket.create_server(("127.0.0.1", number)).close()
                else:
                    stack.enter_context(serving(name, number))
        except OSError as error:
            parser.exit(1, f"port {number}, for {name}: {os.strerror(error.errno or 0)}; --ports takes others\n")
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="headgate-example-")))
        return run(folder, options.ports, options.store)


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)


def run(folder: Path, ports: list[int], store: str) -> int:
    """Run the gateway until a signal ends it; returns an exit code."""
    secret = secrets.token_urlsafe(32)
    (folder / "secret").write_text(secret)
    file = folder / "gateway.yaml"
    file.write_text(gateway_file(ports))
    command = [sys.executable, "-m", "headgate.cli", "gateway", str(file), "--log-level", "warning"]
    gateway: subprocess.Popen[str] | None = None
    told_to_end = False

    def end(*_: object) -> None:
        nonlocal told_to_end
        told_to_end = True
        if gateway:
            gateway.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    # In a process group of its own: Ctrl-C would else reach it twice, and the second one ends it at once.
    environment = {**os.environ, "HEADGATE_STORE": store}
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0, env=environment)
    if told_to_end:  # while it was being started
        gateway.terminate()
    with gateway:
        try:
            for line in gateway.stdout or ():  # until the last process of the gateway has closed it
                if line.startswith("try it"):
                    print(guide(ports[0], store, token(secret)), flush=True)
                elif line.startswith("{"):
                    print(line, end="", flush=True)
        except OSError:  # the output is closed
            end()
            raise
    return 0 if told_to_end else gateway.returncode


def gateway_file(ports: list[int]) -> str:
    """Return gateway.yaml with other ports, and with rules.yaml where it is, so that both can be changed."""
    file = yaml.safe_load((HERE / "gateway.yaml").read_text())
    file["listeners"][0]["port"] = ports[0]
    for name, number in zip(SERVICES, ports[1:], strict=True):
        file["services"][name]["endpoints"] = [f"127.0.0.1:{number}"]
    file["rules"] = str((HERE / file["rules"]).resolve())
    return yaml.safe_dump(file)


def token(secret: str) -> str:
    """Return the token of Bob, as an identity provider would give it to him."""
    claims = {"iss": "https://id.example.com", "aud": "shop", "sub": "bob", "exp": int(time.time()) + HOURS * 3600}
    return jwt.encode(claims, secret, "HS256")


def guide(number: int, store: str, of_bob: str) -> str:
    return GUIDE.format(
        url=f"http://127.0.0.1:{number}",
        store="memory" if store == "memory" else "Redis",
        status="curl -so /dev/null -w '%{http_code} '",
        token=of_bob,
        ada="demo-key-of-ada-0123456789",
        nightly="demo-key-of-nightly-0123456789",
        rules=os.path.relpath(HERE / "rules.yaml"),
    )


if __name__ == "__main__":
    sys.exit(main())
