"""Tokens and money set aside and used by one task: never more than its caps, and nothing that nobody will settle."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from tenure.audit.amounts import NOTHING, Amount, charge
from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.budget import TokenUsage
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    GrantBudget,
    ModelAttempt,
    ModelFailure,
    OperatorRequest,
    Requeue,
    Submitted,
    Transition,
    WaitResolution,
)
from tenure.domain.states import TaskState
from tenure.domain.task import Limits


class Settled(NamedTuple):
    """An attempt and its end: what was set aside, what was told then, and what is on the bill now."""

    set_aside: Amount
    told: Amount
    billed: Amount

    @property
    def at_least(self) -> Amount:
        """What was used of it from then on, whenever a later report was made."""
        return Amount(min(self.told.tokens, self.billed.tokens), min(self.told.nano_usd, self.billed.nano_usd))


def spending(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ModelAttempt | Settled | None]]:
    """A task's own entries in order, with the attempt that each opens or ends."""
    reported = {(bill.step, bill.attempt_number): bill.usage for bill in task.bills if bill.estimate is not None}
    open_now: ModelAttempt | None = None
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                open_now = attempt
                yield entry, attempt
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                billed = reported.get((entry.step, settled.attempt_number), settled.usage)
                yield entry, _settled(open_now, settled.usage, billed)
                open_now = None
            case _:
                yield entry, None


def set_aside_for(attempt: ModelAttempt) -> Amount:
    """What the attempt holds while it is open."""
    return Amount(attempt.reserved_tokens, attempt.reserved_nano_usd)


def cap_of(limits: Limits) -> Amount:
    """Money 0: without a cap."""
    return Amount(limits.max_tokens, limits.max_nano_usd)


def raise_of(body: Body | None) -> Amount:
    """By how much a fact raises the caps of its task's root."""
    match body:
        case OperatorRequest(act=Requeue() | GrantBudget() as act):
            return Amount(act.extra_tokens, act.extra_nano_usd)
        case WaitResolution(extra_budget_tokens=tokens):
            return Amount(tokens)
        case _:
            return NOTHING


def raised(cap: Amount, by: Amount) -> Amount:
    """What had no cap in money gets none."""
    return Amount(cap.tokens + by.tokens, cap.nano_usd + by.nano_usd if cap.nano_usd else 0)


def attempts_are_settled_once(task: TaskHistory) -> Iterator[str]:
    """I17: one attempt is open at a time, each has a number of its own, and whoever stops running leaves none open."""
    open_at: tuple[LedgerEntry, ModelAttempt] | None = None
    newest = (0, 0)
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                if open_at is not None:
                    yield f"{place(entry)} opens a model attempt while that of {place(open_at[0])} is open"
                number = (entry.step, attempt.attempt_number)
                if number <= newest:
                    yield f"{place(entry)} is step {number[0]} attempt {number[1]}, not after {newest[0]}/{newest[1]}"
                open_at, newest = (entry, attempt), max(newest, number)
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                if open_at is None:
                    yield f"{place(entry)} settles a model attempt, and none was open"
                elif (entry.step, settled.attempt_number) != (open_at[0].step, open_at[1].attempt_number):
                    yield f"{place(entry)} settles another model attempt than the open one of {place(open_at[0])}"
                open_at = None
            case Transition(to_state=to_state) if to_state is not TaskState.RUNNING and open_at is not None:
                yield f"{place(entry)} moves to {to_state}, and the model attempt of {place(open_at[0])} stays open"
            case _:
                pass


def caps_hold(task: TaskHistory) -> Iterator[str]:
    """I17, at every reserve. A bill beyond our upper bound may pass the cap; nothing is set aside then."""
    goal = next(of_kind(task.entries, Submitted), None)
    if goal is None:
        return
    cap, used = cap_of(goal[1].spec.limits), NOTHING
    cap = raised(cap, _raised_elsewhere(task, cap))
    for entry, spent in spending(task):
        cap = raised(cap, raise_of(entry.body))
        match spent:
            case Settled() as settled:
                used += settled.at_least
            case ModelAttempt() as attempt:
                yield from _beyond(entry, attempt, used, cap)
            case None:
                pass


def _raised_elsewhere(task: TaskHistory, cap: Amount) -> Amount:
    """Of a root: by how much its cap was raised in its sub-agents. Nobody here knows when."""
    is_root = task.row is not None and task.row.root_task_id in {"", task.task_id}
    if not is_root or task.budget is None:
        return NOTHING
    for entry in task.entries:
        cap = raised(cap, raise_of(entry.body))
    budget = task.budget.budget
    return (Amount(budget.max_tokens, budget.max_nano_usd) - cap).above_nothing


def _beyond(entry: LedgerEntry, attempt: ModelAttempt, used: Amount, cap: Amount) -> Iterator[str]:
    aside = set_aside_for(attempt)
    total = used + aside
    if total.tokens > cap.tokens or total.nano_usd > cap.nano_usd > 0:
        yield f"{place(entry)} sets {aside} aside with {used} used: {total} of {cap}"
    if aside.tokens < attempt.input_tokens + attempt.max_output_tokens:
        yield f"{place(entry)} sets less aside than its input and output may come to"
    whole = TokenUsage(input_tokens=attempt.input_tokens, output_tokens=attempt.max_output_tokens)
    if aside.nano_usd < charge(attempt.prices, whole):
        yield f"{place(entry)} sets less aside than its input and output may cost"


def the_row_has_used_what_its_entries_say(task: TaskHistory) -> Iterator[str]:
    """I17, of the snapshot. It was read before the bills: what was reported meanwhile is not in it."""
    if task.row is None:
        return
    ends = [spent for _, spent in spending(task) if isinstance(spent, Settled)]
    told = sum((entry.usage for entry in _ends(task)), start=TokenUsage())
    possible = {(told, sum(spent.told.nano_usd for spent in ends))}
    corrections = _corrections(task)
    for correction, cost in corrections:
        possible |= {(usage + correction, nano_usd + cost) for usage, nano_usd in possible}
    if task.row.usage not in {usage for usage, _ in possible}:
        yield f"the task's row has used {_usage(task.row.usage)}, its entries {_usage(told)}"
    elif (task.row.usage, task.row.used_nano_usd) not in possible:
        costs = " or ".join(str(cost) for _, cost in sorted(possible, key=itemgetter(1)))
        yield f"the task's row has cost {task.row.used_nano_usd} n$, its entries {costs}"


def _corrections(task: TaskHistory) -> list[tuple[TokenUsage, int]]:
    """What reports added to a task's bill, in tokens and money."""
    opened = of_kind(own(task.entries), ModelAttempt)
    prices = {(entry.step, attempt.attempt_number): attempt.prices for entry, attempt in opened}
    reported = [bill for bill in task.bills if bill.estimate is not None][:MOST_CORRECTIONS]
    was = [charge(prices.get((bill.step, bill.attempt_number)), bill.settled_with) for bill in reported]
    return [(bill.correction, bill.nano_usd - cost) for bill, cost in zip(reported, was, strict=True)]


def _ends(task: TaskHistory) -> Iterator[AssistantMessage | ModelFailure | AttemptLost]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry.body


def _settled(attempt: ModelAttempt | None, told: TokenUsage, billed: TokenUsage) -> Settled:
    prices = attempt.prices if attempt is not None else None
    return Settled(
        set_aside_for(attempt) if attempt is not None else NOTHING,
        Amount(told.total, charge(prices, told)),
        Amount(billed.total, charge(prices, billed)),
    )


def _usage(usage: TokenUsage) -> str:
    cached = f" + {usage.cache_creation_input_tokens} written to and {usage.cache_read_input_tokens} read from a cache"
    return f"{usage.input_tokens} in, {usage.output_tokens} out" + (
        cached if usage.cache_creation_input_tokens or usage.cache_read_input_tokens else ""
    )


MOST_CORRECTIONS: Final = 10
"""So many are told apart, each counted in the row or not. A task has rarely one."""

CHECKS: Final = (
    Check("I17", "model attempts are opened and settled once each", ("entries",), attempts_are_settled_once),
    Check("I17", "nothing is set aside beyond a task's own caps", ("entries",), caps_hold),
    Check("I17", "the row's use is its entries'", ("tasks", "entries"), the_row_has_used_what_its_entries_say),
)
