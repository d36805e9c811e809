"""Rules on disk: a snapshot and a journal, which one process writes and others read."""

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
from headgate.policy.compiled import Policy
from headgate.policy.live import LivePolicy
from headgate.policy.loading import from_data
from headgate.policy.request import Request
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


def test_of_a_change_of_a_rule_users_are_not_read_again(tmp_path: Path) -> None:
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


def test_a_change_that_users_do_not_go_with_changes_nothing_and_the_next_one_comes_whole(tmp_path: Path) -> None:
    writer, source = SnapshotWriter(tmp_path, "somewhere"), SnapshotSource(tmp_path)
    writer.write(Whole(3, {**DOCUMENT, "users": {"u": {"overrides": {"a": {"limit": 2}}}}}))
    source.read()
    writer.append(Changes(4, (GOLD, BodyChange("rule", "a", None))))
    with pytest.raises(InvalidRule, match="no rule 'a'"):
        source.changed()
    assert source.changed() is None
    writer.append(Changes(5, (BodyChange("user", "u", None),)))
    found = source.changed()
    assert found is not None
    assert found == from_data(SnapshotReader(tmp_path).read().document)
    assert set(found.users) == {"v"}


def test_a_damaged_line_is_said_once_and_what_comes_before_it_counts(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    writer.append(Changes(4, (GOLD,)))
    with (tmp_path / snapshot.JOURNAL).open("ab") as journal:
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


def test_who_resumes_with_a_damaged_journal_writes_what_is_good_of_it_anew(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, "somewhere")
    writer.write(Whole(3, DOCUMENT))
    writer.append(Changes(4, (GOLD,)))
    for rubbish in (b"{}\n", b"half a line"):
        with (tmp_path / snapshot.JOURNAL).open("ab") as journal:
            journal.write(rubbish)
        resumed = SnapshotWriter(tmp_path, "somewhere")
        assert resumed.resume() == 4
        assert resumed.is_intact()
    assert resumed.append(Changes(5, (BodyChange("user", "u", None),)))
    assert SnapshotReader(tmp_path).read() == Whole(5, {**DOCUMENT, "users": {"v": {"tier": "gold"}}})


def test_files_that_are_gone_are_said_to_be_once(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    (tmp_path / snapshot.WHOLE).unlink()
    with pytest.raises(InvalidRule, match="No such file"):
        reader.changed()
    assert reader.changed() is None
    assert not writer.is_intact()
    writer.write(Whole(4, DOCUMENT))
    assert reader.changed() == Whole(4, DOCUMENT)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: both cut off what is written."""
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    size = (tmp_path / snapshot.WHOLE).stat().st_size
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


def test_a_journal_that_is_full_is_put_into_the_whole(tmp_path: Path) -> None:
    writer, reader = SnapshotWriter(tmp_path, "somewhere"), SnapshotReader(tmp_path)
    writer.write(Whole(3, DOCUMENT))
    reader.read()
    assert writer.compact(Changes(4, (GOLD,)))
    expected = Whole(4, {**DOCUMENT, "users": {"u": {"tier": "gold"}, "v": {"tier": "gold"}}})
    assert reader.changed() == expected
    (tmp_path / snapshot.JOURNAL).unlink()
    assert not writer.compact(Changes(5, (GOLD,)))


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_made_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be made.*--data-dir"):
        snapshot_folder("sqlite:///a", str(tmp_path / "file"))


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


_RULES = {
    "version": 1,
    "rules": [
        {"id": "a", "quota": "10/s", "endpoint": "/a/**"},
        {"id": "b", "quota": "5/s", "tier": "gold"},
        {"id": "c", "quota": "7/s", "key_pattern": "u*", "enforce_percent": 50},
    ],
    "tiers": {"gold": {"a": {"limit": 100}}, "free": {"a": {"limit": 3}}},
    "default_tier": "free",
}
_OVERRIDES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.one_of(
        st.builds(lambda limit: {"limit": limit}, st.integers(1, 9)),
        st.builds(
            lambda limit, hour: {"limit": limit, "until": f"2030-01-01T{hour:02}:00:00Z"},
            st.integers(1, 9),
            st.integers(0, 23),
        ),
    ),
)
_NAMES = st.sampled_from(["u1", "u2", "u3", "v"])
_USERS = st.builds(
    lambda name, body: BodyChange("user", name, body),
    _NAMES,
    st.one_of(
        st.none(),
        st.builds(
            lambda tier, overrides: {"tier": tier, "overrides": overrides},
            st.sampled_from(["gold", "free"]),
            _OVERRIDES,
        ),
    ),
)
_LIMITS = st.builds(
    lambda limit: BodyChange("rule", "a", {"id": "a", "quota": f"{limit}/s", "endpoint": "/a/**"}), st.integers(1, 99)
)
_SETTINGS = st.builds(lambda tier: BodyChange("setting", "default_tier", tier), st.sampled_from(["gold", "free", None]))
_ASKED = [
    (Request({"user": name}, path, "GET"), now)
    for name in ("u1", "u2", "u3", "v", "w")
    for path in ("/a/1", "/b")
    for now in (1_893_456_000_000_000, 1_893_500_000_000_000, 1_900_000_000_000_000)  # 2030-01-01 at 0 and 12; 2030-03
]


@given(st.lists(st.lists(st.one_of(_USERS, _USERS, _LIMITS, _SETTINGS), min_size=1, max_size=3), max_size=8))
def test_a_policy_that_was_renewed_step_by_step_is_one_that_was_made_afresh(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[BodyChange]]
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    writer = SnapshotWriter(folder, "somewhere")
    writer.write(Whole(1, _RULES))
    live = LivePolicy(SnapshotSource(folder))
    for revision, step in enumerate(steps, 2):
        writer.append(Changes(revision, tuple(step)))
        assert live.refresh(), live.statistics().error
        fresh = from_data(SnapshotReader(folder).read().document)
        assert live.policy.ruleset == fresh
        policy = Policy(fresh)
        for request, now in _ASKED:  # also fills what a policy remembers, which the next one must not trust
            assert live.policy.select(request, now) == policy.select(request, now)
