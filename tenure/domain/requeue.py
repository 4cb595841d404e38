"""Decides about requeues and budget grants by operators: which tasks may go on, and what the next attempt keeps.

A new attempt continues the same history. Steps, model attempts and the budget's use are not reset, because bills and
calls refer to them, and the records of calls stay. Reset are the deadline, the owner deaths, the failures and retries,
and the pending ending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenure.domain.budget import Budget, BudgetRequest, complete_request, usd
from tenure.domain.entries import GrantBudget, Requeue
from tenure.domain.errors import BudgetExhausted, InvalidRequest, TenureError, WrongState
from tenure.domain.states import TERMINAL, WITHOUT_SUCCESS, Reason, TaskState

if TYPE_CHECKING:
    from tenure.domain.close_out import PendingEnding

UNREAD_GRANT: Final = "UNREAD_GRANT"
_Budgets = tuple[Budget, Budget]
"""The budget of the root, and that of the task itself."""
_WANTS_BUDGET: Final = frozenset({Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT})


@dataclass(frozen=True, slots=True)
class RequeueDecision:
    """`begins_attempt`: the task had ended, and a new attempt begins. False: a live task goes on."""

    begins_attempt: bool


def decide_requeue(
    state: TaskState, budgets: Sequence[Budget], step: int, max_steps: int, requeue: Requeue
) -> RequeueDecision | TenureError:
    """Decides about a requeue; returns the error if it is refused.

    A task that could not make one more step is refused, because it would end again at once. `budgets`: those of the
    root and of the task itself. The extra amounts raise all of them.
    """
    if requeue.extra_nano_usd and not any(budget.is_capped_in_money for budget in budgets):
        return InvalidRequest(violations=[("extra_nano_usd", "the task has no cap in money that could be raised")])
    if state is TaskState.RETRY_SCHEDULED:
        return RequeueDecision(begins_attempt=False)
    if state not in WITHOUT_SUCCESS:
        return WrongState(
            f"a {state} task cannot be requeued, only a task that ended without success or waits for its retry",
            metadata={"state": state.value},
        )
    for refusal in (refusal for budget in budgets for refusal in _still_exhausted(budget, requeue)):
        return refusal
    if step >= max_steps + requeue.extra_steps:
        return BudgetExhausted(
            f"all {max_steps} steps of the task are made: requeue it with extra steps", reason=Reason.STEP_LIMIT
        )
    return RequeueDecision(begins_attempt=True)


def decide_grant(
    state: TaskState, budget: Budget, step: int, max_steps: int, grant: GrantBudget
) -> RequeueDecision | TenureError:
    """Decides about a grant to a root. A root that ended with COST_EXCEEDED is requeued; a live one goes on."""
    requeue = Requeue(extra_tokens=grant.extra_tokens, extra_nano_usd=grant.extra_nano_usd)
    if state is TaskState.COST_EXCEEDED:
        return decide_requeue(state, (budget,), step, max_steps, requeue)
    if state in TERMINAL:
        return WrongState(
            f"the root of the tree ended as {state}, so a grant has no effect", metadata={"state": state.value}
        )
    if grant.extra_nano_usd and not budget.is_capped_in_money:
        return InvalidRequest(violations=[("extra_nano_usd", "the tree has no cap in money that could be raised")])
    return RequeueDecision(begins_attempt=False)


def continues_after_raise(state: TaskState, reason: str, budgets: Sequence[Budget], step: int, max_steps: int) -> bool:
    """Whether an ended task begins its next attempt because the budget of its tree was raised."""
    ended_at_cap = state is TaskState.COST_EXCEEDED and reason in _WANTS_BUDGET
    return ended_at_cap and isinstance(decide_requeue(state, budgets, step, max_steps, Requeue()), RequeueDecision)


def refuse_limit_with_unread_grant(
    to_state: TaskState, reason: str, ending: PendingEnding | None, granted_sequence: int
) -> TenureError | None:
    """Refuses an ending at a budget limit if a grant came meanwhile. `granted_sequence`: the grant's; 0: none."""
    if to_state is not TaskState.COST_EXCEEDED or reason not in _WANTS_BUDGET or ending or not granted_sequence:
        return None
    return WrongState(
        f"the budget was raised at sequence {granted_sequence}: open the task again and go on",
        reason=UNREAD_GRANT,
        metadata={"sequence": str(granted_sequence)},
    )


def refuse_limit_that_was_raised(
    to_state: TaskState, reason: str, ending: PendingEnding | None, denied: BudgetRequest | None, budgets: _Budgets
) -> TenureError | None:
    """Refuses an ending at a budget limit if the denied model call fits by now. `denied`: what the newest commit was
    denied; None: nothing.

    A grant to the root has no entry in the ledgers of its sub-agents. Without this rule a sub-agent that was denied
    before the grant and ends after it would stay at its cap.
    """
    if to_state is not TaskState.COST_EXCEEDED or reason not in _WANTS_BUDGET or ending or denied is None:
        return None
    if complete_request(*budgets, denied) is not None:
        return None
    return WrongState(
        "the budget was raised after the model call was denied: open the task again and go on", reason=UNREAD_GRANT
    )


def _still_exhausted(budget: Budget, requeue: Requeue) -> Iterator[BudgetExhausted]:
    """Yields the exhausted limits. Tokens that other calls have reserved do not count, because they may come back."""
    if budget.max_tokens and budget.used_tokens >= budget.max_tokens + requeue.extra_tokens:
        used = f"all {budget.max_tokens} tokens of the task are used"
        yield BudgetExhausted(f"{used}: requeue it with extra tokens", reason=Reason.TOKEN_LIMIT)
    if budget.max_nano_usd and budget.used_nano_usd >= budget.max_nano_usd + requeue.extra_nano_usd:
        used = f"all {usd(budget.max_nano_usd)} of the task are used"
        yield BudgetExhausted(f"{used}: requeue it with more money", reason=Reason.MONEY_LIMIT)
