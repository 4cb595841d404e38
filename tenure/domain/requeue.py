"""Requeues by operators: which tasks may go on, and what the next attempt starts with.

A new attempt goes on from the same history: steps, model attempts and the budget's use count on, as bills and calls are
known by them; what was recorded of calls stays what it is. What begins anew is what judged the attempt before: the
deadline, the deaths of its owners, its failures and retries, and the ending that was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.budget import Budget
from tenure.domain.entries import Requeue
from tenure.domain.errors import BudgetExhausted, TenureError, WrongState
from tenure.domain.states import TERMINAL, Reason, TaskState


@dataclass(frozen=True, slots=True)
class RequeueVerdict:
    """`begins_attempt`: the task had ended. Otherwise it only need not wait any longer."""

    begins_attempt: bool


def decide_requeue(
    state: TaskState, budget: Budget, step: int, max_steps: int, asked: Requeue
) -> RequeueVerdict | TenureError:
    """Gives the refusal back. A task that could not make one step more is refused: it would end again at once."""
    if state is TaskState.RETRY_SCHEDULED:
        return RequeueVerdict(begins_attempt=False)
    if state not in TERMINAL or state is TaskState.SUCCEEDED:
        return WrongState(
            f"a {state} task cannot be requeued: only one that ended without success, or waits for its retry",
            metadata={"state": state.value},
        )
    if budget.max_tokens + asked.extra_tokens <= budget.used_tokens + budget.reserved_tokens:
        used = f"all of its {budget.max_tokens} tokens are used"
        return BudgetExhausted(f"{used}: give it extra tokens", reason=Reason.TOKEN_LIMIT)
    if step >= max_steps + asked.extra_steps:
        return BudgetExhausted(f"all of its {max_steps} steps are made: give it extra steps", reason=Reason.STEP_LIMIT)
    return RequeueVerdict(begins_attempt=True)
