"""The page about the gateway: its file and its commands work as printed, and it names every field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.cli.__main__ import main
from headgate.config.schema import ListOf, MapOf, Record
from headgate.gateway.loading import load_gateway
from headgate.gateway.model import GATEWAY
from headgate.gateway.running import _FIXED
from headgate.gateway.scalars import OneOrMore
from tests.docs.test_blocks import ROOT, blocks_of, conversation, shell
from tests.gateway.gateways import PATIENT, Gateway, gateway, upstream
from tests.servers import free_port

PAGE = ROOT / "docs" / "gateway.md"
BLOCKS = blocks_of(PAGE)
FILE = next(block for block in BLOCKS if block.file == "gateway.yaml")


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with upstream("orders") as orders, upstream("users") as users:
        yield {"8000": free_port(), "8002": free_port(), "9001": orders.port, "9002": users.port}


@pytest.fixture(scope="module")
def running(ports: Mapping[str, int]) -> Iterator[Gateway]:
    with gateway({**yaml.safe_load(placed(FILE.text, ports)), "decisions": PATIENT, "threads": 1}) as found:
        yield found.started()


def placed(text: str, ports: Mapping[str, int]) -> str:
    for usual, ours in ports.items():
        text = re.sub(rf"(?<=[: ]){usual}\b", str(ours), text)
    return text


def test_commands_have_the_printed_output(running: Gateway, ports: Mapping[str, int], tmp_path: Path) -> None:
    assert running.port == ports["8000"]
    (block,) = [block for block in BLOCKS if block.language == "console"]
    for command, pattern in conversation(block):
        ended = shell(f"set -e\n{placed(command, ports)}", tmp_path)
        output = ended.stdout.replace("\r", "").strip()
        assert re.search(pattern.replace("\\\n", "\n"), output, re.DOTALL), f"{output}\n{ended.stderr}"


def test_every_yaml_block_is_part_of_a_valid_file(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.language == "yaml":
            data = {**yaml.safe_load(FILE.text), **yaml.safe_load(block.text)}
            if "decisions" in data:
                data = {name: value for name, value in data.items() if name not in {"rules", "identity"}}
            (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(data))
            assert load_gateway(tmp_path / "gateway.yaml").routes


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the installation, and the one that runs above."""
    block, consumers = [block for block in BLOCKS if block.language == "sh"]
    first, *commands, last = [line.partition("#")[0].split() for line in block.text.splitlines()]
    assert (first[0], last) == ("pip", ["headgate", "gateway", "gateway.yaml"])
    monkeypatch.chdir(tmp_path)
    commands += [line.split() for line in consumers.text.splitlines()]
    assert [main(words[1:]) for words in commands] == [0] * 5


def test_the_page_names_every_field_and_those_that_need_a_restart() -> None:
    words = set(re.findall(r"\w+", PAGE.read_text()))
    assert names(GATEWAY) - words == set()
    assert {part for name in _FIXED for part in name.split(".")} - words == set()


def names(form: Any) -> set[str]:
    """Return the names of all fields of a form, including nested ones."""
    if isinstance(form, Record):
        return {*form.fields, *(name for field in form.fields.values() for name in names(field.form))}
    return names(form.of) if isinstance(form, ListOf | MapOf | OneOrMore) else set()
