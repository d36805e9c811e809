"""What changes while it is in force: files replaced, rewritten, swapped, broken and gone."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import warnings
from pathlib import Path

import pytest

from headgate import Engine, InvalidRule, LivePolicy, Request, Ruleset, UsageError
from headgate.live import FileSource, Live, yaml_files
from headgate.policy.live import rules_file
from headgate.policy.loading import load, load_file
from tests.servers import until

GOOD, OTHER, BAD = (f"version: 1\nrules: [{{id: a, limit: {limit}, window: 1m}}]\n" for limit in ("10", "20", "many"))


def limit_of(live: LivePolicy) -> int:
    (limit,) = live.policy.select(Request({"user": "ada"}), 0).enforced.plan
    return limit.quota.limit


def looked(live: LivePolicy) -> list[bool]:
    """What looking twice brings: a change counts when the file stayed as it is in between."""
    return [live.refresh(), live.refresh()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    return path


def replaced(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def test_a_file_that_stays_is_not_read_again(file: Path) -> None:
    live = LivePolicy(rules_file(file))
    before = live.policy
    assert looked(live) == [False, False]
    assert live.policy is before


def test_a_pipe_in_its_place_is_not_waited_for(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LivePolicy(rules_file(file))
    file.unlink()
    os.mkfifo(file)
    assert looked(live) == [False, False]
    assert "is a pipe or a device" in caplog.text
    file.unlink()
    file.write_text(OTHER)
    assert looked(live) == [False, True]
    assert limit_of(live) == 20


def test_a_file_that_is_rewritten_with_the_same_size_and_time(file: Path) -> None:
    live = LivePolicy(rules_file(file))
    before = file.stat()

    def is_rewritten() -> bool:
        """The time of the change differs, once the clock of the file system has gone on."""
        file.write_text(OTHER)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return file.stat().st_ctime_ns != before.st_ctime_ns

    until(is_rewritten, "it is rewritten")
    assert looked(live) == [False, True]
    assert limit_of(live) == 20


def test_a_file_that_is_still_being_written_is_left_alone(file: Path) -> None:
    live = LivePolicy(rules_file(file))
    half = OTHER + "  # written in pieces\n"
    for end in range(35, len(half), 9):
        file.write_text(half[:end])
        assert not live.refresh()
    file.write_text(half)
    assert looked(live) == [False, True]
    assert live.statistics().failures == 0


def test_an_invalid_file_changes_nothing_and_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LivePolicy(rules_file(file))
    before = live.policy
    replaced(file, BAD)
    with caplog.at_level(logging.ERROR, "headgate.live"):
        assert looked(live) + looked(live) == [False] * 4
    assert live.policy is before
    assert (live.statistics().failures, live.statistics().loads) == (1, 1)
    assert "limit" in live.statistics().error
    assert "\n" not in caplog.text.strip()
    assert len(caplog.records) == 1
    replaced(file, OTHER)
    assert looked(live) == [False, True]
    assert (live.statistics().error, limit_of(live), live.policy.version) == ("", 20, 2)


def test_a_failure_is_logged_before_it_is_counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the metrics show that a file was refused, the log has the reason."""
    live = LivePolicy(rules_file(file))
    before, counted = live.statistics(), []

    class Counted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            counted.append((record.levelname, live.statistics()))

    monkeypatch.setattr(logging.getLogger("headgate.live"), "handlers", [Counted()])
    replaced(file, BAD)
    assert looked(live) == [False, False]
    assert (counted, live.statistics().failures) == ([("ERROR", before)], 1)


def test_rules_that_cannot_be_compiled_change_nothing(file: Path) -> None:
    live = LivePolicy(rules_file(file))
    rules = ["{id: a, limit: 1, window: 1m, replaces: [b]}", "{id: b, limit: 1, window: 1m, replaces: [a]}"]
    circle = f"version: 1\nrules: [{', '.join(rules)}]"
    replaced(file, circle)
    assert looked(live) == [False, False]
    assert limit_of(live) == 10


def test_without_first_rules_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(InvalidRule, match="cannot be read"):
        LivePolicy(rules_file(tmp_path / "rules.yaml"))
    (tmp_path / "rules.yaml").write_text(BAD)
    with pytest.raises(InvalidRule):
        LivePolicy(rules_file(tmp_path / "rules.yaml"))


def test_a_source_that_raises_anything_does_not_end_the_watch(file: Path) -> None:
    class Moody(FileSource[Ruleset]):
        looks = 0

        def changed(self) -> Ruleset | None:
            self.looks += 1
            if self.looks < 3:
                raise RuntimeError("a bug")
            return load(OTHER)

    with LivePolicy(Moody(file, load_file), every=0.01) as live:
        until(lambda: live.statistics().loads > 1, "the rules are in force")
        assert (limit_of(live), live.statistics().failures, live.statistics().error) == (20, 2, "")


def test_no_request_sees_half_of_a_change(tmp_path: Path) -> None:
    """Both rules always have the same limit in the file; many readers look while it is replaced again and again."""
    file = tmp_path / "rules.yaml"

    def text(limit: int) -> str:
        return "".join([f"- {{id: r{each}, limit: {limit}, window: 1m}}\n" for each in range(5)]).join(
            ["version: 1\nrules:\n", ""]
        )

    file.write_text(text(1))
    mixed, stop = [], threading.Event()
    with LivePolicy(rules_file(file), every=0.01) as live:

        def read() -> None:
            while not stop.is_set():
                limits = {limit.quota.limit for limit in live.policy.select(Request({"user": "ada"}), 0).enforced.plan}
                mixed.extend([limits] if len(limits) > 1 else [])

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for limit in range(2, 12):
            replaced(file, text(limit) if limit % 3 else BAD)
            until(
                lambda: live.statistics().error if limit % 3 == 0 else live.statistics().loads > 1,  # noqa: B023
                "it was looked at",
            )
        replaced(file, text(99))
        until(
            lambda: live.policy.select(Request({"user": "a"}), 0).enforced.plan[0].quota.limit == 99, "the last is in"
        )
        stop.set()
        for reader in readers:
            reader.join()
    assert mixed == []


def test_two_looks_at_once_never_put_the_older_rules_in_force(file: Path) -> None:
    seen, may_go = threading.Event(), threading.Event()

    class Slow(FileSource[Ruleset]):
        def changed(self) -> Ruleset | None:
            found = load(file.read_text())
            seen.set()
            assert may_go.wait(60)
            return found

    live = LivePolicy(Slow(file, load_file))
    first = threading.Thread(target=live.refresh)
    first.start()
    assert seen.wait(60)
    replaced(file, OTHER)
    second = threading.Thread(target=live.refresh)
    second.start()
    may_go.set()
    first.join()
    second.join()
    assert (limit_of(live), live.policy.version) == (20, 3)


def test_a_forked_child_continues_to_poll(file: Path) -> None:
    with LivePolicy(rules_file(file), every=0.01) as live:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads
            child = os.fork()
        if child == 0:  # nothing of pytest may run here
            os.read(reading, 1)
            give_up = time.monotonic() + 60
            while limit_of(live) != 20 and time.monotonic() < give_up:
                time.sleep(0.01)
            os._exit(0 if limit_of(live) == 20 else 1)
        replaced(file, OTHER)
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0


def test_what_is_never_closed_keeps_no_thread(file: Path) -> None:
    """Nor does an engine, which polls its file."""
    live, engine = LivePolicy(rules_file(file), every=0.01), Engine(file)
    live.start()
    watched = engine._verbs._rules
    assert isinstance(watched, LivePolicy)
    threads = live._thread, watched._thread
    del watched
    del live, engine
    gc.collect()
    for thread in threads:
        assert thread
        thread.join(60)
        assert not thread.is_alive()


def test_a_folder_of_files(tmp_path: Path) -> None:
    def names(folder: Path) -> list[str]:
        return [path.name for path in yaml_files(folder)]

    (tmp_path / "b.yaml").write_text("b")
    source = FileSource(tmp_path, names, yaml_files)
    assert source.read() == ["b.yaml"]
    (tmp_path / "a.yml").write_text("a")
    for other in (".hidden.yaml", "notes.txt"):
        (tmp_path / other).write_text("no rules")
    assert [source.changed(), source.changed(), source.changed()] == [None, ["a.yml", "b.yaml"], None]
    (tmp_path / "b.yaml").unlink()
    assert [source.changed(), source.changed()] == [None, ["a.yml"]]


@pytest.mark.parametrize("every", [True, 0, -1, 301, "often", None])
def test_bad_intervals_are_refused(file: Path, every: object) -> None:
    with pytest.raises(UsageError, match="every"):
        LivePolicy(rules_file(file), every=every)  # type: ignore[arg-type]


def test_files_that_are_found_named_are_watched_too(tmp_path: Path) -> None:
    """Also one that was not there; and no longer when nothing names it any more."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("second")

    def content(path: Path) -> str:
        name = path.read_text()
        if name == "nothing":
            return name
        source.also(tmp_path / name)
        return (tmp_path / name).read_text()

    source = FileSource(first, content)
    second.write_text("one")
    live = Live(source, lambda text, _: text, what="words")
    assert [live.refresh(), live.refresh(), live.value] == [False, False, "one"]
    second.write_text("another")
    assert [live.refresh(), live.refresh(), live.value] == [False, True, "another"]
    second.unlink()
    assert [live.refresh(), live.refresh(), live.value] == [False, False, "another"]
    second.write_text("three")
    assert [live.refresh(), live.refresh(), live.value] == [False, True, "three"]
    first.write_text("nothing")
    assert [live.refresh(), live.refresh(), live.value] == [False, True, "nothing"]
    second.write_text("four")
    assert [live.refresh(), live.refresh(), live.refresh()] == [False] * 3
    assert (live.statistics().loads, live.statistics().failures) == (4, 1)


def test_a_reload_does_not_wait_until_the_file_settles(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LivePolicy(rules_file(file))
    with caplog.at_level(logging.INFO, "headgate.live"):
        replaced(file, OTHER)
        assert live.reload()
        assert (limit_of(live), looked(live)) == (20, [False, False])
        replaced(file, BAD)
        assert not live.reload()
        assert (limit_of(live), looked(live)) == (20, [False, False])
    messages = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert messages[0] == "version 2 of the rules is in force"
    assert messages[1].startswith("the previous rules stay in force: ")
    assert len(messages) == 2


def test_each_change_with_a_time_starts_afresh(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that makes the limit what it was before; without the time, what was counted before is found again."""
    file = tmp_path / "rules.yaml"

    def written(limit: int, day: int) -> None:
        updated = f", updated_at: 2026-01-{day:02}T00:00:00Z" if day else ""
        file.write_text(f"version: 1\nrules: [{{id: a, limit: {limit}, window: 1h, reset_on_change: true{updated}}}]\n")

    for days, passing in (((1, 2, 3), [2, 3, 2]), ((0, 0, 0), [2, 3, 0])):
        caplog.clear()
        written(2, days[0])
        live = LivePolicy(rules_file(file))
        counts = []
        with Engine(live) as engine:
            for limit, day in zip((2, 3, 2), days, strict=True):
                written(limit, day)
                live.reload()
                counts.append(sum(engine.check(Request({"user": "ada"})).allowed for _ in range(5)))
        assert counts == passing
        warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert ["rule a was changed back" in message for message in warned] == [True] * (passing[2] == 0)
