"""A cache has an end, and not all is forgotten when it comes."""

from __future__ import annotations

from headgate.cache import BoundedCache, Prepared


def test_a_full_cache_evicts_a_few_of_its_oldest_entries() -> None:
    cache = BoundedCache[int, int](128)
    for number in range(128):
        assert cache.keep(number, number) == number
    cache.keep(0, -1)
    assert cache == {0: -1} | {number: number for number in range(1, 128)}
    cache.keep(128, 128)
    assert [*cache] == [*range(3, 129)]


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
