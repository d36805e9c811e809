"""Hot keys: the keys with the most checks and refusals over all workers, in bounded memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.observe.hot_keys import DENIALS, EVERY, HALF_LIFE, Frequent, HotKey, HotKeys, HotList, merged_lists
from headgate.observe.logs import Principals
from headgate.observe.recorder import Recorder
from headgate.observe.workers import CounterFiles


def test_the_hottest_come_first_with_their_rates() -> None:
    hot = HotKeys(Principals(plain=True))
    for _ in range(3):
        hot.add("orders", "alice")
    hot.add("orders", "bob")
    first, second = hot.top().hot
    assert (first.key, second.key) == ("alice", "bob")
    assert first.per_second > 2 * second.per_second


def test_all_refusals_count_until_there_are_many() -> None:
    hot = HotKeys(Principals())
    strides = [hot.denial_stride() for _ in range(DENIALS + 1000)]
    assert strides[: DENIALS - 1] == [1] * (DENIALS - 1)
    assert set(strides[DENIALS:]) <= {*range(1, 2 * EVERY)}
    assert 0.8 * EVERY <= sum(strides[DENIALS:]) / 1000 <= 1.2 * EVERY
    hot.second()
    assert hot.denial_stride() == 1


def test_lists_of_workers_are_merged_by_key() -> None:
    one = HotList((HotKey("r", "a", 5.0), HotKey("r", "b", 4.0)), (HotKey("r", "a", 1.0),))
    other = HotList((HotKey("r", "b", 3.0), HotKey("s", "a", 1.0)), (), (HotKey("t", "a", 2.0),))
    assert merged_lists([one, other]) == HotList(
        (HotKey("r", "b", 7.0), HotKey("r", "a", 5.0), HotKey("s", "a", 1.0)),
        (HotKey("r", "a", 1.0),),
        (HotKey("t", "a", 2.0),),
    )
    assert len(merged_lists([one, other], most=1).hot) == 1


def test_any_worker_shows_the_keys_of_all_live_workers(tmp_path: Path) -> None:
    files = [CounterFiles(tmp_path) for _ in range(3)]
    workers = [Recorder(each, number, principals=Principals(plain=True)) for number, each in enumerate(files)]
    for number, worker in enumerate(workers):
        for _ in range(10):
            worker._hot.add_denial("orders", f"user-{number}", 100)
            worker._hot.add_denial("orders", "everywhere", 100)
        worker.publish()
    workers[2].close()
    report = msgspec.json.decode(workers[0].hot_keys())
    assert report["workers"] == 2
    assert [each["key"] for each in report["denied"]] == ["everywhere", "user-0", "user-1"]
    for worker in workers[:2]:
        worker.close()
    assert not list(tmp_path.glob("*.hot"))


def test_periodic_traffic_is_sampled_fairly() -> None:
    hot = HotKeys(Principals(plain=True))
    number = 0
    for _ in range(DENIALS + 4000):
        weight = hot.denial_stride()
        number += weight
        hot.add_denial("orders", f"user-{number % 2}", weight)
    one, other = hot.top().denied
    assert one.per_second < 1.5 * other.per_second


@given(st.lists(st.integers(0, 30)), st.integers(1, 8))
def test_counts_are_never_too_high_and_heavy_keys_are_never_missed(keys: list[int], size: int) -> None:
    """By the bound of Misra and Gries, keys with more than 1 / `size` of all are found."""
    frequent: Frequent[int] = Frequent(size)
    for key in keys:
        frequent.add(key)
        assert len(frequent) <= 2 * size
    exact = Counter(keys)
    found = dict(frequent._counts)
    assert all(count <= exact[key] for key, count in found.items())
    assert all(key in found for key, count in exact.items() if count * size > len(keys))


def test_the_heaviest_of_many_keys_are_found_in_bounded_memory() -> None:
    frequent: Frequent[str] = Frequent(500)
    heavy = [f"heavy-{number}" for number in range(10)]
    random = Random(1)
    for number in range(200_000):
        frequent.add(f"key-{number}")
        if number % 10 == 0:
            frequent.add(heavy[random.randrange(10)])
    assert len(frequent) <= 1000
    assert {key for key, _ in frequent.top(10)} == set(heavy)


def test_a_steady_key_is_shown_with_its_rate() -> None:
    frequent: Frequent[str] = Frequent(10)
    for _ in range(200):
        for _ in range(50):
            frequent.add("steady")
        frequent.second()
    ((key, rate),) = frequent.top(5)
    assert key == "steady"
    assert 45 <= rate <= 51


def test_keys_without_requests_are_forgotten() -> None:
    frequent: Frequent[str] = Frequent(10)
    frequent.add("old", 1000)
    (_, before), *_ = frequent.top(1)
    for _ in range(HALF_LIFE):
        frequent.second()
    (_, after), *_ = frequent.top(1)
    assert abs(after / before - 0.5) < 0.01
    for _ in range(20 * HALF_LIFE):
        frequent.second()
    assert len(frequent) == 0
