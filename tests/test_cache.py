"""A cache has an end, and not all is forgotten when it comes."""

from __future__ import annotations

from headgate.cache import BoundedCache, Prepared


def test_of_a_full_cache_the_older_half_is_forgotten() -> None:
    cache = BoundedCache[int, int](8)
    for number in range(8):
        assert cache.keep(number, number) == number
    cache.keep(0, -1)
    assert cache == {0: -1} | {number: number for number in range(1, 8)}
    cache.keep(8, 8)
    assert [*cache] == [4, 5, 6, 7, 8]


def test_there_is_an_end_to_it() -> None:
    for most in (1, 2, 7):
        cache = BoundedCache[int, int](most)
        for number in range(100):
            cache.keep(number, number)
            assert number in cache
            assert len(cache) <= most


def test_equal_things_are_prepared_apart_and_kept_as_long_as_what_is_prepared_of_them() -> None:
    made: list[str] = []

    def prepare(name: str, thing: list[int]) -> int:
        made.append(name)
        return len(thing)

    prepared = Prepared(prepare, 2)
    one: list[int] = []
    assert [prepared.of("a", one), prepared.of("b", one), prepared.of("a", one)] == [0, 0, 0]
    assert made == ["a", "b"]
    assert [prepared.of("a", [0] * size) for size in range(100)] == [*range(100)]  # none of them lives on
    assert len(prepared) <= 2
