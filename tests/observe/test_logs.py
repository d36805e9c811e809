"""Logs: one line for each event, whatever it contains; refusals are sampled, and the others counted."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UsageError
from headgate.observe.logs import (
    IN_ALL,
    LONGEST_TEXT,
    LONGEST_TRACE,
    MOST_FIELDS,
    Denials,
    JsonLines,
    Principals,
    TextLines,
    clean,
    fields,
    setup,
)


def record(message: str, /, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("headgate.test", logging.WARNING, __file__, 1, message, args, None)
    made.created = 1_000_000_000.5
    for name, value in fields(**extra).items():  # type: ignore[arg-type]
        setattr(made, name, value)
    return made


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored after the test."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


def test_a_line_of_text() -> None:
    line = TextLines().format(record("the store %s", "is down", rule="orders", count=3, text='two "words"', none=None))
    assert line == (
        '2001-09-09T01:46:40.500Z WARNING headgate.test the store is down rule=orders count=3 text="two \\"words\\""'
    )


def test_a_line_of_json() -> None:
    assert msgspec.json.decode(JsonLines().format(record("the store %s", "is down", rule="orders", count=3))) == {
        "time": "2001-09-09T01:46:40.500Z",
        "level": "warning",
        "logger": "headgate.test",
        "message": "the store is down",
        "rule": "orders",
        "count": 3,
    }


@given(st.text(), st.text())
def test_no_text_breaks_a_line(message: str, value: str) -> None:
    for formatter in (JsonLines(), TextLines()):
        line = formatter.format(record("%s", message, principal=value))
        assert line.isprintable()
        line.encode()
    read = msgspec.json.decode(JsonLines().format(record("%s", message, principal=value)))
    assert (read["message"], read["principal"]) == (clean(message), clean(value))


def test_control_characters_are_escaped() -> None:
    line = "2026-01-01T00:00:00Z INFO headgate all is well"
    cases = {
        f"x\n{line}": rf"x\n{line}",
        "x\r\n\x1b[2J": r"x\r\n\x1b[2J",
        "\x9b31m": r"\x9b31m",
        "\u2028\u202e": r"\u2028\u202e",
        "\ud800": r"\ud800",
    }
    for attack, shown in cases.items():
        assert clean(attack) == shown


def test_a_field_cannot_replace_another() -> None:
    read = msgspec.json.decode(JsonLines().format(record("hello", level="critical", message="forged")))
    assert (read["level"], read["message"]) == ("warning", "hello")
    assert " level=critical " in TextLines().format(record("hello", level="critical", more=1))
    assert TextLines().format(record("hello", who="a rule=b")).endswith('who="a rule=b"')


def test_long_texts_are_cut_and_fields_are_bounded() -> None:
    long = "x" * 100_000
    line = JsonLines().format(record(long, **{f"field{number}": long for number in range(100)}))
    assert len(line) < (MOST_FIELDS + 1) * (LONGEST_TEXT + 100)
    assert "... (100000 characters)" in line


def test_a_traceback_cannot_look_like_another_event() -> None:
    error = ValueError("oops\n2026-01-01T00:00:00Z INFO headgate all is well" + "x" * 50_000)
    made = record("failed")
    made.exc_info = type(error), error, None
    first, *rest = TextLines().format(made).split("\n")
    assert first.endswith("failed ")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert sum(map(len, rest)) < LONGEST_TRACE + 1000
    read = msgspec.json.decode(JsonLines().format(made))
    assert read["trace"]


def test_setup_writes_all_logs_of_the_level_to_one_stream(root: logging.Logger) -> None:
    for form, begin, end in (("json", '{"time":', '"rule":"a","worker":1}'), ("text", "20", " rule=a worker=1")):
        stream = io.StringIO()
        for level in ("info", "Info"):
            assert setup(form, level, stream, worker=1) in root.handlers
        assert len(root.handlers) == 1
        logging.getLogger("headgate.any").info("hello", extra=fields(rule="a"))
        logging.getLogger("headgate.any").debug("invisible")
        (line,) = stream.getvalue().splitlines()
        assert line.startswith(begin)
        assert "hello" in line
        assert line.endswith(end)


def test_the_error_of_a_wrong_setting_lists_the_right_ones() -> None:
    with pytest.raises(UsageError, match="text, json"):
        setup("xml")
    with pytest.raises(UsageError, match="debug, info"):
        setup("json", "loud")


def refuse(denials: Denials, rule: str, times: int = 1) -> None:
    for _ in range(times):
        if denials.wants(rule):
            denials.log(rule, "alice", api="check", retry_after_us=1_500_000)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(each.getMessage(), each.__dict__["headgate_fields"]) for each in caplog.records]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_principals_are_digests_by_default(caplog: pytest.LogCaptureFixture) -> None:
    refuse(Denials(Principals()), "orders")
    ((_, line),) = lines(caplog)
    assert line["principal"] == Principals().shown("alice") != "alice"


def test_lines_are_limited_per_rule_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials(Principals(), per_rule=2)
    refuse(denials, "orders", 10)
    refuse(denials, "search", 3)
    refuse(denials, "quiet", 1)
    assert [line["rule"] for _, line in lines(caplog)] == ["orders"] * 2 + ["search"] * 2 + ["quiet"]
    caplog.clear()
    assert denials.second() == 9
    left_out = {"count": 9, "of_rules": 2, "first": "orders: 8, search: 1"}
    assert lines(caplog) == [("denials not logged", left_out)]
    caplog.clear()
    assert denials.second() == 0
    refuse(denials, "orders")
    assert len(lines(caplog)) == 1


def test_all_rules_together_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials(Principals(), per_rule=2)
    for rule in range(195):
        refuse(denials, f"rule-{rule}")
    assert len(lines(caplog)) == IN_ALL == 100
    assert denials.second() == 95


def test_refusals_are_not_logged_with_a_rate_of_0() -> None:
    denials = Denials(Principals(), per_rule=0)
    assert not denials.wants("orders")
    assert denials.second() == 0
    with pytest.raises(UsageError):
        Denials(Principals(), per_rule=-1)


def test_digests_are_stable() -> None:
    """Operators compare them with those of other nodes, versions and `headgate who`."""
    assert Principals().shown("alice") == "#4deaec0cce54da89"
    assert Principals().shown("\ud800") != Principals().shown("alice")
