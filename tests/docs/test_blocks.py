"""Every block of code in README and docs runs as printed, each in a new folder, with real servers.

A block has a language; ``text`` is output or grammar. `NOT_RUN` lists the blocks that are not run, with the reasons.

A folder has the files of docs/examples, and those that the page printed before: a YAML block whose first line is a
comment with a name, such as ``# rules.yaml``, is that file. Nothing else is prepared but certificates.

Blocks use the default ports of servers, which may be in use here: only these are replaced by those of the test's
servers (`placed`). ``headgate serve`` is stopped once it serves (`SHELL`).
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
from tests.server.process.service import CHECK, SECONDS, Service, sent_check, service
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
    "make run": "`make bare` runs the commands of the README on a fresh machine, including this one",
    "make example": "tests/gateway/test_example.py starts the same, and runs the printed commands",
    ".venv/bin/pytest": "it would run tests in a test, and benchmarks, which tests/benchmarks runs",
    "pip install": "it would change the environment that the tests run in",
    "go install": "it requires Go and the network; its report is in docs/conformance",
    "headgate enforcement": "it would find other services; tests/server/process/test_enforcement.py runs it",
    "headgate refusals": "it requires an admin plane; tests/server/process/test_usage.py and the admin page run it",
    "headgate users": "it requires an admin plane; test_night.py and test_admin_page.py run it",
    "grpcurl": "not a package of Debian; tests/server/api/test_docs.py makes the same calls",
    "ghz": "not a package of Debian; tests/server/rpc makes the same calls, also by reflection",
}
"""Beginnings of shell blocks that are not run here, and the reasons."""
PARTS = {
    "envoy.md": "its files run with a real Envoy in tests/server/rls",
    "migrating-ratelimit.md": "as for envoy.md",
}
"""Pages whose YAML is for Envoy: it must be in a file of docs/examples, line by line."""
RULES = {
    "api.md": ["--rules", "api.yaml"],
    "sdk.md": ["--rules", "api.yaml"],
    "envoy.md": ["--rules", "envoy/rules.yaml"],
}
"""Options of the service on a page, if not ``--rules rules.yaml``."""
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
"""Runs before a block of shell: a service is stopped once it serves, and must end with success."""


PATIENT = "timeout=30&connect_timeout=30"
"""Timeouts of Redis for a busy machine."""
PATIENTLY = """
from runpy import run_path
from headgate.sdk import settings

settings.TIMEOUT = 30
run_path("block.py", run_name="__main__")
"""
"""Runs a block of Python with the same timeout of the service's clients."""


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """The name in the first line of YAML."""
        named = NAMED.match(self.text)
        return named[1] if named else ""

    @property
    def needs_admin_plane(self) -> bool:
        """Whether `test_admin_page` runs it."""
        return self.page == ADMIN_PAGE or ":8082/" in self.text

    @property
    def needs_database(self) -> bool:
        """Whether `test_deploy_page` runs it."""
        return self.language == "sh" and "5432" in self.text

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2]) for found in BLOCK.finditer(text)]


BLOCKS = [block for page in PAGES if page.name != "gateway.md" for block in blocks_of(page)]
"""Blocks of all pages except gateway.md, which `test_gateway_page` runs."""


def of(*languages: str) -> pytest.MarkDecorator:
    """Parametrise a test with all blocks in these languages."""
    found = [block for block in BLOCKS if block.language in languages]
    if languages != ("yaml",):
        found = [block for block in found if not (block.needs_admin_plane or block.needs_database)]
    return pytest.mark.parametrize("block", found, ids=str)


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Service]]:
    """The service of each page, started on first use."""
    with ExitStack() as stack:

        class Services(dict[str, Service]):
            def __missing__(self, page: str) -> Service:
                options = RULES.get(page, ["--rules", "rules.yaml"])
                paths = [str(EXAMPLES / option) if "." in option else option for option in options]
                self[page] = stack.enter_context(service(*paths)).started()
                return self[page]

        yield Services()


def folder_of(block: Block, folder: Path) -> Path:
    """Prepare a folder for a block: the examples, and earlier files of the page."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    for earlier in blocks_of(block.page):
        if earlier.line <= block.line and earlier.file:
            path = folder / earlier.file
            if path.parent != folder:  # replace a folder of the examples
                shutil.rmtree(path.parent, ignore_errors=True)
                path.parent.mkdir(parents=True)
            path.write_text(earlier.text)
    return folder


def placed(text: str, redis: RedisServer | None, found: Service | None) -> str:
    """Return the text with the ports of the test's servers."""
    places = {"6379": redis and redis.port, "8080": found and found.http_port, "8081": found and found.grpc_port}
    for usual, ours in places.items():
        text = re.sub(rf"(?<=\b(?:localhost|127\.0\.0\.1):){usual}\b", str(ours or usual), text) if ours else text
    return text


def test_every_block_has_a_known_language() -> None:
    known = {"python", "sh", "console", "yaml", "json", "http", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []
    assert len([block for block in BLOCKS if block.language != "text"]) > 80


@of("python")
def test_python_prints_what_its_comments_claim(
    block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]
) -> None:
    redis.ask("FLUSHALL")
    folder = folder_of(block, tmp_path)
    found = services[block.page.name] if "headgate.sdk" in block.text else None
    text = re.sub(rf":{redis.port}(/0)?\b", rf"\g<0>?{PATIENT}", placed(block.text, redis, found))
    (folder / "block.py").write_text(text)
    command = [sys.executable, "-W", "error", "-c", PATIENTLY]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    assert ended.stdout.splitlines() == CLAIM.findall(block.text)


def run(block: Block, script: str, folder: Path, redis: RedisServer, found: Service | None) -> str:
    """Run a shell script with our commands and, if given, a service; return its output."""
    environment = {f"HEADGATE_{name}_PORT": "0" for name in ("HTTP", "GRPC", "ADMIN")} | {"REDIS_PORT": str(redis.port)}
    environment |= {"HEADGATE_URL": f"http://127.0.0.1:{found.http_port}"} if found else {}
    ended = shell(f"set -e\n{SHELL}{placed(script, redis, found)}", folder_of(block, folder), **environment)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script, which finds our commands."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    command: list[str] = ["/bin/bash", "-uo", "pipefail", "-c", script]
    pipes: Any = {"capture_output": True, "text": True, "timeout": 2 * SECONDS}
    return subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path, **environment}, check=False, **pipes)


def conversation(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with a pattern of its output; an ellipsis matches anything."""
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, expected = re.split(r"(?<!\\)\n", part, maxsplit=1)
        found.append((command, ".*".join([re.escape(each) for each in expected.strip().split("...")])))
    return found


@of("sh")
def test_shell_succeeds(block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]) -> None:
    if block.text.startswith(tuple(NOT_RUN)):
        return
    if "--tls-cert" in block.text:
        authority = Authority(tmp_path, "clients")
        for file, name in zip(authority.signed("server"), ("server.pem", "server.key"), strict=True):
            file.rename(tmp_path / name)
    needs_service = re.search(r"headgate (?!serve|rules|explain)|curl|wrk|h2load", block.text)
    run(block, block.text, tmp_path, redis, services[block.page.name] if needs_service else None)


def test_blocks_that_are_not_run_exist_and_have_a_reason() -> None:
    shell = [block.text for block in BLOCKS if block.language == "sh"]
    for start, reason in NOT_RUN.items():
        assert len(reason) > 20
        assert any(text.startswith(start) for text in shell), start


@of("console")
def test_commands_have_the_printed_output(
    block: Block, tmp_path: Path, redis: RedisServer, services: dict[str, Service]
) -> None:
    for command, pattern in conversation(block):
        output = run(block, command, tmp_path, redis, services[block.page.name])
        assert re.match(pattern, output, re.DOTALL), output


@of("yaml")
def test_yaml_is_valid(block: Block, tmp_path: Path, redis: RedisServer) -> None:
    if block.page.name in PARTS:
        lines = [line.strip() for line in block.text.strip().splitlines()]
        files = [[line.strip() for line in path.read_text().splitlines()] for path in EXAMPLES.rglob("*.yaml")]
        assert any(lines == file[at : at + len(lines)] for file in files for at in range(len(file)))
        return
    data, file = yaml.safe_load(block.text), block.file or "block.yaml"
    (tmp_path / "block.yaml").write_text(block.text)
    if "scrape_configs" in data:  # for Prometheus
        assert data["scrape_configs"][0].keys() == {"job_name", "static_configs"}
    elif {"addresses", "api_keys", "tokens"} & data.keys():
        where = "identity/block.yaml"  # beside its keys
        run(block, f"mv block.yaml {where}; headgate serve --check --identity {where}", tmp_path, redis, None)
    elif "deprecations" in data:
        run(block, "headgate serve --check --deprecations block.yaml", tmp_path, redis, None)
    else:
        output = run(
            block, f"headgate rules validate {Path(file).parent if 'domain' in data else file}", tmp_path, redis, None
        )
        assert "warning" not in output


@of("json")
def test_json_has_the_members_that_a_service_responds_or_logs(block: Block) -> None:
    shown = json.loads(block.text)
    with service("--rules", str(EXAMPLES / "rules.yaml"), "--log-format", "json") as found:
        until(lambda: '"message":"serving"' in found.complained, "it serves", SECONDS)
        connection = HTTPConnection("127.0.0.1", logged(found)[0]["http"], timeout=SECONDS)
        of_free = {"principal": {"user": "bob"}, "endpoint": "/api/v1/orders", "method": "POST", "tier": "free"}
        for _ in range(200):
            sent_check(connection, "ada")
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
    """Return the members of JSON and the types of their values."""
    if isinstance(data, dict):
        return {name: kinds(value) for name, value in data.items()}
    if isinstance(data, list):
        return [kinds(value) for value in data[:1]]
    return float if isinstance(data, int | float) and not isinstance(data, bool) else type(data)


TIMES = re.compile(r'("(?:reset_at|retry_after|reset_after|reset_after_us|taken_at_us)": |Retry in |;t=)[\d.]+')
CHARGE = re.compile(r'(?<="charge": ")[\w-]+|(?<="charge":")[\w-]+')


def timeless(text: str) -> Any:
    """Return a response in JSON without times."""
    return json.loads(CHARGE.sub("", TIMES.sub(r"\g<1>0", json.dumps(json.loads(text)))))


def test_every_http_request_gets_the_printed_response() -> None:
    """From a real service; tests/server/api/test_docs.py compares the times too, with a manual clock."""
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
    """Send all requests, with the actual charges instead of the printed ones; return each response by its block."""
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
