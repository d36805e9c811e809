"""A cache has an end, and what comes once does not push out what is used."""

from __future__ import annotations

from headgate.cache import BoundedCache


def test_what_comes_once_does_not_push_out_what_is_used() -> None:
    cache = BoundedCache[str, int](8)
    for number in range(4):
        cache.keep(f"used-{number}", number)
    for number in range(1000):
        assert cache.keep(f"once-{number}", number) == number
    assert cache == {f"used-{number}": number for number in range(4)}


def test_what_comes_again_is_remembered_and_there_is_an_end_to_it() -> None:
    cache = BoundedCache[int, int](8)
    for number in [*range(4), 4, 4, 5, 5, 6, 6, 7, 7]:
        cache.keep(number, number)
    assert [*cache] == [*range(8)]
    cache.keep(0, -1)
    assert cache[0] == -1
    for _ in range(2):
        cache.keep(8, 8)
    assert cache == {8: 8}
