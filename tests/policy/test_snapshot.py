"""Rules and keys in files that one process writes and others read."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRule, UsageError
from headgate.policy import snapshot
from headgate.policy.changing import BodyChange, put
from headgate.policy.key_file import KEYS, KeySource, SharedKey, write_keys
from headgate.policy.live import LivePolicy
from headgate.policy.loading import from_data
from headgate.policy.snapshot import (
    Changes,
    SnapshotReader,
    SnapshotSource,
    SnapshotWriter,
    Whole,
    snapshot_folder,
)

DOCUMENT: dict[str, Any] = {"version": 1, "rules": [{"id": "a", "quota": "1/s"}], "users": {"u": {"tier": "gold"}}}
GOLD = BodyChange("user", "v", {"tier": "gold"})


def written(folder: Path) -> tuple[SnapshotWriter, SnapshotReader]:
    writer, reader = SnapshotWriter(folder, "somewhere"), SnapshotReader(folder)
    writer.write(Whole(3, DOCUMENT))
    assert reader.read() == Whole(3, DOCUMENT)
    return writer, reader


def test_a_change_of_users_comes_alone(tmp_path: Path) -> None:
    writer, reader = written(tmp_path)
    assert reader.changed() is None
    assert writer.append(Changes(4, (GOLD,)))
    assert writer.append(Changes(5, (BodyChange("user", "u", None),)))
    assert reader.changed() == Changes(5, (GOLD, BodyChange("user", "u", None)))
    assert reader.changed() is None
    assert SnapshotReader(tmp_path).read() == Whole(5, {**DOCUMENT, "users": {"v": {"tier": "gold"}}})


def test_unchanged_users_are_not_read_again(tmp_path: Path) -> None:
    writer, source = SnapshotWriter(tmp_path, "somewhere"), SnapshotSource(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    before = source.read()
    writer.append(Changes(4, (GOLD, BodyChange("rule", "b", {"quota": "2/s"}))))
    found = source.changed()
    assert found is not None
    assert source.revision == 4
    assert [rule.id for rule in found.rules] == ["a", "b"]
    assert found.users["v"].tier == "gold"
    assert found.users["u"] is before.users["u"]


def test_an_invalid_change_changes_nothing_and_the_next_read_is_complete(tmp_path: Path) -> None:
    writer, source = SnapshotWriter(tmp_path, "somewhere"), SnapshotSource(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    source.read()
    writer.append(Changes(4, (GOLD, BodyChange("rule", "a", {"quota": "soon"}))))
    with pytest.raises(InvalidRule, match="soon"):
        source.changed()
    assert source.changed() is None
    writer.append(Changes(5, (BodyChange("rule", "a", {"quota": "2/s"}),)))
    found = source.changed()
    assert found is not None
    assert found == from_data(SnapshotReader(tmp_path).read().document)
    assert set(found.users) == {"u", "v"}


def test_a_damaged_line_is_reported_once_and_earlier_lines_count(tmp_path: Path) -> None:
    writer, reader = written(tmp_path)
    writer.append(Changes(4, (GOLD,)))
    with (tmp_path / snapshot.RULES).open("ab") as journal:
        journal.write(b'{"damaged\n[7,[["user","w",{}]]]\n')
    assert reader.changed() == Changes(4, (GOLD,))
    with pytest.raises(InvalidRule, match="is damaged after revision 4"):
        reader.changed()
    assert reader.changed() is None
    assert SnapshotReader(tmp_path).read().revision == 4
    assert not writer.is_intact()
    assert not writer.append(Changes(8, (GOLD,)))
    writer.write(Whole(8, DOCUMENT))
    assert reader.changed() == Whole(8, DOCUMENT)


def test_a_writer_that_resumes_repairs_a_damaged_journal(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, "somewhere")
    writer.write(Whole(3, DOCUMENT))
    writer.append(Changes(4, (GOLD,)))
    for rubbish in (b"{}\n", b"half a line"):
        with (tmp_path / snapshot.RULES).open("ab") as journal:
            journal.write(rubbish)
        resumed = SnapshotWriter(tmp_path, "somewhere")
        assert resumed.resume() == 4
        assert resumed.is_intact()
    assert resumed.append(Changes(5, (BodyChange("user", "u", None),)))
    assert SnapshotReader(tmp_path).read() == Whole(5, {**DOCUMENT, "users": {"v": {"tier": "gold"}}})


def test_missing_files_are_reported_once(tmp_path: Path) -> None:
    writer, reader = written(tmp_path)
    (tmp_path / snapshot.RULES).unlink()
    with pytest.raises(InvalidRule, match="No such file"):
        reader.changed()
    assert reader.changed() is None
    assert not writer.is_intact()
    writer.write(Whole(4, DOCUMENT))
    assert reader.changed() == Whole(4, DOCUMENT)


def test_a_full_disk_leaves_the_file_unchanged(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: both cut off what is written."""
    writer, reader = written(tmp_path)
    size = (tmp_path / snapshot.RULES).stat().st_size
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
    try:
        many = tuple(BodyChange("user", f"u{number}", {"tier": "gold"}) for number in range(20))
        with pytest.raises(OSError, match="File too large"):
            writer.append(Changes(4, many))
        with pytest.raises(OSError, match="File too large"):
            writer.write(Whole(4, {**DOCUMENT, "users": {change.id: change.body for change in many}}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handled)
    assert reader.changed() is None
    assert SnapshotReader(tmp_path).read() == Whole(3, DOCUMENT)
    assert not list(tmp_path.glob("*.new"))
    assert not writer.append(Changes(4, many))  # who knows what is in the journal
    writer.write(Whole(4, DOCUMENT))
    assert reader.changed() == Whole(4, DOCUMENT)


def test_a_full_journal_is_merged_into_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_CHANGES", 200)
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    assert not writer.append(Changes(4, (GOLD,)))  # there is none yet
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    for revision in range(4, 15):
        assert writer.append(Changes(revision, (GOLD,)))
        assert (tmp_path / snapshot.RULES).stat().st_size <= 500
    document = {**DOCUMENT, "users": {"u": {"tier": "gold"}, "v": {"tier": "gold"}}}
    assert reader.changed() == SnapshotReader(tmp_path).read() == Whole(14, document)
    (tmp_path / snapshot.RULES).unlink()
    assert not writer.append(Changes(15, (GOLD,)))


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    own = snapshot_folder("sqlite:///a", str(tmp_path))
    assert own == snapshot_folder("sqlite:///a", str(tmp_path))
    assert own != snapshot_folder("sqlite:///b", str(tmp_path))
    if os.geteuid():  # there is nothing that one could give away, but others have some
        foreign = next(each for each in Path("/").iterdir() if each.is_dir() and each.stat().st_uid != os.geteuid())
        own.rmdir()
        own.symlink_to(foreign)
    else:
        os.chown(own, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        snapshot_folder("sqlite:///a", str(tmp_path))


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot create .*--data-dir"):
        snapshot_folder("sqlite:///a", str(tmp_path / "file"))


def test_half_a_line_waits_for_the_other_half(tmp_path: Path) -> None:
    writer, reader = written(tmp_path)
    before = (tmp_path / snapshot.RULES).read_bytes()
    writer.append(Changes(4, (GOLD,)))
    after = (tmp_path / snapshot.RULES).read_bytes()
    (tmp_path / snapshot.RULES).write_bytes(after[: len(before) + 5])
    assert reader.changed() is None
    (tmp_path / snapshot.RULES).write_bytes(after)
    assert reader.changed() == Changes(4, (GOLD,))


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    for content in (b"", b"{", b"[]", b'{"form": 2, "generation": "", "revision": 1}', b"\xff"):
        (tmp_path / snapshot.RULES).write_bytes(content)
        with pytest.raises(InvalidRule, match=r"rules\.jsonl"):
            SnapshotReader(tmp_path).read()


_CHANGES = st.builds(
    BodyChange,
    st.sampled_from(["rule", "tier", "user", "setting"]),
    st.sampled_from(["a", "b", "c"]),
    st.one_of(st.none(), st.fixed_dictionaries({"n": st.integers(0, 3)})),
)


@given(st.lists(st.one_of(st.just("whole"), st.lists(_CHANGES, min_size=1, max_size=3)), max_size=8), st.data())
def test_a_reader_ends_where_the_writer_is(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    writer, reader = SnapshotWriter(folder, "somewhere"), SnapshotReader(folder)
    truth: dict[str, Any] = {"version": 1}
    writer.write(Whole(1, truth))
    seen = reader.read().document
    for revision, step in enumerate(steps, 2):
        if step == "whole":
            writer.write(Whole(revision, truth))
        else:
            put(truth, step)
            writer.append(Changes(revision, tuple(step)))
        if data.draw(st.booleans()):
            news = reader.changed()
            if isinstance(news, Whole):
                seen = news.document
            elif news is not None:
                put(seen, news.changes)
            assert _plain(seen) == _plain(truth)
    assert _plain(SnapshotReader(folder).read().document) == _plain(truth)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    rules = {rule["id"]: rule for rule in document.get("rules", ())}
    return {key: value for key, value in {**document, "rules": rules}.items() if value}


def test_a_policy_follows_the_file(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, "somewhere")
    writer.write(Whole(3, DOCUMENT))
    live = LivePolicy(SnapshotSource(tmp_path))
    writer.append(Changes(4, (GOLD, BodyChange("rule", "b", {"quota": "2/s"}))))
    assert live.refresh(), live.statistics().error
    assert live.policy.ruleset == from_data(SnapshotReader(tmp_path).read().document)
    assert live.policy.rules.keys() == {"a", "b"}


ONE, TWO = SharedKey("one", "1" * 64), SharedKey("two", "2" * 64, 100)


def test_keys_are_read_again_when_they_change_or_expire(tmp_path: Path) -> None:
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


def test_a_damaged_file_of_keys_is_reported_once_and_read_again_when_it_changes(tmp_path: Path) -> None:
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
