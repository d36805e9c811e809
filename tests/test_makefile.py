"""The Makefile on machines that lack something, and its messages. `make bare` has a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "make", "cut", "rm", "touch", "mkdir", "cat")
"""What every machine has."""
ALL = "redis-server redis-tools curl nginx-light nghttp2-client wrk openssl systemd postgresql prometheus chromium"


class Machine:
    """A folder with the Makefile, on a machine that has nothing but what is `put` there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "headgate", folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)

    def put(self, path: str, script: str) -> Path:
        """Put a program there; a path without a folder is found by its name."""
        place = self.folder / path if "/" in path else self.bin / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)
        return place

    def python(self, path: str = "python3", version: str = "(3, 11, 2)", *, has_venv: bool = True) -> Path:
        """Put a Python there, as far as the Makefile looks."""
        cases = f"*ensurepip*) exit {int(not has_venv)};; *print*) echo '{version} /usr';;"
        return self.put(path, f'case "$*" in {cases} esac')

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        environment.pop("PYTHON", None)
        return subprocess.run(
            [str(self.bin / "make"), "--no-print-directory", *words],
            cwd=self.folder,
            env={**environment, "PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("goal", "packages"), [("run", "python3-venv"), ("example", "python3-venv"), ("test", f"python3-venv {ALL}")]
)
def test_an_ordinary_user_first_sees_what_root_has_to_install(machine: Machine, goal: str, packages: str) -> None:
    machine.put("id", "echo 1000")
    machine.python(has_venv=False)
    if shutil.which("nginx", path="/usr/sbin"):  # looked for where ordinary users do not look
        packages = packages.replace(" nginx-light", "")
    if any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):  # likewise
        packages = packages.replace(" postgresql", "")
    ended = machine.make(goal)
    command = f"apt-get update && apt-get install --no-install-recommends {packages}"
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[0] == f"not installed: {packages}; as root: {command}"


def test_root_gets_it_in_silence(machine: Machine) -> None:
    machine.put("id", "echo 0")
    machine.put("apt-get", f'echo "$@" >>{machine.folder}/asked; echo noise; echo more noise >&2')
    machine.python(has_venv=False)
    ended = machine.make(".venv/bin/python")
    assert ended.stdout == "installing python3-venv ...\n"
    assert "noise" not in ended.stderr
    asked = (machine.folder / "asked").read_text()
    patiently = "-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5"
    assert asked == f"update {patiently}\ninstall --no-install-recommends python3-venv -y {patiently}\n"


def test_errors_of_apt_are_shown(machine: Machine) -> None:
    machine.put("id", "echo 0")
    machine.put("apt-get", "echo no network >&2; exit 100")
    machine.python(has_venv=False)
    ended = machine.make("run")
    assert ended.returncode != 0
    assert ended.stderr.splitlines()[0] == "no network"


def test_the_example_gets_the_gateway_and_the_service_does_not(machine: Machine) -> None:
    machine.python()
    for path in (".venv/bin/python", ".venv/bin/pip", ".venv/bin/headgate"):
        machine.put(path, f'case "$*" in *print*) echo same;; *) echo "{Path(path).name} $@";; esac')
    assert machine.make("run").stdout.splitlines()[1:] == ["pip install --quiet --editable .[admin]", "headgate serve"]
    said = machine.make("example", "OPTIONS=--store redis://localhost").stdout.splitlines()
    installed = "pip install --quiet --editable .[gateway]"
    assert said[1:] == [installed, "python examples/microservices --store redis://localhost"]
    (machine.folder / ".venv/.dev").touch()
    assert "pytest -n 4 " in machine.make("--dry-run", "quick").stdout
    assert machine.make("demo", "KEEP=1").stdout.splitlines()[-1] == "python -m examples.demo --keep"


def test_long_work_is_reported_every_ten_seconds(machine: Machine) -> None:
    machine.python()
    machine.python(".venv/bin/python")
    machine.put("sleep", "[ ! -e slept ] || : >slept-again; : >slept")  # on this machine, time passes at once
    machine.put(".venv/bin/pip", "until [ -e slept-again ]; do :; done")
    machine.put(".venv/bin/headgate", "exit 0")
    said = machine.make("run").stdout
    assert said.startswith("installing headgate ...\ninstalling headgate ... 10 s\n")


@pytest.mark.parametrize(
    ("goal", "slow"),
    [
        ("lint", ["mypy"]),
        ("docs", ["building the site"]),
        ("lock", ["locking versions"]),
        ("bare", ["checking on a minimal Debian"]),
        ("image", ["making the image"]),
        ("release", ["installing the build tools", "building dist/", "checking the packages"]),
    ],
)
def test_goals_that_take_long_show_that_they_go_on(machine: Machine, goal: str, slow: list[str]) -> None:
    machine.python()
    machine.python(".venv/bin/python")
    would_run = machine.make("--dry-run", goal).stdout
    for each in slow:
        assert f'echo "{each} ... $past s"' in would_run


def test_an_old_python_is_an_error(machine: Machine) -> None:
    machine.put("python3", "exit 1")
    assert machine.make("run").stderr.startswith("Python 3.11 or later is needed; another one: make PYTHON=")


@pytest.mark.parametrize(("words", "stays"), [([], True), (["PYTHON=python3"], True), (["PYTHON=python3.13"], False)])
def test_an_environment_of_another_python_is_made_anew(machine: Machine, words: list[str], stays: bool) -> None:  # noqa: FBT001
    machine.python()
    machine.python("python3.13", "(3, 13, 0)")
    machine.python(".venv/bin/python")
    machine.make("--dry-run", "run", *words)
    assert (machine.folder / ".venv").exists() is stays


@pytest.mark.parametrize("asked", ["python2", "pyhton3"])
def test_an_environment_stays_where_another_python_cannot_be_had(machine: Machine, asked: str) -> None:
    machine.put("python2", "exit 1")
    machine.python(".venv/bin/python")
    ended = machine.make("--dry-run", "run", f"PYTHON={asked}")
    assert ended.returncode != 0
    assert "Python 3.11 or later is needed; another one: make PYTHON=" in ended.stderr
    assert (machine.folder / ".venv").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(machine: Machine) -> None:
    machine.python()
    gone = machine.python(".venv/bin/python")
    gone.unlink()
    gone.symlink_to("/no/such/python")
    machine.make("--dry-run", "run")
    assert not (machine.folder / ".venv").exists()
