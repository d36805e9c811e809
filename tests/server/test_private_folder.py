"""Folders of a process's own: nobody else's while it lives, and removed afterwards, by itself or by the next."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.core.errors import UsageError
from headgate.server.private_folder import private_folder


def test_what_a_process_leaves_behind_that_is_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "headgate-run-else").write_text("not a folder")
    (tmp_path / "headgate-run-link").symlink_to(tmp_path)
    script = f"""
from headgate.server.private_folder import private_folder
with private_folder({str(tmp_path)!r}) as folder:
    (folder / "shared").mkdir()
    print(folder, flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        with private_folder(str(tmp_path)) as mine:
            assert left.exists(), "its process lives"
            process.kill()
            process.wait()
            assert left.exists()
            with private_folder(str(tmp_path)):
                assert not left.exists()
                assert mine.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["headgate-run-else", "headgate-run-link"]


def test_those_that_start_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    """A folder may be seen before it is locked: then another one is made."""

    def used(_: int) -> bool:
        with private_folder(str(tmp_path)) as folder:
            (folder / "file").write_text("mine")
            with private_folder(str(tmp_path)):
                return (folder / "file").exists()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(used, range(200)))
    assert not [*tmp_path.iterdir()]


def test_where_no_folder_can_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot make a folder in .*/nowhere"), private_folder(f"{tmp_path}/nowhere"):
        raise AssertionError("it was made")
