"""Every block of code in README and docs runs as it is printed, each in a folder of its own, with real servers.

A block says its language. What is *not* run is in `NOT_RUN`, each with a reason; ``text`` is what programs print, and
grammar.

A folder has what a reader finds in docs/examples, and files that the page printed before: a YAML block whose first line
is a comment with a name, such as ``# rules.yaml``, is that file. Nothing else is prepared but certificates.

Blocks name the usual places of servers. Others may use those here, so these, and nothing else, are replaced by the
places of servers that the test has started: see `placed`. A command that would not end, `headgate serve`, is stopped
when it serves: see `SHELL`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.process.certificates import Authority
from tests.server.process.service import CHECK, SECONDS, Service, asked, service
from tests.servers import RedisServer, until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/microservices/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ADMIN_PAGE = ROOT / "docs" / "admin.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
NAMED = re.compile(r"# ([\w./-]+\.yaml)\n")
NOT_RUN = {
    "make run": "the two commands of the README are tried on a fresh machine, by `make bare`; the second runs this",
    "make example": "tests/gateway/test_example.py starts what it starts, and tries what that prints",
    ".venv/bin/pytest": "it would run tests in a test, and benchmarks, which are run in tests/benchmarks",
    "pip install": "it would change the environment that the tests run in",
    "go install": "it takes Go, and the network; the report that it made is in docs/conformance",
    "headgate enforcement": "it would find the services of others; tests/server/process/test_enforcement.py runs it",
    "headgate refusals": "it asks an admin plane; tests/server/process/test_refusals.py and the admin page run it",
    "headgate users": "it changes rules over an admin plane; test_night.py and test_admin_page.py run it",
    "grpcurl": "not a package of Debian; tests/server/api/test_docs.py makes the same calls",
    "ghz": "not a package of Debian; what it calls is called in tests/server/rpc, by reflection as well",
}
"""Shell blocks that begin with these, and why they are not run here."""
PARTS = {
    "envoy.md": "what is shown is part of files that tests run with a real Envoy, in tests/server/rls",
    "migrating-ratelimit.md": "as of envoy.md",
}
"""Pages whose YAML is not ours to validate: it has to be in a file of docs/examples, line by line."""
RULES = {
    "api.md": ["--rules", "api.yaml"],
    "sdk.md": ["--rules", "api.yaml"],
    "envoy.md": ["--rules", "envoy/rules.yaml"],
}
"""Options of the service that a page speaks of, where it is not the usual ``--rules rules.yaml``."""
SHELL = """
headgate() {
  if [ "$1" != serve ] || [ "$2" = --check ]; then command headgate "$@"; return; fi
  command headgate "$@" > served &
  until grep -q 'try it' served || ! kill -0 $!; do sleep 0.05; done
  kill -INT $!
  wait $!
}
redis-cli() { command redis-cli -p "$REDIS_PORT" "$@"; }
"""
"""What runs before a block of shell: a service that serves is told to end, and must end well."""


PATIENT = "timeout=30&connect_timeout=30"
"""Options of Redis where a busy machine must not matter."""
PATIENTLY = """
from runpy import run_path
from headgate.sdk import settings

settings.TIMEOUT = 30
run_path("block.py", run_name="__main__")
"""
"""Runs a block of Python whose clients of the service are as patient."""


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that a block of YAML is, by its first line."""
        named = NAMED.match(self.text)
        return named[1] if named else ""

    @property
    def asks_admin_plane(self) -> bool:
        """Whether it is one of those that `test_admin_page` runs."""
        return self.page == ADMIN_PAGE or ":8082/" in self.text

    @property
    def asks_database(self) -> bool:
        """Whether it is one of those that `test_deploy_page` runs."""
        return self.language == "sh" and "5432" in self.text

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2]) for found in BLOCK.finditer(text)]


BLOCKS = [block for page in PAGES if page.name != "gateway.md" for block in blocks_of(page)]
"""Those of all pages but one, which `test_gateway_page` runs."""


def of(*languages: str) -> pytest.MarkDecorator:
    """All blocks in these languages, one for each test."""
    found = [block for block in BLOCKS if block.language in languages]
    if languages != ("yaml",):
        found = [block for block in found if not (block.asks_admin_plane or block.asks_database)]
    return pytest.mark.parametrize("block", found, ids=str)


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Service]]:
    """The service of each page, once it was asked for."""
    with ExitStack() as stack:

        class Services(dict[str, Service]):
            def __missing__(self, page: str) -> Service:
                options = RULES.get(page, ["--rules", "rules.yaml"])
                paths = [str(EXAMPLES / option) if "." in option else option for option in options]
                self[page] = stack.enter_context(service(*paths)).started()
                return self[page]

        yield Services()


def folder_of(block: Block, folder: Path) -> Path:
    """Prepare a folder for a block: the examples, and what the page printed before."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    for earlier in blocks_of(block.page):
        if earlier.line <= block.line and earlier.file:
            path = folder / earlier.file
            if path.parent != folder:  # a folder that the page makes is its own
                shutil.rmtree(path.parent, ignore_errors=True)
                path.parent.mkdir(parents=True)
            path.write_text(earlier.text)
    return folder


def placed(text: str, redis: RedisServer | None, found: Service | None) -> str:
    """The text with the places of our servers: the usual ports may be somebody else's."""
    places = {"6379": redis and redis.port, "8080": found and found.http_port, "8081": found and found.grpc_port}
    for usual, ours in places.items():
        text = re.sub(rf"(?<=\b(?:localhost|127\.0\.0\.1):){usual}\b", str(ours or usual), text) if ours else text
    return text


def test_every_block_says_its_language() -> None:
    known = {"python", "sh", "console", "yaml", "json", "http", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []
    assert len([block for block in BLOCKS if block.language != "text"]) > 80


@of("python")
def test_python_runs_as_printed_and_prints_what_its_comments_claim(
    block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]
) -> None:
    redis.ask("FLUSHALL")
    folder = folder_of(block, tmp_path)
    asked = services[block.page.name] if "headgate.sdk" in block.text else None
    text = re.sub(rf":{redis.port}(/0)?\b", rf"\g<0>?{PATIENT}", placed(block.text, redis, asked))
    (folder / "block.py").write_text(text)
    command = [sys.executable, "-W", "error", "-c", PATIENTLY]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    assert ended.stdout.splitlines() == CLAIM.findall(block.text)


async def test_the_application_in_fastapi_answers_429_with_headers_that_clients_understand() -> None:
    (block,) = [block for block in BLOCKS if block.page.name == "start.md" and "FastAPI()" in block.text]
    names: dict[str, Any] = {}
    exec(block.text, names)  # noqa: S102  it is our own page

    async def asked(path: str) -> tuple[int, dict[bytes, bytes], bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await names["app"]({**scope, "client": ("192.0.2.7", 1)}, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body

    status, headers, body = await asked("/exports/ada")
    assert (status, headers[b"x-ratelimit-remaining"], body) == (200, b"0", b'"the data of ada"')
    for _ in range(2):
        status, headers, body = await asked("/exports/ada")
        assert (status, headers[b"x-ratelimit-limit"]) == (429, b"1")
        assert 3500 < int(headers[b"retry-after"]) <= 3600
        assert headers[b"content-type"] == b"application/problem+json"
        assert json.loads(body)["title"] == "Quota Exceeded"
    while (answer := await asked("/nothing"))[0] == 404:
        pass
    assert answer[0] == 429
    assert answer[1][b"x-ratelimit-limit"] == b"100"


def run(block: Block, script: str, folder: Path, redis: RedisServer, found: Service | None) -> str:
    """Run a script in the shell, where it finds our commands and, if it asks for one, a service; return its output."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "HEADGATE_HTTP_PORT": "0",
        "HEADGATE_GRPC_PORT": "0",
        "HEADGATE_ADMIN_PORT": "0",
        "REDIS_PORT": str(redis.port),
        **({"HEADGATE_URL": f"http://127.0.0.1:{found.http_port}"} if found else {}),
    }
    ended = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", SHELL + placed(script, redis, found)],
        cwd=folder_of(block, folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@of("sh")
def test_shell_runs_as_printed(block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]) -> None:
    if block.text.startswith(tuple(NOT_RUN)):
        return
    if "--tls-cert" in block.text:
        authority = Authority(tmp_path, "clients")
        for file, name in zip(authority.signed("server"), ("server.pem", "server.key"), strict=True):
            file.rename(tmp_path / name)
    asks = re.search(r"headgate (?!serve|rules|explain)|curl|wrk|h2load", block.text)
    run(block, block.text, tmp_path, redis, services[block.page.name] if asks else None)


def test_what_is_not_run_is_there_and_has_a_reason() -> None:
    shell = [block.text for block in BLOCKS if block.language == "sh"]
    for start, reason in NOT_RUN.items():
        assert len(reason) > 20
        assert any(text.startswith(start) for text in shell), start


@of("console")
def test_a_conversation_with_the_shell_goes_as_printed(
    block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]
) -> None:
    """An ellipsis stands for anything."""
    for said in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, expected = re.split(r"(?<!\\)\n", said, maxsplit=1)
        output = run(block, command, tmp_path, redis, services[block.page.name])
        pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
        assert re.match(pattern, output, re.DOTALL), output


@of("yaml")
def test_yaml_is_accepted_by_what_it_is_for(block: Block, tmp_path: Path, redis: RedisServer) -> None:
    if block.page.name in PARTS:
        lines = [line.strip() for line in block.text.strip().splitlines()]
        files = [[line.strip() for line in path.read_text().splitlines()] for path in EXAMPLES.rglob("*.yaml")]
        assert any(lines == file[at : at + len(lines)] for file in files for at in range(len(file)))
        return
    data, file = yaml.safe_load(block.text), block.file or "block.yaml"
    (tmp_path / "block.yaml").write_text(block.text)
    if "scrape_configs" in data:  # for Prometheus, which is not here
        assert data["scrape_configs"][0].keys() == {"job_name", "static_configs"}
    elif {"addresses", "api_keys", "tokens"} & data.keys():
        where = "identity/block.yaml"  # beside the keys that it names
        run(block, f"mv block.yaml {where}; headgate serve --check --identity {where}", tmp_path, redis, None)
    elif "deprecations" in data:
        run(block, "headgate serve --check --deprecations block.yaml", tmp_path, redis, None)
    else:
        said = run(
            block, f"headgate rules validate {Path(file).parent if 'domain' in data else file}", tmp_path, redis, None
        )
        assert "warning" not in said


@of("json")
def test_json_is_what_a_service_answers_or_logs(block: Block) -> None:
    """The members are those that are shown, and their kinds."""
    shown = json.loads(block.text)
    with service("--rules", str(EXAMPLES / "rules.yaml"), "--log-format", "json") as found:
        until(lambda: '"message":"serving"' in found.complained, "it serves", SECONDS)
        connection = HTTPConnection("127.0.0.1", logged(found)[0]["http"], timeout=SECONDS)
        of_free = {"principal": {"user": "bob"}, "endpoint": "/api/v1/orders", "method": "POST", "tier": "free"}
        for _ in range(200):
            asked(connection, "ada")
        for _ in range(20):
            connection.request("POST", CHECK, json.dumps(of_free), {"content-type": "application/json"})
            connection.getresponse().read()
        if "hot" in shown:
            connection.request("GET", "/hotkeys")
            answer = json.loads(connection.getresponse().read())
        else:
            until(lambda: denials(found), "a refusal is logged", SECONDS)
            answer = denials(found)[0]
        connection.close()
    assert kinds(answer) == kinds(shown)


def logged(found: Service) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found.complained.splitlines() if line.endswith("}")]


def denials(found: Service) -> list[dict[str, Any]]:
    return [line for line in logged(found) if line["logger"] == "headgate.denials"]


def kinds(data: object) -> object:
    """What JSON looks like: its members, and the types of their values."""
    if isinstance(data, dict):
        return {name: kinds(value) for name, value in data.items()}
    if isinstance(data, list):
        return [kinds(value) for value in data[:1]]
    return float if isinstance(data, int | float) and not isinstance(data, bool) else type(data)


TIMES = re.compile(r'("(?:reset_at|retry_after|reset_after|reset_after_us|taken_at_us)": |Retry in |;t=)[\d.]+')
CHARGE = re.compile(r'(?<="charge": ")[\w-]+|(?<="charge":")[\w-]+')


def timeless(text: str) -> Any:
    """An answer in JSON, without what depends on the time of the day."""
    return json.loads(CHARGE.sub("", TIMES.sub(r"\g<1>0", json.dumps(json.loads(text)))))


def test_every_http_request_gets_the_answer_that_follows_it() -> None:
    """From a real service; tests/server/api/test_docs.py compares the times as well, with a clock that stands still."""
    conversation = [block for block in BLOCKS if block.language == "http"]
    while True:
        with service("--rules", str(EXAMPLES / "api.yaml")) as found:
            found.started()
            minute = time.time() // 60
            answers = answered(conversation, found)
            if time.time() // 60 == minute:  # otherwise a window ended in the middle
                break
    for block, (status, body) in answers:
        head, _, expected = block.text.partition("\n\n")
        assert status == int(head.split("\n")[0]), f"{block}: {body}"
        assert timeless(body) == timeless(expected), block


def answered(conversation: list[Block], found: Service) -> list[tuple[Block, tuple[int, str]]]:
    """Send all requests, with the charges that came for those shown; return each answer shown, and what came."""
    answers, last, charges = [], (0, ""), dict[str, str]()
    for block in conversation:
        head, _, body = block.text.partition("\n\n")
        first, *lines = head.splitlines()
        if first.isdigit():
            answers.append((block, last))
            charges.update(zip(CHARGE.findall(body), CHARGE.findall(last[1]), strict=True))
            continue
        method, path = first.split()
        body = CHARGE.sub(lambda shown: charges.get(shown[0], shown[0]), body)
        connection = HTTPConnection("127.0.0.1", found.http_port, timeout=SECONDS)
        connection.request(method, path, body or None, dict(line.split(": ", 1) for line in lines))
        response = connection.getresponse()
        last = response.status, response.read().decode()
        connection.close()
    return answers
