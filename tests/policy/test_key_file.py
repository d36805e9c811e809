"""Keys in a folder are those that are good now, whenever they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.errors import InvalidRule
from headgate.policy.key_file import KEYS, KeySource, SharedKey, write_keys

ONE, TWO = SharedKey("one", "1" * 64), SharedKey("two", "2" * 64, 100)


def test_they_are_read_again_when_they_are_others_or_one_expires(tmp_path: Path) -> None:
    now = 0
    source = KeySource(tmp_path, lambda: now)
    assert source.read() == ()
    assert source.changed() is None
    write_keys(tmp_path, (ONE, TWO))
    assert source.changed() == (ONE, TWO)
    assert source.changed() is None
    now = 100
    assert source.changed() == (ONE,)
    assert source.changed() is None
    write_keys(tmp_path, (TWO,))
    assert source.changed() == ()
    (tmp_path / KEYS).unlink()
    assert source.changed() == ()


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_keys(tmp_path, (ONE,))
    assert (tmp_path / KEYS).stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_said_once_and_read_when_it_is_another(tmp_path: Path) -> None:
    write_keys(tmp_path, (TWO,))
    now = 0
    source = KeySource(tmp_path, lambda: now)
    assert source.read() == (TWO,)
    (tmp_path / KEYS).write_bytes(b'[{"id":')
    with pytest.raises(InvalidRule, match="is damaged"):
        source.changed()
    now = 100
    assert source.changed() is None
    write_keys(tmp_path, (ONE,))
    assert source.changed() == (ONE,)
