"""The admin plane from the command line: what a service starts with, and what operators do with one that runs."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from headgate.admin.tables import epoch_us
from headgate.cli.__main__ import main
from headgate.config.times import moment_text
from headgate.server.configuration import EXAMPLE
from tests.server.process.service import SECONDS, Service
from tests.servers import free_port, until

CHECK = ("serve", "--check", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
ANY_RULES = {"HEADGATE_DATABASE": "", "HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": ""}


def program(folder: Path, before: str = "pass") -> tuple[str, str]:
    """What Python runs: the command in a folder, as if it was typed there."""
    return "-c", (
        f"import os, sys; os.chdir({str(folder)!r}); {before}; "
        "from headgate.cli.__main__ import main; raise SystemExit(main())"
    )


class EmbeddedService(Service):
    """A service in a folder, which was given neither rules nor a database."""

    def __init__(self, folder: Path, logs: Path, *options: str) -> None:
        logs.mkdir()
        data = ("--data-dir", str(logs.parent / "data"))
        super().__init__(logs, *data, *options, environment=ANY_RULES, program=program(folder))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port(r'admin +http://[^ ]+:([0-9]+)')}"

    @property
    def key(self) -> str:
        """The first key, if it was shown."""
        found = re.search(r"only once:\n +(\S+)\n", self.said)
        return found[1] if found else ""


class Operator:
    """Types commands for a service."""

    def __init__(self, url: str, key: str) -> None:
        self._environment = {**os.environ, "HEADGATE_ADMIN_URL": url, "HEADGATE_ADMIN_KEY": key}

    def run(self, *words: str, code: int = 0) -> str:
        """Return what a command says, and complains."""
        command = [sys.executable, "-m", "headgate.cli", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self._environment, check=False, timeout=SECONDS, input=""
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def agree(self, *words: str, meanwhile: Callable[[], object], code: int = 0) -> str:
        """Say yes to what a command asks, once something else has happened; returns what it complains."""
        here, there = pty.openpty()  # people are asked at a terminal
        command = [sys.executable, "-m", "headgate.cli", *words]
        asked, end = subprocess.PIPE, self._environment
        with subprocess.Popen(command, stdin=there, stdout=asked, stderr=asked, env=end, text=True) as running:
            os.close(there)
            assert running.stdout is not None
            said = ""
            while not said.endswith("[y/N]"):
                letter = running.stdout.read(1)
                assert letter, running.communicate()
                said += letter
            meanwhile()
            os.write(here, b"y\n")
            complained = running.communicate(timeout=SECONDS)[1]
        os.close(here)
        assert running.returncode == code, complained
        return complained


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedService, Path]]:
    base = tmp_path_factory.mktemp("embedded")
    folder = base / "folder"
    folder.mkdir()
    service = EmbeddedService(folder, base / "logs")
    try:
        yield service.started(), folder
    finally:
        service.stop()


@pytest.fixture(scope="module")
def operator(embedded: tuple[EmbeddedService, Path]) -> Operator:
    return Operator(embedded[0].url, embedded[0].key)


def test_an_empty_folder_gets_a_database_with_the_example_and_a_key_that_is_shown(
    embedded: tuple[EmbeddedService, Path],
) -> None:
    service, folder = embedded
    assert (folder / "headgate.db").exists()
    assert service.key
    assert "rules  2, from sqlite:///" in service.said
    assert service.check("u1")["allowed"]
    assert service.key not in service.complained
    stored = sqlite3.connect(folder / "headgate.db").execute("SELECT * FROM api_keys").fetchall()
    assert service.key not in str(stored)


def test_operators_look_at_rules_and_change_them(
    embedded: tuple[EmbeddedService, Path], operator: Operator, tmp_path: Path
) -> None:
    service, _ = embedded
    assert "orders-user" in operator.run("rules", "get")
    rules = tmp_path / "rules.yaml"
    rules.write_text(EXAMPLE.read_text().replace("limit: 5", "limit: 6"))
    assert "orders-user" in operator.run("rules", "apply", str(rules), "--dry-run")
    assert service.check("u2")["limits"][0]["limit"] == 5
    operator.run("rules", "apply", str(rules), "--reason", "more", "--yes")
    until(lambda: service.check("u3")["limits"][0]["limit"] == 6, "it is in force", SECONDS)
    operator.run("rules", "rollback", "orders-user", "1")
    until(lambda: service.check("u4")["limits"][0]["limit"] == 5, "it is in force", SECONDS)
    assert "orders-user" in operator.run("audit", "list")
    operator.run("audit", "verify")


def test_what_is_confirmed_is_what_was_shown(operator: Operator, tmp_path: Path) -> None:
    """A rule that another makes while somebody is asked is not deleted with those that were to be deleted."""
    whole, rules = tmp_path / "whole.yaml", tmp_path / "rules.yaml"
    whole.write_text(operator.run("rules", "get"))
    rules.write_text("version: 1\nrules:\n  - {id: mine, limit: 1, window: 1s}\n")
    another = "version: 1\nrules:\n  - {id: another, limit: 1, window: 1s}\n"
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(another)
    told = operator.agree(
        *("rules", "apply", str(rules)),
        meanwhile=lambda: operator.run("rules", "apply", str(theirs), "--yes"),
        code=2,
    )
    assert "by now" in told
    assert "another" in operator.run("rules", "list")
    operator.agree("rules", "apply", str(rules), meanwhile=lambda: None)
    assert "another" not in operator.run("rules", "list")
    operator.run("rules", "apply", str(whole), "--yes")


def test_a_file_that_was_just_got_differs_in_nothing(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(operator.run("rules", "get"))
    assert operator.run("rules", "diff", str(file)) == "no difference\n"
    assert operator.run("rules", "apply", str(file), "--dry-run").startswith("0 changes")
    operator.run("users", "override", "kept", "all-ip", "--limit", "5", "--until", "2036-01-01T00:00:00Z")
    assert operator.run("rules", "diff", str(file)) == "no difference\n"
    file.write_text(f"{file.read_text()}\nusers: {{}}\n")
    assert operator.run("rules", "diff", str(file)) == "no difference\n", "what has an end is not for files"
    ended = ("rules", "apply", str(file), "--replace-users")
    assert "would delete 1 user, 1 override\n1 change," in operator.run(*ended, "--dry-run")
    assert "deleted 1 user, 1 override\n1 change," in operator.run(*ended, "--yes")


def test_overrides_that_a_file_takes_from_users_are_counted_and_asked_about(operator: Operator, tmp_path: Path) -> None:
    """A colleague may have set them for users who stay in the file."""
    file = tmp_path / "rules.yaml"
    before = operator.run("rules", "get")
    for name in ("ada", "bob"):
        operator.run("users", "override", name, "orders-user", "--limit", "9")
    file.write_text(operator.run("rules", "get"))
    operator.run("users", "override", "ada", "all-ip", "--limit", "5")
    command = ("rules", "apply", str(file))
    assert "update user ada\nwould delete 1 override\n1 change," in operator.run(*command, "--dry-run")
    assert "This deletes 1: override all-ip of user ada. Continue?" in operator.run(*command, code=2)
    operator.agree(*command, meanwhile=lambda: None)
    assert operator.run("rules", "diff", str(file)) == "no difference\n"
    operator.run("users", "override", "bob", "all-ip", "--limit", "5")
    file.write_text(f"{before}\nusers: {{}}\n")
    told = operator.run(*command, "--yes")
    assert "deleted 2 users, 3 overrides\n2 changes," in told, "those of a user who goes as well"


def test_changes_of_fields_are_revisions_that_are_listed_and_undone(
    embedded: tuple[EmbeddedService, Path], operator: Operator
) -> None:
    service, _ = embedded
    before = operator.run("rules", "get")
    done = operator.run(
        "rules", "set", "orders-user", "limit=7", "methods=[GET, POST]", "when.region=eu", "--wait", "1m"
    )
    assert '"methods":["GET","POST"]' in done
    assert done.endswith("all nodes run it\n")
    number = operator.run("revisions", "--limit", "1").splitlines()[1].split()[0]
    assert operator.run("audit", "list", "--limit", "1").splitlines()[1].split()[0] == number
    assert "limit: 5 -> 7" in operator.run("revisions", number)
    operator.run("rules", "disable", "orders-user", "--wait", "1m")
    until(lambda: "orders-user" not in str(service.check("u9")), "it does not apply", SECONDS)
    refused = operator.run("undo", number, code=2)
    assert f"rule 'orders-user' (revision {int(number) + 1})" in refused
    assert "--yes" in operator.run("undo", number, "--force", code=2), "it asks first, having shown what changes"
    assert "limit: 7 -> 5" in operator.run("undo", number, "--force", "--dry-run")
    assert "enabled: false -> none" in operator.run("undo", "--reason", "a mistake")
    assert "nothing changes" in operator.run("undo", str(int(number) + 1))
    operator.run("undo", number, "--wait")
    assert operator.run("rules", "get") == before
    assert f"undo of revision {int(number) + 1}: a mistake" in operator.run("revisions")
    operator.run("rules", "disable", "all-ip")
    operator.run("rules", "enable", "all-ip")
    assert operator.run("rules", "get") == before
    for wrong in (("limit",), ("limit=1", "limit=2"), ("when=a", "when.b=c"), ("methods=[",), ("nothing=1",)):
        operator.run("rules", "set", "all-ip", *wrong, code=2)


def test_an_override_is_shown_with_the_limits_that_it_makes(operator: Operator) -> None:
    for limit in (77, 78):
        operator.run("users", "override", "shown", "orders-user", "--limit", str(limit))
        (line,) = [line for line in operator.run("users", "show", "shown").splitlines() if "orders-user" in line]
        assert f"{limit}/minute" in line
        assert line.endswith("override")
    operator.run("users", "override", "shown", "orders-user", "--end")


def test_an_override_lasts_for_as_long_as_is_said(operator: Operator) -> None:
    def in_an_hour() -> str:
        return moment_text((epoch_us() // 1_000_000 + 3600) * 1_000_000)  # whole seconds, as the command has them

    earliest = in_an_hour()
    operator.run("users", "override", "for-an-hour", "orders-user", "--limit", "500", "--for", "1h")
    listed = json.loads(operator.run("users", "list", "--json"))
    (user,) = [each for each in listed if each["id"] == "for-an-hour"]
    until_ = user["overrides"]["orders-user"]["until"]
    assert earliest <= until_ <= in_an_hour()
    for wrong, told in (
        (("--for", "1h", "--until", "2036-01-01T00:00:00Z"), "give one of them"),
        (("--for", "soon"), "--for must be a duration, such as 30m, 1h or 7d, not 'soon'"),
        (("--for", "1h", "--end"), "--end ends the override: it cannot be combined with --for"),
    ):
        assert told in operator.run("users", "override", "for-an-hour", "orders-user", *wrong, code=2)
    assert "give a change" in operator.run("users", "override", "u", "orders-user", "--for", "1h", code=2)
    operator.run("users", "override", "for-an-hour", "orders-user", "--end")


def test_usage_of_a_rule_that_does_not_exist_names_those_that_do(operator: Operator) -> None:
    assert "rule 'nosuch' does not exist; there are: " in operator.run("usage", "nosuch", code=2)
    operator.run("usage", "orders-user")


def test_a_rule_in_use_is_deleted_with_what_is_changed_of_it(
    embedded: tuple[EmbeddedService, Path], operator: Operator, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.yaml"
    whole.write_text(operator.run("rules", "get"))
    ends = moment_text(epoch_us() + 3_000_000)
    service = embedded[0]
    answer = httpx.post(
        f"{service.url}/api/v1/users/soon/override",
        json={"rule_id": "all-ip", "limit": 5, "until": ends},
        headers={"authorization": f"Bearer {service.key}"},
    )
    assert answer.json()["id"] == "soon"
    until(lambda: "soon" not in operator.run("users", "list"), "what has ended is not shown", SECONDS)
    operator.run("users", "override", "7", "all-ip", "--limit", "5")
    assert "is used by 1 user (7)" in operator.run("rules", "delete", "all-ip", code=2)
    assert operator.run("rules", "delete", "all-ip", "--drop-overrides") == "rule all-ip is deleted\n"
    assert "all-ip" not in operator.run("users", "list") + operator.run("rules", "list")
    operator.run("rules", "apply", str(whole), "--yes")


def test_who_has_no_key_is_told_so(embedded: tuple[EmbeddedService, Path]) -> None:
    assert "key" in Operator(embedded[0].url, "hg_wrong").run("rules", "get", code=2)


def test_a_second_start_has_the_same_rules_and_shows_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    first = EmbeddedService(folder, tmp_path / "first").started()
    try:
        assert first.key
    finally:
        first.stop()
    again = EmbeddedService(folder, tmp_path / "again").started()
    try:
        assert "rules  2, from sqlite:///" in again.said
        assert not again.key
        assert "only once" not in again.said
        again_too = EmbeddedService(folder, tmp_path / "beside").started()
        again_too.stop()
        assert "another service uses" in again_too.complained
    finally:
        again.stop()


def ended(words: Sequence[str], folder: Path, before: str = "pass", **environment: str) -> tuple[int, str]:
    """Run a command in a folder, which ends by itself; returns the exit code, and what it said and complained."""
    command = [sys.executable, *program(folder, before), *words]
    with_folder = {**os.environ, **ANY_RULES, "XDG_STATE_HOME": str(folder.parent / "state"), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=with_folder, check=False, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_is_said_to_be_that(tmp_path: Path) -> None:
    words = ("serve", *CHECK[2:], "--data-dir", str(tmp_path / "data"))
    code, said = ended(words, Path("/proc/self"))
    assert code == 1
    assert "headgate.db" in said
    assert "must be writable" in said
    assert "Traceback" not in said


def test_without_the_extra_there_is_no_admin_plane_and_it_is_said_what_to_install(tmp_path: Path) -> None:
    missing = "sys.modules['sqlalchemy'] = None"
    code, said = ended((*CHECK, "--database", "sqlite:///h.db"), tmp_path, missing)
    assert code == 2
    assert "'.[admin]'" in said
    code, said = ended(CHECK, tmp_path, missing)
    assert (code, said) == (0, "it could start: 2 rules, memory\n")


def test_a_check_asks_the_database_and_changes_nothing(
    embedded: tuple[EmbeddedService, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert main([*CHECK]) == 0
    assert "it would get tables and the example rules\nit could start: 2 rules" in capsys.readouterr().out
    assert not (tmp_path / "headgate.db").exists()
    assert main([*CHECK, "--database", "sqlite:///h.db"]) == 0
    assert "headgate rules apply FILE --database URL\nit could start: 0 rules" in capsys.readouterr().out
    assert not (tmp_path / "h.db").exists()
    assert main([*CHECK, "--database", f"sqlite:///{embedded[1]}/headgate.db"]) == 0
    assert capsys.readouterr().out == "it could start: 2 rules, memory\n"
    away = f"postgresql://somebody:secret@127.0.0.1:{free_port()}/rules"
    assert main([*CHECK, "--database", away]) == 1
    said = capsys.readouterr().err
    assert "it could not start: there are no rules" in said
    assert "secret" not in said
    assert main([*CHECK, "--database", away, "--rules", str(EXAMPLE)]) == 2
    assert f"headgate rules apply {EXAMPLE} --database URL" in capsys.readouterr().err


def test_rules_in_a_file_can_be_looked_at_with_a_key_and_not_changed(tmp_path: Path) -> None:
    key = "hg_an-operators-own-key-of-some-length"
    service = Service(tmp_path, "--rules", str(EXAMPLE), environment={"HEADGATE_ADMIN_KEY": key})
    try:
        service.started()
        found = re.search(r"admin +(http://\S+)", service.said)
        assert found
        operator = Operator(found[1], key)
        assert "orders-user" in operator.run("rules", "get")
        assert str(EXAMPLE) in operator.run("users", "tier", "u1", "gold", code=2)
    finally:
        service.stop()


@pytest.mark.parametrize("words", [("keys", "create", "mine"), ("audit", "verify"), ("database", "status")])
def test_a_database_that_is_not_there_is_not_made(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = () if words[0] == "database" else ("--database",)
    assert main([*words, *option, f"sqlite:///{tmp_path}/typo.db"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_many_users_are_applied_read_and_compared(operator: Operator, tmp_path: Path) -> None:
    """More than fits into 1 MiB of an answer; summaries stay short."""
    many, back = tmp_path / "many.yaml", tmp_path / "back.yaml"
    users = "".join(f"  user-{number}-{'x' * 400}: {{tier: premium}}\n" for number in range(4000))
    many.write_text("version: 1\ntiers: {premium: {}}\nusers:\n" + users)
    said = operator.run("rules", "apply", str(many), "--yes").splitlines()
    assert len(said) < 30
    assert said[-2].endswith("4,000 users")
    assert said[-1].startswith("4,001 changes, revision ")
    assert operator.run("rules", "get", "--output", str(back)) == ""
    assert back.stat().st_size > 1 << 20
    assert operator.run("rules", "diff", str(back)) == "no difference\n"
    assert len(operator.run("rules", "apply", str(back), "--yes", "--all").splitlines()) == 1


def test_a_change_that_was_waited_for_decides_the_next_request(
    embedded: tuple[EmbeddedService, Path], operator: Operator
) -> None:
    for limit in (7, 9, 8):
        assert "all nodes run it" in operator.run("rules", "set", "orders-user", f"limit={limit}", "--wait", "60s")
        body = {"principal": {"user": f"waited-{limit}"}, "endpoint": "/api/v1/orders", "method": "POST"}
        answer = httpx.post(f"http://127.0.0.1:{embedded[0].http_port}/api/v1/rate-limit/check", json=body).json()
        assert (answer["limit"], answer["remaining"]) == (limit, limit - 1)
