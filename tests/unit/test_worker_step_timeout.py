"""The clock of a step: it interrupts what takes too long, and nothing that was in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.worker.interrupts import Interrupted, Interruption, Interrupts, StepClock
from services.worker.transitions import late_transition
from tenure.domain.fold import ResumePoint
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import TaskPolicy
from tenure.domain.timeouts import Phase, PhaseTimeout, TimeoutAction, Timeouts

LONG = 60.0


async def test_a_step_that_takes_too_long_is_interrupted_in_its_wait() -> None:
    interrupts = Interrupts()
    clock = StepClock(interrupts)
    clock.begin(3, 0.05)
    with pytest.raises(Interrupted, match="LATE") as late:
        await interrupts.sleep(LONG)
    assert (late.value.kind, late.value.message) == (Interruption.LATE, "step 3 took longer than 0.05 s")
    clock.stop()
    interrupts.check()  # what was met or came too late is no more


async def test_the_next_step_has_its_own_time() -> None:
    interrupts = Interrupts()
    clock = StepClock(interrupts)
    clock.begin(1, 0.0)
    await asyncio.sleep(0.01)
    clock.begin(2, LONG)
    interrupts.check()
    clock.begin(3, 0.05)
    clock.begin(3, LONG)
    with pytest.raises(Interrupted):
        await interrupts.sleep(LONG)
    clock.stop()


async def test_an_end_and_a_drain_outrank_a_late_step() -> None:
    interrupts = Interrupts()
    interrupts.request(Interruption.LATE, "late")
    interrupts.request(Interruption.DRAIN, "drain")
    interrupts.request(Interruption.LATE, "late")
    interrupts.withdraw(Interruption.LATE)
    with pytest.raises(Interrupted, match="DRAIN"):
        interrupts.check()
    interrupts.request(Interruption.END)
    with pytest.raises(Interrupted, match="END"):
        interrupts.check()


@pytest.mark.parametrize(
    ("action", "state"), [(TimeoutAction.FAIL, TaskState.FAILED), (TimeoutAction.RETRY, TaskState.RETRY_SCHEDULED)]
)
async def test_late_task_follows_its_policy(action: Any, state: Any) -> None:
    policy = TaskPolicy(retry=RetryPolicy(), timeouts=Timeouts(tool_call=PhaseTimeout(action=action)))
    point = ResumePoint(last_text="so far")
    left = late_transition(point, policy, Phase.TOOL_CALL, "too long")
    assert left is not None
    assert (left.to_state, left.reason) == (state, Reason.TOOL_TIMEOUT)
    assert left.result == ("so far" if state is TaskState.FAILED else "")
    assert (left.retry_delay_seconds is None) == (state is TaskState.FAILED)
    assert late_transition(point, TaskPolicy(), Phase.TOOL_CALL, "too long") is None
