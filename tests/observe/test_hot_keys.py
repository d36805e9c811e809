"""Hot keys: what is asked about and refused most, over all workers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headgate.observe.hot_keys import DENIALS, EVERY, HotKey, HotKeys, HotList, merged
from headgate.observe.principals import Principals
from headgate.observe.recorder import Recorder
from headgate.observe.slots import Slots


def test_the_hottest_come_first_with_their_rates() -> None:
    hot = HotKeys(Principals(plain=True))
    for _ in range(3):
        hot.asked("orders", "alice")
    hot.asked("orders", "bob")
    first, second = hot.top().hot
    assert (first.key, second.key) == ("alice", "bob")
    assert first.per_second > 2 * second.per_second


def test_principals_are_shown_as_digests_unless_told() -> None:
    hot = HotKeys(Principals())
    hot.asked("orders", "alice")
    (key,) = hot.top().hot
    assert key.key.startswith("#")
    assert "alice" not in key.key


def test_all_refusals_count_until_there_are_many() -> None:
    hot = HotKeys(Principals())
    weights = [hot.wants_denial() for _ in range(DENIALS + 1000 * EVERY)]
    assert weights[:DENIALS] == [1] * DENIALS
    assert set(weights[DENIALS:]) == {0, EVERY}
    assert 500 <= weights.count(EVERY) <= 2000
    hot.second()
    assert hot.wants_denial() == 1


def test_lists_of_workers_are_merged_by_key() -> None:
    one = HotList((HotKey("r", "a", 5.0), HotKey("r", "b", 4.0)), (HotKey("r", "a", 1.0),))
    other = HotList((HotKey("r", "b", 3.0), HotKey("s", "a", 1.0)))
    assert merged([one, other]) == HotList(
        (HotKey("r", "b", 7.0), HotKey("r", "a", 5.0), HotKey("s", "a", 1.0)), (HotKey("r", "a", 1.0),)
    )
    assert len(merged([one, other], most=1).hot) == 1


def test_any_worker_shows_the_keys_of_all_that_live(tmp_path: Path) -> None:
    slots = [Slots(tmp_path) for _ in range(3)]
    workers = [Recorder(each, number, principals=Principals(plain=True)) for number, each in enumerate(slots)]
    for number, worker in enumerate(workers):
        for _ in range(10):
            worker._hot.denied("orders", f"user-{number}", 100)
            worker._hot.denied("orders", "everywhere", 100)
        worker.publish()
    workers[2].close()
    report = msgspec.json.decode(workers[0].hot_keys())
    assert report["workers"] == 2
    assert [each["key"] for each in report["denied"]] == ["everywhere", "user-0", "user-1"]
    for worker in workers[:2]:
        worker.close()
    assert not list(tmp_path.glob("*.hot"))


def test_traffic_with_a_rhythm_is_sampled_fairly() -> None:
    hot = HotKeys(Principals(plain=True))
    for number in range(DENIALS + 4000 * EVERY):
        weight = hot.wants_denial()
        if weight:
            hot.denied("orders", f"user-{number % 2}", weight)
    one, other = hot.top().denied
    assert one.per_second < 1.5 * other.per_second
