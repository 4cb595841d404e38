"""A slot rests after a crash, the longer the more crashes came in a row."""

from __future__ import annotations

import pytest

from services.worker import supervisor
from services.worker.supervisor import CrashBackoff


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(supervisor, "monotonic", lambda: now[0])
    return now


def test_a_crash_takes_a_slot_for_a_while(clock: list[float]) -> None:
    resting = CrashBackoff()
    assert resting.count() == 0
    resting.after_crash()
    assert resting.count() == 1
    clock[0] += 1.01
    assert resting.count() == 0


def test_crashes_in_a_row_rest_longer_and_never_for_ever(clock: list[float]) -> None:
    resting = CrashBackoff()
    for _ in range(20):
        resting.after_crash()
    clock[0] += 59.0
    assert resting.count() == 14  # 1, 2, 4 … 32 s are over
    clock[0] += 2.0
    assert resting.count() == 0


def test_a_task_that_was_done_makes_the_next_rest_a_short_one(clock: list[float]) -> None:
    resting = CrashBackoff()
    for _ in range(5):
        resting.after_crash()
    clock[0] += 61.0
    resting.after_success()
    resting.after_crash()
    clock[0] += 1.01
    assert resting.count() == 0
