"""The admin plane from the command line: how a service starts, and the commands of operators."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from headgate.admin.tables import epoch_us
from headgate.cli.__main__ import main
from headgate.config.times import moment_text
from headgate.server.configuration import EXAMPLE
from tests.cli.conftest import Cli
from tests.server.process.service import SECONDS, Service, service
from tests.servers import free_port, until

CHECK = ("serve", "--check", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
ANY_RULES = {"HEADGATE_DATABASE": "", "HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": ""}


class Operator:
    """Runs commands on a service."""

    def __init__(self, url: str, key: str) -> None:
        self._environment = {"HEADGATE_ADMIN_URL": url, "HEADGATE_ADMIN_KEY": key}

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with `code`; return its output."""
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
            patch.setattr(sys, "stdin", io.StringIO())
            for name, value in self._environment.items():
                patch.setenv(name, value)
            ended = main([*words])
        assert ended == code, output.getvalue()
        return output.getvalue()

    def confirm(self, *words: str, meanwhile: Callable[[], object], code: int = 0) -> str:
        """Confirm a command after `meanwhile`; return its errors."""
        here, there = pty.openpty()  # only a terminal can confirm
        command = [sys.executable, "-m", "headgate.cli", *words]
        pipe, environment = subprocess.PIPE, {**os.environ, **self._environment}
        with subprocess.Popen(command, stdin=there, stdout=pipe, stderr=pipe, env=environment, text=True) as running:
            os.close(there)
            assert running.stdout is not None
            question = ""
            while not question.endswith("[y/N]"):
                letter = running.stdout.read(1)
                assert letter, running.communicate()
                question += letter
            meanwhile()
            os.write(here, b"y\n")
            errors = running.communicate(timeout=SECONDS)[1]
        os.close(here)
        assert running.returncode == code, errors
        return errors


def first_key(found: Service) -> str:
    shown = re.search(r"only once:\n +(\S+)\n", found.said)
    assert shown, found.said
    return shown[1]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in an empty folder, without options for rules and a database."""
    base = tmp_path_factory.mktemp("embedded")
    (base / "folder").mkdir()
    with service("--data-dir", str(base / "data"), environment=ANY_RULES, cwd=base / "folder") as found:
        yield found.started()


@pytest.fixture(scope="module")
def operator(embedded: Service) -> Operator:
    return Operator(f"http://127.0.0.1:{embedded.admin_port}", first_key(embedded))


def test_an_empty_folder_gets_a_database_with_the_example_and_a_key_that_is_shown(embedded: Service) -> None:
    key, database = first_key(embedded), f"{embedded.cwd}/headgate.db"
    assert "rules  2, from sqlite:///" in embedded.said
    assert embedded.check("u1")["allowed"]
    assert key not in embedded.complained
    stored = sqlite3.connect(database).execute("SELECT * FROM api_keys").fetchall()
    assert stored
    assert key not in str(stored)


def test_operators_look_at_rules_and_change_them(embedded: Service, operator: Operator, tmp_path: Path) -> None:
    assert "orders-user" in operator.run("rules", "get")
    rules = tmp_path / "rules.yaml"
    rules.write_text(EXAMPLE.read_text().replace("limit: 5", "limit: 6"))
    assert "orders-user" in operator.run("rules", "apply", str(rules), "--dry-run")
    assert embedded.check("u2")["limits"][0]["limit"] == 5
    operator.run("rules", "apply", str(rules), "--reason", "more", "--yes")
    until(lambda: embedded.check("u3")["limits"][0]["limit"] == 6, "it is in force", SECONDS)
    operator.run("rules", "rollback", "orders-user", "1")
    until(lambda: embedded.check("u4")["limits"][0]["limit"] == 5, "it is in force", SECONDS)
    assert "orders-user" in operator.run("audit", "list")
    operator.run("audit", "verify")


def test_what_is_confirmed_is_what_was_shown(operator: Operator, tmp_path: Path) -> None:
    """A rule that is created before the confirmation is not deleted with those that were shown."""
    whole, rules, theirs = (tmp_path / f"{name}.yaml" for name in ("whole", "rules", "theirs"))
    whole.write_text(operator.run("rules", "get"))
    rules.write_text("version: 1\nrules:\n  - {id: mine, limit: 1, window: 1s}\n")
    theirs.write_text("version: 1\nrules:\n  - {id: another, limit: 1, window: 1s}\n")
    output = operator.confirm(
        *("rules", "apply", str(rules)),
        meanwhile=lambda: operator.run("rules", "apply", str(theirs), "--yes"),
        code=2,
    )
    assert "is now at version" in output
    assert "another" in operator.run("rules", "list")
    operator.confirm("rules", "apply", str(rules), meanwhile=lambda: None)
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
    assert operator.run("rules", "diff", str(file)) == "no difference\n", "overrides with an end are not in files"
    ended = ("rules", "apply", str(file), "--replace-users")
    assert "would delete 1 user, 1 override\n1 change," in operator.run(*ended, "--dry-run")
    assert "deleted 1 user, 1 override\n1 change," in operator.run(*ended, "--yes")


def test_deleted_overrides_are_counted_and_confirmed(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    before = operator.run("rules", "get")
    for name in ("ada", "bob"):
        operator.run("users", "override", name, "orders-user", "--limit", "9")
    file.write_text(operator.run("rules", "get"))
    operator.run("users", "override", "ada", "all-ip", "--limit", "5")
    command = ("rules", "apply", str(file))
    assert "update user ada\nwould delete 1 override\n1 change," in operator.run(*command, "--dry-run")
    assert "This deletes 1: override all-ip of user ada. Continue?" in operator.run(*command, code=2)
    operator.confirm(*command, meanwhile=lambda: None)
    assert operator.run("rules", "diff", str(file)) == "no difference\n"
    operator.run("users", "override", "bob", "all-ip", "--limit", "5")
    file.write_text(f"{before}\nusers: {{}}\n")
    output = operator.run(*command, "--yes")
    assert "deleted 2 users, 3 overrides\n2 changes," in output, "including those of a deleted user"


def test_changes_of_fields_are_revisions_that_are_listed_and_undone(embedded: Service, operator: Operator) -> None:
    before = operator.run("rules", "get")
    fields = "limit=7", "methods=[GET, POST]", "when.region=eu"
    done = operator.run("rules", "set", "orders-user", *fields, "--wait", "1m")
    assert '"methods":["GET","POST"]' in done
    assert done.endswith("all nodes run it\n")
    number = operator.run("revisions", "--limit", "1").splitlines()[1].split()[0]
    assert operator.run("audit", "list", "--limit", "1").splitlines()[1].split()[0] == number
    assert "limit: 5 -> 7" in operator.run("revisions", number)
    operator.run("rules", "disable", "orders-user", "--wait", "1m")
    until(lambda: "orders-user" not in str(embedded.check("u9")), "it does not apply", SECONDS)
    refused = operator.run("undo", number, code=2)
    assert f"rule 'orders-user' (revision {int(number) + 1})" in refused
    assert "--yes" in operator.run("undo", number, "--force", code=2), (
        "it shows the changes, and requires a confirmation"
    )
    assert "limit: 7 -> 5" in operator.run("undo", number, "--force", "--dry-run")
    assert "enabled: false -> none" in operator.run("undo", "--reason", "a mistake")
    assert "nothing changes" in operator.run("undo", str(int(number) + 1))
    operator.run("undo", number, "--wait")
    assert operator.run("rules", "get") == before
    assert f"undo of revision {int(number) + 1}: a mistake" in operator.run("revisions")
    operator.run("rules", "disable", "all-ip")
    operator.run("rules", "enable", "all-ip")
    assert operator.run("rules", "get") == before
    for wrong in ("limit", "limit=", "limit=1 limit=2", "when=a when.b=c", "methods=[", "nothing=1"):
        operator.run("rules", "set", "all-ip", *wrong.split(), code=2)


def test_an_override_is_shown_and_ends_in_time(operator: Operator) -> None:
    def in_an_hour() -> str:
        return moment_text((epoch_us() // 1_000_000 + 3600) * 1_000_000)  # whole seconds, as in the command

    for limit in (77, 78):
        operator.run("users", "override", "for-an-hour", "orders-user", "--limit", str(limit))
        (line,) = [line for line in operator.run("users", "show", "for-an-hour").splitlines() if "orders-user" in line]
        assert f"{limit}/minute" in line
        assert line.endswith("override")
    earliest = in_an_hour()
    operator.run("users", "override", "for-an-hour", "orders-user", "--limit", "500", "--for", "1h")
    listed = json.loads(operator.run("users", "list", "--json"))
    (user,) = [each for each in listed if each["id"] == "for-an-hour"]
    until_ = user["overrides"]["orders-user"]["until"]
    assert earliest <= until_ <= in_an_hour()
    for wrong, message in (
        (("--for", "1h", "--until", "2036-01-01T00:00:00Z"), "use one of them"),
        (("--for", "soon"), "--for must be a duration, such as 30m, 1h or 7d, not 'soon'"),
        (("--for", "1h", "--end"), "--end ends the override: it cannot be combined with --for"),
    ):
        assert message in operator.run("users", "override", "for-an-hour", "orders-user", *wrong, code=2)
    assert "the override has no change" in operator.run("users", "override", "u", "orders-user", "--for", "1h", code=2)
    operator.run("users", "override", "for-an-hour", "orders-user", "--end")


def test_unknown_rules_and_wrong_keys_are_errors(embedded: Service, operator: Operator) -> None:
    assert "rule 'nosuch' does not exist; the rules are: " in operator.run("usage", "nosuch", code=2)
    operator.run("usage", "orders-user")
    assert "key" in Operator(f"http://127.0.0.1:{embedded.admin_port}", "hg_wrong").run("rules", "get", code=2)


def test_a_rule_in_use_is_deleted_with_its_overrides(embedded: Service, operator: Operator, tmp_path: Path) -> None:
    whole = tmp_path / "whole.yaml"
    whole.write_text(operator.run("rules", "get"))
    ends = moment_text(epoch_us() + 3_000_000)
    override = {"rule_id": "all-ip", "limit": 5, "until": ends}
    assert embedded.admin(first_key(embedded), "POST", "/users/soon/override", override)[1]["id"] == "soon"
    until(lambda: "soon" not in operator.run("users", "list"), "the override ends", SECONDS)
    operator.run("users", "override", "7", "all-ip", "--limit", "5")
    assert "is used by 1 user (7)" in operator.run("rules", "delete", "all-ip", code=2)
    assert operator.run("rules", "delete", "all-ip", "--drop-overrides") == "rule all-ip is deleted\n"
    assert "all-ip" not in operator.run("users", "list") + operator.run("rules", "list")
    operator.run("rules", "apply", str(whole), "--yes")


def test_a_second_start_has_the_same_rules_and_shows_no_key(embedded: Service) -> None:
    assert embedded.cwd
    data = str(embedded.cwd.parent / "data")
    with service("--data-dir", data, environment=ANY_RULES, cwd=embedded.cwd) as second:
        second.started()
        assert "rules  2, from sqlite:///" in second.said
        assert "only once" not in second.said
        assert "another service uses" in second.complained


def ended(words: Sequence[str], folder: Path, before: str = "pass") -> tuple[int, str]:
    """Run a command in a folder until it ends; return the exit code and the output."""
    program = f"import sys; {before}; from headgate.cli.__main__ import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, *words]
    environment = {**os.environ, **ANY_RULES, "XDG_STATE_HOME": str(folder.parent / "state")}
    pipes: Any = {"capture_output": True, "text": True, "timeout": SECONDS}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, **pipes)
    return done.returncode, done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    words = ("serve", *CHECK[2:], "--data-dir", str(tmp_path / "data"))
    code, output = ended(words, Path("/proc/self"))
    assert code == 1
    assert "headgate.db" in output
    assert "must be writable" in output
    assert "Traceback" not in output


def test_without_the_extra_there_is_no_admin_plane(tmp_path: Path) -> None:
    missing = "sys.modules['sqlalchemy'] = None"
    code, output = ended((*CHECK, "--database", "sqlite:///h.db"), tmp_path, missing)
    assert code == 2
    assert "'.[admin]'" in output
    code, output = ended(CHECK, tmp_path, missing)
    assert (code, output) == (0, "it could start: 2 rules, memory\n")


def test_a_check_reads_the_database_and_changes_nothing(
    embedded: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert "it would be created with the example rules\nit could start: 2 rules" in cli(*CHECK).out
    empty = cli(*CHECK, "--database", "sqlite:///h.db").out
    assert "headgate rules apply FILE --database URL\nit could start: 0 rules" in empty
    assert not [*tmp_path.glob("*.db")]
    database = f"sqlite:///{embedded.cwd}/headgate.db"
    assert cli(*CHECK, "--database", database).out == "it could start: 2 rules, memory\n"
    away = f"postgresql://user:secret@127.0.0.1:{free_port()}/rules"
    output = cli(*CHECK, "--database", away, code=1).err
    assert "it could not start: there are no rules" in output
    assert "secret" not in output
    output = cli(*CHECK, "--database", away, "--rules", str(EXAMPLE), code=2).err
    assert f"headgate rules apply {EXAMPLE} --database URL" in output


def test_a_missing_database_is_not_created(tmp_path: Path, cli: Cli) -> None:
    for words in ("keys create mine --database", "audit verify --database", "database status"):
        assert "typo.db does not exist" in cli(words, f"sqlite:///{tmp_path}/typo.db", code=2).err
    assert not list(tmp_path.iterdir())


def test_many_users_are_applied_read_and_compared(operator: Operator, tmp_path: Path) -> None:
    """The response has more than 1 MiB; summaries stay short."""
    many, back = tmp_path / "many.yaml", tmp_path / "back.yaml"
    users = "".join(f"  user-{number}-{'x' * 400}: {{tier: premium}}\n" for number in range(4000))
    many.write_text("version: 1\ntiers: {premium: {}}\nusers:\n" + users)
    text = operator.run("rules", "apply", str(many), "--yes").splitlines()
    assert len(text) < 30
    assert text[-2].endswith("4,000 users")
    assert text[-1].startswith("4,001 changes, revision ")
    assert operator.run("rules", "get", "--output", str(back)) == ""
    assert back.stat().st_size > 1 << 20
    assert operator.run("rules", "diff", str(back)) == "no difference\n"
    assert len(operator.run("rules", "apply", str(back), "--yes", "--all").splitlines()) == 1


def test_after_waiting_a_change_decides_the_next_request(embedded: Service, operator: Operator) -> None:
    for limit in (7, 9, 8):
        assert "all nodes run it" in operator.run("rules", "set", "orders-user", f"limit={limit}", "--wait", "60s")
        decision = embedded.check(f"waited-{limit}")
        assert (decision["limit"], decision["remaining"]) == (limit, limit - 1)
