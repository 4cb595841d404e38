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


def test_crash_blocks_a_slot_for_its_backoff(clock: list[float]) -> None:
    resting = CrashBackoff()
    assert resting.count() == 0
    resting.after_crash()
    assert resting.count() == 1
    clock[0] += 1.01
    assert resting.count() == 0


def test_backoff_doubles_to_a_limit(clock: list[float]) -> None:
    resting = CrashBackoff()
    for _ in range(20):
        resting.after_crash()
    clock[0] += 59.0
    assert resting.count() == 14  # 1, 2, 4 … 32 s are over
    clock[0] += 2.0
    assert resting.count() == 0


def test_finished_task_resets_the_backoff(clock: list[float]) -> None:
    resting = CrashBackoff()
    for _ in range(5):
        resting.after_crash()
    clock[0] += 61.0
    resting.after_success()
    resting.after_crash()
    clock[0] += 1.01
    assert resting.count() == 0
