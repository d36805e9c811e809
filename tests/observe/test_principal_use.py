"""Usage by principal, counted in a bounded sample that is the same in every worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from headgate.core.plan import Limit
from headgate.core.quota import Quota
from headgate.observe import principal_use
from headgate.observe.principal_use import MINUTE_US, POSITIONS, PrincipalUse, WindowUse, passed_over
from headgate.observe.workers import USES

BEGIN = 1_800_000_000_000_000
MINUTELY = Quota(5, MINUTE_US)


def record(
    use: PrincipalUse, quota: Quota = MINUTELY, *, rule: str = "orders", names: Iterable[str] = (), **units: int
) -> None:
    """Record the units of principals, and one unit for each of `names`."""
    for principal, cost in (dict.fromkeys(names, 1) | units).items():
        use.record((Limit(f"{rule}@user|{quota.shape}", principal, quota),), cost)


def taken(use: PrincipalUse, now: int) -> list[WindowUse]:
    """Let time pass; return the windows that are ready."""
    use.second(now)
    return use.take()


def test_a_window_is_returned_when_it_has_ended() -> None:
    use = PrincipalUse(now=BEGIN)
    record(use, ada=3, bob=1)
    record(use, ada=2)
    assert taken(use, BEGIN + MINUTE_US - 1) == []
    (window,) = taken(use, BEGIN + MINUTE_US)
    assert (window.rule, window.window_us, window.limit, window.at, window.level) == ("orders", MINUTE_US, 5, BEGIN, 0)
    assert sorted(window.principals.values()) == [1, 5]
    assert taken(use, BEGIN + 2 * MINUTE_US) == []  # without requests


def test_a_long_window_is_returned_every_minute() -> None:
    use, daily = PrincipalUse(now=BEGIN), Quota(5, 1440 * MINUTE_US)
    record(use, daily, ada=3)
    (first,) = taken(use, BEGIN + MINUTE_US)
    record(use, daily, ada=4)
    (second,) = taken(use, BEGIN + 2 * MINUTE_US)
    assert (first.at, list(first.principals)) == (second.at, list(second.principals))
    assert [*first.principals.values(), *second.principals.values()] == [3, 4]


def test_each_of_several_limits_is_counted() -> None:
    use = PrincipalUse(now=BEGIN)
    use.record(tuple([Limit(f"{name}@user|{MINUTELY.shape}", "ada", MINUTELY) for name in ("one", "two")]), 7)
    found = use.take(everything=True)
    assert {window.rule: list(window.principals.values()) for window in found} == {"one": [7], "two": [7]}


def test_each_limit_of_a_rule_has_its_own_counts_which_survive_a_reload() -> None:
    use = PrincipalUse(now=BEGIN)
    record(use, ada=1)
    record(use, Quota(50, MINUTE_US), gold=2)
    record(use, Quota(5, MINUTE_US), ada=1)  # the rules were loaded again
    found = {window.limit: list(window.principals.values()) for window in use.take(everything=True)}
    assert found == {5: [2], 50: [2]}


def test_workers_with_different_traffic_sample_the_same_principals() -> None:
    names = [f"user-{number}" for number in range(4000)]
    busy, calm = PrincipalUse(most=100, now=BEGIN), PrincipalUse(most=100, now=BEGIN)
    record(busy, names=names)
    record(calm, names=names[:150])
    (many,), (few,) = busy.take(everything=True), calm.take(everything=True)
    assert 20 < len(many.principals) <= 100
    assert many.level > few.level > 0
    assert all(principal >> 31 < POSITIONS >> many.level for principal in many.principals)
    known = {principal for principal in few.principals if principal >> 31 < POSITIONS >> many.level}
    assert known <= many.principals.keys()
    assert 0.6 < (len(many.principals) << many.level) / len(names) < 1.6


def test_the_sample_grows_again_and_differs_in_each_window() -> None:
    use, samples = PrincipalUse(most=50, now=BEGIN), []
    for window in range(12):
        names = [f"user-{number}" for number in range(1000 if window < 3 else 10)]
        record(use, names=names)
        samples += taken(use, BEGIN + (window + 1) * MINUTE_US)
    levels = [window.level for window in samples]
    assert max(levels) == levels[2] >= 4
    assert levels[-1] == 0
    assert not samples[0].principals.keys() & samples[1].principals.keys()


def test_an_empty_sample_is_reported_too() -> None:
    """Other workers may have seen principals outside this sample."""
    use = PrincipalUse(most=20, now=BEGIN)
    record(use, names=[f"user-{number}" for number in range(1000)])
    (window,) = taken(use, BEGIN + MINUTE_US)
    (quiet,) = taken(use, BEGIN + 2 * MINUTE_US)
    assert quiet.level >= window.level - 1 > 0
    assert quiet.principals == {}


def test_of_short_windows_one_in_each_minute_is_measured_the_same_everywhere() -> None:
    quota, windows = Quota(5, 7_000_000), []
    workers = PrincipalUse(now=BEGIN), PrincipalUse(now=BEGIN)
    for second in range(7 * 60):
        for use in workers:
            record(use, quota, ada=1)
            windows += taken(use, BEGIN + (second + 1) * 1_000_000)
    assert passed_over(7_000_000) == 9
    begins = Counter(window.at for window in windows)
    assert 6 <= len(begins) <= 7
    assert set(begins.values()) == {2}
    assert all(sum(window.principals.values()) <= 7 for window in windows)


def test_the_number_of_measured_limits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_use, "MOST_SERIES", 20)
    use = PrincipalUse(now=BEGIN)
    for limit in range(1, 20):
        record(use, Quota(limit, MINUTE_US), ada=1)
    assert len(use.take(everything=True)) == principal_use.MOST_LIMITS
    for number in range(30):
        record(use, rule=f"rule{number}", ada=1)
    for quota in (Quota(1, 400 * 1440 * MINUTE_US), Quota.one_off(5)):
        record(use, quota, rule="long", ada=1)
    use.record((Limit(f"override|{MINUTELY.shape}", "a", MINUTELY),), 1)
    assert len(use.take(everything=True)) == 20 - principal_use.MOST_LIMITS


def test_long_principals_are_counted_by_their_digest() -> None:
    use = PrincipalUse(now=BEGIN)
    limit = Limit(f"orders@user|{MINUTELY.shape}", b"\x01" * 16, MINUTELY)
    use.record((limit,), 2)
    assert [list(window.principals.values()) for window in use.take(everything=True)] == [[2]]


class TestFiles:
    USE = WindowUse("orders", MINUTE_US, 5, BEGIN, 0, {7: 1})

    def test_records_of_workers_are_read_once(self, tmp_path: Path) -> None:
        USES.leave(tmp_path, 0, [self.USE])
        USES.leave(tmp_path, 1, [self.USE, self.USE])
        USES.leave(tmp_path, 1, [])
        assert list(USES.left_in(tmp_path)) == [self.USE] * 3
        assert list(USES.left_in(tmp_path)) == []

    def test_unread_files_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headgate.observe.workers.MOST_FILES", 3)
        for _ in range(9):
            USES.leave(tmp_path, 0, [self.USE])
        assert len(list(USES.left_in(tmp_path))) == 3

    def test_files_that_cannot_be_written_or_read_are_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        USES.leave(tmp_path / "gone", 0, [self.USE])
        (tmp_path / "0-1.use").write_bytes(b"\xc1 not that")
        assert list(USES.left_in(tmp_path)) == []
        assert "cannot hand over a worker's records" in caplog.messages[0]
        assert "0-1.use: MessagePack" in caplog.messages[1]
