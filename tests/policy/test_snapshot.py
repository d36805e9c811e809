"""Rules on disk: a snapshot and a journal, which one process writes and others read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRule
from headgate.policy import snapshot
from headgate.policy.snapshot import BodyChange, Changes, SnapshotReader, SnapshotWriter, Whole, put

DOCUMENT: dict[str, Any] = {"version": 1, "rules": [{"id": "a", "quota": "1/s"}], "users": {"u": {"tier": "gold"}}}
GOLD = BodyChange("user", "v", {"tier": "gold"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    assert reader.read() == Whole(3, DOCUMENT)
    assert reader.changed() is None


def test_a_change_of_users_comes_alone(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    assert writer.append(Changes(4, (GOLD,)))
    assert writer.append(Changes(5, (BodyChange("user", "u", None),)))
    assert reader.changed() == Changes(5, (GOLD, BodyChange("user", "u", None)))
    assert reader.changed() is None
    assert SnapshotReader(tmp_path).read() == Whole(5, {**DOCUMENT, "users": {"v": {"tier": "gold"}}})


def test_a_change_of_anything_else_comes_as_a_whole(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    writer.append(Changes(4, (GOLD, BodyChange("rule", "b", {"quota": "2/s"}))))
    found = reader.changed()
    assert isinstance(found, Whole)
    assert found.revision == 4
    assert [rule["id"] for rule in found.document["rules"]] == ["a", "b"]
    assert found.document["users"]["v"] == {"tier": "gold"}


def test_a_new_whole_replaces_the_journal(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    writer.append(Changes(4, (GOLD,)))
    reader.read()
    writer.write(Whole(9, {"version": 1, "rules": []}))
    assert reader.changed() == Whole(9, {"version": 1, "rules": []})
    writer.append(Changes(10, (GOLD,)))
    assert reader.changed() == Changes(10, (GOLD,))


def test_a_journal_of_another_generation_says_nothing(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, "somewhere")
    writer.write(Whole(3, DOCUMENT))
    writer.append(Changes(4, (GOLD,)))
    old = (tmp_path / snapshot.JOURNAL).read_bytes()
    writer.write(Whole(9, DOCUMENT))
    (tmp_path / snapshot.JOURNAL).write_bytes(old)  # as between the two renames
    assert SnapshotReader(tmp_path).read() == Whole(9, DOCUMENT)


def test_half_a_line_waits_for_the_other_half(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    before = (tmp_path / snapshot.JOURNAL).read_bytes()
    writer.append(Changes(4, (GOLD,)))
    after = (tmp_path / snapshot.JOURNAL).read_bytes()
    (tmp_path / snapshot.JOURNAL).write_bytes(after[: len(before) + 5])
    assert reader.changed() is None
    (tmp_path / snapshot.JOURNAL).write_bytes(after)
    assert reader.changed() == Changes(4, (GOLD,))


def test_a_full_journal_asks_for_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LONGEST_JOURNAL", 200)
    writer = SnapshotWriter(tmp_path, "somewhere")
    assert not writer.append(Changes(4, (GOLD,)))  # there is none yet
    writer.write(Whole(3, DOCUMENT))
    appended = [writer.append(Changes(4 + number, (GOLD,))) for number in range(10)]
    assert appended[0]
    assert not appended[-1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"form": 2, "generation": "", "revision": 1}', b"\xff"])
def test_a_damaged_file_is_said_to_be_that(tmp_path: Path, content: bytes) -> None:
    (tmp_path / snapshot.WHOLE).write_bytes(content)
    with pytest.raises(InvalidRule, match=r"rules\.json"):
        SnapshotReader(tmp_path).read()


def test_no_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRule, match="No such file"):
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
            for change in step:
                put(truth, change)
            writer.append(Changes(revision, tuple(step)))
        if data.draw(st.booleans()):
            news = reader.changed()
            if isinstance(news, Whole):
                seen = news.document
            elif news is not None:
                for change in news.changes:
                    put(seen, change)
            assert _plain(seen) == _plain(truth)
    assert _plain(SnapshotReader(folder).read().document) == _plain(truth)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    rules = {rule["id"]: rule for rule in document.get("rules", ())}
    return {key: value for key, value in {**document, "rules": rules}.items() if value}
