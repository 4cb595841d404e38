"""The ledger's bill against the provider's, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tenure.audit.amounts import charge
from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import drives_itself, of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import AssistantMessage, AttemptLost, ModelAttempt, ModelFailure


def answers_cost_what_was_billed(task: TaskHistory) -> Iterator[str]:
    """I18, for calls with an answer: those that were lost are estimated."""
    billed = {call.request_id: call for call in task.model_calls}
    for entry, answer in of_kind(own(task.entries), AssistantMessage) if drives_itself(task) else ():
        call = billed.get(answer.provider_request_id)
        if call is None:
            yield f"{place(entry)} is the answer to {answer.provider_request_id or '-'}, which the provider never gave"
        elif call.usage != answer.usage:
            yield (
                f"{place(entry)} counts {answer.usage.total} tokens, "
                f"the provider billed {call.usage.total} for {call.request_id}"
            )


def bills_are_the_entries(task: TaskHistory) -> Iterator[str]:
    """I18, of the bill that the ledger keeps apart: one row for each settled attempt."""
    told = Counter((entry.step, body.attempt_number, body.usage) for entry, body in _settled(task))
    kept = Counter((bill.step, bill.attempt_number, bill.settled_with) for bill in task.bills)
    for step, attempt_number, usage in told - kept:
        yield f"step {step} attempt {attempt_number} was settled with {usage.total} tokens, and is not on the bill"
    for step, attempt_number, usage in kept - told:
        yield f"step {step} attempt {attempt_number} is on the bill with {usage.total} tokens; no entry says so"


def bills_say_whose_and_how(task: TaskHistory) -> Iterator[str]:
    """I18: who pays, whether it is an estimate, and the provider's name for the call are what the entries say."""
    settled = {(entry.step, body.attempt_number): body for entry, body in _settled(task)}
    root_id = task.row.root_task_id if task.row is not None else ""
    for bill in task.bills:
        told = settled.get((bill.step, bill.attempt_number))
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if root_id and bill.root_task_id != root_id:
            yield f"{which} is on the bill of {bill.root_task_id}, the task's root is {root_id}"
        if told is not None and bill.lost != isinstance(told, AttemptLost):
            kept = "an estimate" if bill.lost else "what was told"
            yield f"{which} is on the bill as {kept}, its entry says otherwise"
        if bill.estimate is not None and not bill.lost:
            yield f"{which} was not lost, and its bill was changed by a report"
        if told is None or bill.estimate is not None:  # the report names the call
            continue
        if bill.provider_request_id != _kept(getattr(told, "provider_request_id", "")):
            yield f"{which} is on the bill as {bill.provider_request_id or 'nameless'}, its entry names another call"


def bills_cost_what_was_agreed(task: TaskHistory) -> Iterator[str]:
    """I18: money is charged by the prices that were set down with the reservation, and by nothing later."""
    attempts = {
        (entry.step, attempt.attempt_number): attempt for entry, attempt in of_kind(own(task.entries), ModelAttempt)
    }
    for bill in task.bills:
        attempt = attempts.get((bill.step, bill.attempt_number))
        if attempt is None:
            continue
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if bill.nano_usd != (expected := charge(attempt.prices, bill.usage)):
            yield f"{which} is on the bill with {bill.nano_usd} n$, by its prices it costs {expected}"
        if bill.unpriced != (attempt.prices is None):
            yield f"{which} is on the bill as {'unpriced' if bill.unpriced else 'priced'}, its entry says otherwise"


def model_calls_are_in_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I19: no call without an attempt, and no attempt that was sent twice."""
    attempts = {(entry.step, attempt.attempt_number) for entry, attempt in of_kind(own(task.entries), ModelAttempt)}
    sent: Counter[tuple[int, int]] = Counter()
    for call in task.model_calls:
        number = (call.step, call.attempt_number)
        sent[number] += 1
        if not task.task_id:
            yield f"the provider saw the call {call.request_id}, which belongs to no task"
        elif number not in attempts:
            yield (
                f"the provider saw step {call.step} attempt {call.attempt_number} ({call.request_id}), "
                "which is not in the ledger"
            )
    for (step, attempt_number), count in sent.items():
        if count > 1 and task.task_id:
            yield f"step {step} attempt {attempt_number} was sent to the provider {count} times"


def _kept(text: str) -> str:
    """As Postgres can keep it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _settled(task: TaskHistory) -> Iterator[tuple[LedgerEntry, AssistantMessage | ModelFailure | AttemptLost]]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry, entry.body


CHECKS: Final = (
    Check("I18", "answers cost what the provider billed", ("model_calls", "entries"), answers_cost_what_was_billed),
    Check("I18", "the bill has a row for each settled attempt", ("bills", "entries"), bills_are_the_entries),
    Check(
        "I18", "the bill says whose it is and how it is known", ("tasks", "bills", "entries"), bills_say_whose_and_how
    ),
    Check("I18", "the bill charges what was agreed", ("bills", "entries"), bills_cost_what_was_agreed),
    Check("I19", "model calls have an attempt of their own", ("model_calls", "entries"), model_calls_are_in_the_ledger),
)
