"""Files: read up to a bound, and replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.files import UnreadableFile, content_of, renew_file, replace_file


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    assert content_of(file, 1000) == b"x" * 1000
    with pytest.raises(UnreadableFile, match=r"^has more than 999 bytes$"):
        content_of(str(file), 999)


@pytest.mark.parametrize(
    ("name", "said"), [("none", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")]
)
def test_errors_of_reading_have_no_file_name(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UnreadableFile) as refused:
        content_of(f"{tmp_path}/{name}", 10)
    assert str(refused.value) == f"cannot be read: {said}"


def test_a_file_is_replaced_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content, durable in ((b"old", True), (b"new", False)):
        replace_file(file, content, durable=durable)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, 0o600)
    replace_file(tmp_path / "page", b"page", mode=0o640)
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o640 & ~_umask()
    assert {each.name for each in tmp_path.iterdir()} == {"file", "page"}


def test_what_cannot_be_replaced_stays_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_file(folder, b"new")
    assert [*tmp_path.iterdir()] == [folder]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"new")


def test_a_file_with_the_same_content_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert renew_file(file, b"1")
    inode = file.stat().st_ino
    assert not renew_file(file, b"1")
    assert file.stat().st_ino == inode
    assert renew_file(file, b"2", durable=False)
    assert file.read_bytes() == b"2"


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
