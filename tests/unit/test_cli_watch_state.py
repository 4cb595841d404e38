"""What a watcher knows of a task."""

from __future__ import annotations

from typing import Any

from tenure.cli.watch_state import MAX_TEXT, LiveTextView, WatchedTask
from tenure.domain.states import TaskState
from tenure.v1 import task_pb2
from tests.unit.cli_entries import FIRST, SECOND, Ledger, piece


def watched(*entries: Any) -> Any:
    task = WatchedTask()
    for entry in entries:
        task.apply(entry)
    return task


def test_pieces_become_one_text() -> None:
    live = LiveTextView()
    for part in (piece("Hello ", 0), piece("world", 6)):
        assert not live.apply(part)
    assert live.text == "Hello world"


def test_a_repeated_piece_of_text_is_printed_once() -> None:
    live = LiveTextView()
    for part in (piece("Hello ", 0), piece("world", 6), piece("Hello world, again", 0), piece("Hello", 0)):
        live.apply(part)
    assert live.text == "Hello world, again"


def test_a_gap_in_the_pieces_is_shown() -> None:
    live = LiveTextView()
    live.apply(piece("Hello ", 0))
    live.apply(piece("end", 100))
    assert live.text == "Hello …end"


def test_a_new_block_is_a_new_paragraph() -> None:
    live = LiveTextView()
    live.apply(piece("one", 0))
    live.apply(piece("two", 0, block=1))
    live.apply(piece("late", 3, block=0))
    assert live.text == "one\n\ntwo"


def test_a_later_attempt_or_step_discards_partial_text() -> None:
    for later in (piece("B", 0, attempt=2), piece("B", 0, step=2), piece("B", 0, epoch=SECOND, attempt=2)):
        live = LiveTextView()
        live.apply(piece("A", 0))
        assert live.apply(later)
        assert live.text == "B"


def test_text_of_a_joined_call_continues() -> None:
    live = LiveTextView()
    live.apply(piece("Hello ", 0, epoch=FIRST))
    assert not live.apply(piece("Hello world", 0, epoch=SECOND))
    assert live.text == "Hello world"


def test_text_of_an_earlier_attempt_or_a_fenced_owner_is_ignored() -> None:
    live = LiveTextView()
    live.apply(piece("new", 0, epoch=SECOND, attempt=2))
    for stale in (piece("old", 3, epoch=FIRST, attempt=9), piece("old", 3, epoch=SECOND, attempt=1)):
        assert not live.apply(stale)
    assert live.text == "new"


def test_unfinished_text_is_bounded() -> None:
    live = LiveTextView()
    for number in range(4):
        live.apply(piece("x" * MAX_TEXT, number * MAX_TEXT))
    assert len(live.text) == MAX_TEXT


def test_second_worker_is_a_takeover() -> None:
    ledger = Ledger()
    task = watched(ledger.queued(), ledger.opened(), ledger.lost(), ledger.opened("worker-2", SECOND))
    assert (task.takeovers, task.owner, task.epoch) == (1, "worker-2", SECOND)


def test_retry_is_not_a_takeover() -> None:
    ledger = Ledger()
    task = watched(
        ledger.queued(),
        ledger.opened(),
        ledger.move("RETRY_SCHEDULED", "RUNNING", reason="MODEL_RATE_LIMITED"),
        ledger.move("QUEUED", "RETRY_SCHEDULED", reason="RETRY_DUE"),
        ledger.opened("worker-2", SECOND),
    )
    assert task.takeovers == 0


def test_calls_are_open_until_their_outcome() -> None:
    ledger = Ledger()
    task = watched(ledger.queued(), ledger.opened(), ledger.intent("1.0", "a"), ledger.intent("1.1", "b"))
    assert list(task.calls) == ["1.0", "1.1"]
    task.apply(ledger.outcome("1.0"))
    assert list(task.calls) == ["1.1"]


def test_a_model_call_is_under_way_until_it_is_answered() -> None:
    ledger = Ledger()
    task = watched(ledger.queued(), ledger.opened(), ledger.attempt(1))
    assert task.attempt is not None
    task.apply(ledger.answer(1, "text"))
    assert task.attempt is None
    assert task.step == 1


def test_the_end_is_known() -> None:
    ledger = Ledger()
    task = watched(ledger.queued(), ledger.opened())
    assert not task.ended
    task.apply(ledger.move("CANCELLED", "RUNNING", reason="CANCEL_REQUESTED"))
    assert task.ended
    assert task.state is TaskState.CANCELLED


def test_an_answer_counts_towards_the_budget_at_once() -> None:
    """The ledger tells the budget before a call. A watcher must not read "0 tokens used" below an answer."""
    ledger = Ledger()
    attempt = ledger.attempt(1)
    rates = task_pb2.ModelPrices.Tier(input=1000 * 10**6, output=5000 * 10**6)
    attempt.body.model_attempt.prices.CopyFrom(task_pb2.ModelPrices(tiers=[rates]))
    attempt.body.model_attempt.reserved_tokens, attempt.body.model_attempt.reserved_nano_usd = 9000, 8_000_000
    status = task_pb2.BudgetStatus(max_tokens=20_000, reserved_tokens=9500, reserved_nano_usd=8_500_000)
    attempt.body.model_attempt.budget.CopyFrom(status)
    task = watched(ledger.queued(), ledger.opened(), attempt, ledger.answer(1, "Hello"))
    budget = task.budget
    assert (budget.used_tokens, budget.reserved_tokens) == (2397, 500)
    assert (budget.used_nano_usd, budget.reserved_nano_usd) == (2310 * 1000 + 87 * 5000, 500_000)
