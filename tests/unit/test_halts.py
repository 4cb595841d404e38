"""A task that no worker can carry on waits longer after each try, and ends with the reason."""

from __future__ import annotations

from services.checkpoint.halt_rules import HALTS, Pause, after_halt
from tenure.domain.close_out import PendingEnding
from tenure.domain.states import Reason, TaskState


def test_the_first_halt_costs_no_time() -> None:
    assert after_halt(0, "no tools", 0.5) is None


def test_pauses_grow_to_their_cap() -> None:
    pauses = [after_halt(halts, "no tools", 1.0) for halts in range(1, HALTS.max_attempts - 1)]
    seconds = [pause.seconds for pause in pauses if isinstance(pause, Pause)]
    assert len(seconds) == len(pauses)
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (1.0, HALTS.cap_seconds)
    assert 80_000 < sum(seconds) < 100_000  # about a day


def test_too_many_halts_end_the_task() -> None:
    ending = after_halt(HALTS.max_attempts - 1, "UNAVAILABLE: no tools", 0.5)
    assert isinstance(ending, PendingEnding)
    assert (ending.to_state, ending.reason) == (TaskState.FAILED, Reason.WORKER_HALTED)
    assert "no tools" in ending.message
