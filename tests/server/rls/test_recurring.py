"""Questions that come again and again."""

from __future__ import annotations

from headgate.policy.request import Request
from headgate.server.rls.recurring import LONGEST, MOST, Recurring
from tests.server.rls.conftest import Asking
from tests.server.rls.messages import OK, OVER_LIMIT, descriptor

REQUEST = Request({"user": "ada"})


def test_a_question_is_kept_when_it_comes_a_second_time() -> None:
    recurring = Recurring()
    assert recurring.find(b"question") is None
    recurring.note(b"question", REQUEST)
    assert recurring.find(b"question") is None
    recurring.note(b"question", REQUEST)
    assert recurring.find(b"question") is REQUEST


def test_what_is_kept_is_bounded() -> None:
    recurring = Recurring()
    for number in range(2 * MOST):
        for _ in range(2):
            recurring.note(b"%d" % number, REQUEST)
    assert 0 < sum(recurring.find(b"%d" % number) is not None for number in range(2 * MOST)) <= MOST
    for _ in range(3):
        recurring.note(b"x" * (LONGEST + 1), REQUEST)
    assert recurring.find(b"x" * (LONGEST + 1)) is None


def test_a_question_has_the_same_answer_however_often_it_comes(service: Asking) -> None:
    service.serve("rules: [{id: per-user, dimension: user, limit: 5, window: 1h, algorithm: fixed_window}]")
    ada = [("user", "ada")]
    answers = [service.ask(ada) for _ in range(6)]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [4, 3, 2, 1, 0, 0]
    assert [answer.overall_code for answer in answers] == [OK] * 5 + [OVER_LIMIT]
    for strange in ([("user", "bob"), ("path", "//a")], descriptor(("user", "bob"), hits=6)):
        assert [service.codes(strange) for _ in range(3)] == [[OVER_LIMIT, OVER_LIMIT]] * 3
    assert [service.ask(descriptor(("user", "bob"), hits=0)).statuses[0].limit_remaining for _ in range(3)] == [5] * 3
