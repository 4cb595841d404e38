"""Requeues and grants by operators: which tasks may go on, and what the next attempt starts with.

A new attempt goes on from the same history: steps, model attempts and the budget's use count on, as bills and calls are
known by them; what was recorded of calls stays what it is. What begins anew is what judged the attempt before: the
deadline, the deaths of its owners, its failures and retries, and the ending that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenure.domain.budget import Budget, usd
from tenure.domain.entries import GrantBudget, Requeue
from tenure.domain.errors import BudgetExhausted, InvalidRequest, TenureError, WrongState
from tenure.domain.states import TERMINAL, Reason, TaskState

if TYPE_CHECKING:
    from tenure.domain.close_out import PendingEnding

UNREAD_GRANT: Final = "UNREAD_GRANT"
_WANTS_BUDGET: Final = frozenset({Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT})


@dataclass(frozen=True, slots=True)
class RequeueDecision:
    """`begins_attempt`: the task had ended. Otherwise it only need not wait any longer, or may go on for longer."""

    begins_attempt: bool


def decide_requeue(
    state: TaskState, budgets: Sequence[Budget], step: int, max_steps: int, requeue: Requeue
) -> RequeueDecision | TenureError:
    """Gives the refusal back. A task that could not make one step more is refused: it would end again at once.

    `budgets`: the root's, and the task's own. What is asked for raises them all.
    """
    if requeue.extra_nano_usd and not any(budget.is_capped_in_money for budget in budgets):
        return InvalidRequest(violations=[("extra_nano_usd", "the task has no cap in money that could be raised")])
    if state is TaskState.RETRY_SCHEDULED:
        return RequeueDecision(begins_attempt=False)
    if state not in TERMINAL or state is TaskState.SUCCEEDED:
        return WrongState(
            f"a {state} task cannot be requeued: only one that ended without success, or waits for its retry",
            metadata={"state": state.value},
        )
    for refusal in (refusal for budget in budgets for refusal in _still_exhausted(budget, requeue)):
        return refusal
    if step >= max_steps + requeue.extra_steps:
        return BudgetExhausted(f"all of its {max_steps} steps are made: give it extra steps", reason=Reason.STEP_LIMIT)
    return RequeueDecision(begins_attempt=True)


def decide_grant(
    state: TaskState, budget: Budget, step: int, max_steps: int, grant: GrantBudget
) -> RequeueDecision | TenureError:
    """Of the root: one that ended for want of budget is requeued by it, by the same rule; a live one goes on."""
    requeue = Requeue(extra_tokens=grant.extra_tokens, extra_nano_usd=grant.extra_nano_usd)
    if state is TaskState.COST_EXCEEDED:
        return decide_requeue(state, (budget,), step, max_steps, requeue)
    if state in TERMINAL:
        return WrongState(
            f"the root of its tree has ended as {state}: a grant changes nothing there", metadata={"state": state.value}
        )
    if grant.extra_nano_usd and not budget.is_capped_in_money:
        return InvalidRequest(violations=[("extra_nano_usd", "the tree has no cap in money that could be raised")])
    return RequeueDecision(begins_attempt=False)


def refuse_limit_with_unread_grant(
    to_state: TaskState, reason: str, ending: PendingEnding | None, granted_sequence: int
) -> TenureError | None:
    """No task ends for want of what it was granted meanwhile. `granted_sequence`: where that stands; 0: nowhere."""
    if to_state is not TaskState.COST_EXCEEDED or reason not in _WANTS_BUDGET or ending or not granted_sequence:
        return None
    return WrongState(
        f"the budget was raised at {granted_sequence}: open again and go on",
        reason=UNREAD_GRANT,
        metadata={"sequence": str(granted_sequence)},
    )


def _still_exhausted(budget: Budget, requeue: Requeue) -> Iterator[BudgetExhausted]:
    """Why nothing is left to go on with. What others have set aside for the moment may come back."""
    if budget.max_tokens and budget.used_tokens >= budget.max_tokens + requeue.extra_tokens:
        used = f"all of its {budget.max_tokens} tokens are used"
        yield BudgetExhausted(f"{used}: give it extra tokens", reason=Reason.TOKEN_LIMIT)
    if budget.max_nano_usd and budget.used_nano_usd >= budget.max_nano_usd + requeue.extra_nano_usd:
        used = f"all of its {usd(budget.max_nano_usd)} are used"
        yield BudgetExhausted(f"{used}: give it more money", reason=Reason.MONEY_LIMIT)
