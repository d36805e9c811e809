"""Several logs are read as one, by the times of their lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headgate.core.errors import UsageError
from headgate.replay.logs import MergedLogs
from tests.replay.samples import SECOND, START, line


def seconds_of(logs: MergedLogs) -> list[int]:
    return [(entry.at - START) // SECOND for entry in logs]


def written(folder: Path, name: str, *seconds: int) -> str:
    path = folder / name
    text = "".join([line(second) for second in seconds])
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def test_rotated_files_are_read_from_the_oldest_on_however_they_are_named(tmp_path: Path) -> None:
    """As a shell expands ``access.log*``: the newest first."""
    paths = [written(tmp_path, "access.log", 7, 8, 9), written(tmp_path, "access.log.1", 4, 5, 6)]
    paths.append(written(tmp_path, "access.log.2.gz", 1, 2, 3))
    logs = MergedLogs(paths)
    assert seconds_of(logs) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert logs.read_bytes == logs.total_bytes == sum(Path(path).stat().st_size for path in paths)


def test_logs_of_several_servers_are_merged(tmp_path: Path) -> None:
    paths = [written(tmp_path, "a.log", 1, 4, 9, 12), written(tmp_path, "b.log", 2, 4, 5, 10), ""]
    paths[2] = written(tmp_path, "later.log", 11)
    assert seconds_of(MergedLogs(paths)) == [1, 2, 4, 4, 5, 9, 10, 11, 12]


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    paths = [written(tmp_path, f"access.log.{number}", 2 * number, 2 * number + 1) for number in range(50)]
    most = 0
    for _ in MergedLogs(paths[::-1]):
        most = max(most, sum(str(each.readlink()).startswith(str(tmp_path)) for each in open_files()))
    assert 1 <= most <= 2


def open_files() -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


def test_a_file_counts_once_and_an_empty_one_is_no_problem(tmp_path: Path) -> None:
    path, empty = written(tmp_path, "a.log", 3), written(tmp_path, "empty.log")
    assert seconds_of(MergedLogs([path, empty, path])) == [3]


def test_lines_that_cannot_be_read_are_counted_over_all_files(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{line(1)}what\n{line(2)}")
    logs = MergedLogs([str(tmp_path / "a.log"), str(tmp_path / "b.log")])
    assert len([*logs]) == 4
    assert (logs.unread, [Path(each.file).name for each in logs.unread_first]) == (2, ["a.log", "b.log"])


def test_a_file_of_an_unknown_format_is_refused_before_anything_is_decided(tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("what\n")
    with pytest.raises(UsageError, match=r"b\.log: unknown format"):
        next(iter(MergedLogs([written(tmp_path, "a.log", 1), str(tmp_path / "b.log")])))
