"""Why a task is where it is, and what would move it: from facts to lines for people. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tenure.domain.budget import Budget, money_text
from tenure.domain.fencing import describe_epoch
from tenure.domain.in_doubt import RESOLVE_COMMANDS
from tenure.domain.retry import FailureClass
from tenure.domain.states import TERMINAL, WAITING, Reason, TaskState
from tenure.domain.task import offered_function

MOST_LINES: Final = 10
_CALLS_TOLD: Final = 3

REASONS: Final = {
    Reason.SUBMITTED: "it was submitted",
    Reason.LEASE_EXPIRED: "its worker did not renew its lease in time",
    Reason.WORKER_LOST: "the connection to its worker broke",
    Reason.WORKER_STUCK: "its worker made no progress",
    Reason.WORKER_DRAINED: "its worker drained and gave it back",
    Reason.WORKER_HALTED: "its worker gave it back, because a part it needs was out of reach",
    Reason.WORKER_CRASHED: "its worker met a bug",
    Reason.CLAIM_LOST: "its claim was gone",
    Reason.ENDING_OVER: "a coordinator came to end it, and its end was no longer due",
    Reason.CRASH_LOOP: "too many workers died with it",
    Reason.RETRY_DUE: "its wait for a retry was over",
    Reason.CANCEL_REQUESTED: "somebody asked for its end",
    Reason.DEADLINE_PASSED: "its timeout had passed",
    Reason.QUEUED_TOO_LONG: "no worker took it in time",
    Reason.START_TIMEOUT: "its worker did not open it in time",
    Reason.STEP_TIMEOUT: "one of its steps took too long",
    Reason.MODEL_TIMEOUT: "a model call took too long",
    Reason.TOOL_TIMEOUT: "a tool call took too long",
    Reason.WAIT_EXPIRED: "nobody answered what it waited for",
    Reason.TOKEN_LIMIT: "its tokens were used up",
    Reason.MONEY_LIMIT: "its money was used up",
    Reason.MODEL_UNPRICED: "its money is capped, and nobody knows what its model costs",
    Reason.BUDGET_GRANTED: "it was granted more budget",
    Reason.STEP_LIMIT: "its steps were used up",
    Reason.BUDGET_BUSY: "calls of its tree had set aside what is left of the budget",
    Reason.TENANT_QUOTA: "its tenant was at one of its caps",
    Reason.TOOL_IN_DOUBT: "nobody knows whether a call that must not happen twice has happened",
    Reason.CALL_RESOLVED: "it is known, or was said, what became of its calls in doubt",
    Reason.MODEL_RATE_LIMITED: "the model's provider asked to slow down",
    Reason.MODEL_UNAVAILABLE: "the model did not answer",
    Reason.MODEL_REJECTED: "the model's provider refused the request",
    Reason.FUNCTION_RETURNED: "its function returned",
    Reason.FUNCTION_FAILED: "its function failed",
    Reason.FUNCTION_DIVERGED: "its function is not the one that began it",
    Reason.SPAWNED: "its parent spawned it",
    Reason.PARENT_ENDED: "its parent came to an end",
    Reason.NOT_AWAITED: "its parent waits for it no longer",
    Reason.OPERATOR_REQUEUE: "an operator requeued it",
    Reason.OPERATOR_TRANSFER: "an operator took it from its worker",
    Reason.OPERATOR_CLOSE_OUT: "an operator closed it out",
}


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """A live worker, and what it takes."""

    worker_id: str
    queues: tuple[str, ...]
    loops: tuple[str, ...]
    draining: bool = False


@dataclass(frozen=True, slots=True)
class CallFact:
    """A call without an outcome. `standing`: what the tools say of it; "": nothing, or they were not asked."""

    call_id: str
    tool: str
    standing: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All times in seconds before (or, for what is to come, after) now. None where nobody answered.

    `lease_seconds` 0: it has no claim. `waits_for`: the question or event, in words. `until_start`: only while it is
    held back; `until_too_long`: only while it is timed in the queue. `error_class`: a FailureClass, of a task that the
    provider refused; empty where it is not known. `caps`: those that its tenant is at, in words.
    """

    state: TaskState
    reason: str
    message: str
    attempt: int
    step: int
    queue: str
    loop: str
    owner: str
    epoch: int
    budget: Budget
    since_move: float
    since_entry: float
    until_deadline: float
    until_retry: float | None = None
    until_start: float | None = None
    until_too_long: float | None = None
    is_to_end: bool = False
    waits_for: str = ""
    until_answer: float | None = None
    lease_seconds: float | None = 0.0
    workers: tuple[WorkerFact, ...] | None = ()
    calls: tuple[CallFact, ...] = ()
    tools_answered: bool = True
    error_class: str = ""
    refusals: int | None = 0
    caps: tuple[str, ...] = ()


def explain(facts: Facts) -> list[str]:
    """At most MOST_LINES lines: where it stands and why, what it stands on, what would move it."""
    lines = [_where(facts)]
    if facts.state not in TERMINAL:
        lines += _standing(facts)
    lines += _calls(facts)
    lines.append(_budget(facts))
    lines += _refusals(facts)
    lines.append(_what_moves_it(facts))
    return lines[:MOST_LINES]


def _where(facts: Facts) -> str:
    why = REASONS.get(facts.reason, facts.reason)
    message = f"{facts.state} for {span(facts.since_move)}, attempt {facts.attempt}, after step {facts.step}"
    if facts.state is TaskState.RUNNING:
        return f"RUNNING on {facts.owner} for {span(facts.since_move)}, epoch {describe_epoch(facts.epoch)}"
    if facts.state in TERMINAL:
        message = (
            f"Ended as {facts.state} {span(facts.since_move)} ago, attempt {facts.attempt}, after step {facts.step}"
        )
    if facts.state is TaskState.SUCCEEDED:
        return message
    text = "" if facts.reason == Reason.TOOL_IN_DOUBT and facts.calls else facts.message  # its calls are listed below
    return f"{message}{f': {why}' if why else ''}{f' ({text})' if text else ''}"


def _standing(facts: Facts) -> Iterator[str]:
    if facts.is_to_end:
        yield "Its end was asked for and will be carried out: by its worker, or by a coordinator in its place"
    match facts.state:
        case TaskState.RUNNING:
            yield f"The newest entry is {span(facts.since_entry)} old (step {facts.step}); {_lease(facts)}"
        case TaskState.QUEUED if facts.until_start is not None:
            yield f"It is not to be started before its time, in {span(facts.until_start)}"
        case TaskState.QUEUED:
            yield _workers(facts)
            if facts.until_too_long is not None:
                yield f"In {span(facts.until_too_long)} it will have queued too long"
        case TaskState.RETRY_SCHEDULED if facts.until_retry is not None:
            yield f"It is queued again in {span(facts.until_retry)}"
        case state if state in WAITING and facts.waits_for:
            until = "" if facts.until_answer is None else f"; in {span(facts.until_answer)} nobody waits any longer"
            yield f"It waits for {facts.waits_for}{until}"
    if facts.caps and facts.state not in WAITING:
        yield f"Its tenant is at a cap ({', '.join(facts.caps)}): new tasks and model calls of it may have to wait"
    if facts.until_deadline > 0:
        yield f"Its timeout passes in {span(facts.until_deadline)}"
    else:
        yield "Its timeout has passed"


def _lease(facts: Facts) -> str:
    if facts.lease_seconds is None:
        return "no coordinator answers, so nothing is known of its lease"
    if not facts.lease_seconds:
        return "its claim is gone: it is about to be queued again"
    return f"its lease lives {span(facts.lease_seconds)} without a renewal"


def _workers(facts: Facts) -> str:
    if facts.workers is None:
        return "No coordinator answers, so nothing is known of workers"
    serving = _serving(facts.workers, facts)
    if not serving:
        others = len(facts.workers)
        there = (
            f"{others} other worker{'s are' if others > 1 else ' is'} there" if others else "no worker is there at all"
        )
        return f"No worker serves queue {facts.queue} and {_offer(facts)}; {there}"
    ready = [one for one in serving if not one.draining]
    if not ready:
        return f"All workers that serve queue {facts.queue} and {_offer(facts)} are draining"
    return f"Workers that serve queue {facts.queue} and {_offer(facts)}: {_names([one.worker_id for one in ready])}"


def _calls(facts: Facts) -> Iterator[str]:
    if not facts.calls:
        return
    lines = [
        f"{call.call_id} {call.tool} ({call.standing or 'not begun at the tools'})"
        if facts.tools_answered
        else f"{call.call_id} {call.tool}"
        for call in facts.calls
    ]
    unknown = "" if facts.tools_answered else "; the tools do not answer, so nothing more is known"
    yield f"Calls without an outcome: {_names(lines)}{unknown}"


def _budget(facts: Facts) -> str:
    budget = facts.budget
    aside = f", {budget.reserved_tokens:,} set aside" if budget.reserved_tokens else ""
    tokens = f"Of its root's {budget.max_tokens:,} tokens {budget.used_tokens:,} are used{aside}"
    if not budget.is_capped_in_money:
        return f"{tokens}{f'; they cost {money_text(budget.used_nano_usd)}' if budget.used_nano_usd else ''}"
    aside = f", {money_text(budget.reserved_nano_usd)} set aside" if budget.reserved_nano_usd else ""
    return f"{tokens}; of its {money_text(budget.max_nano_usd)} {money_text(budget.used_nano_usd)}{aside}"


def _refusals(facts: Facts) -> Iterator[str]:
    if facts.refusals:
        yield f"Refused to stale workers so far: {facts.refusals} (tenure refusals)"
    elif facts.refusals is None:
        yield "Nothing is known of refused writes: the ledger or the tools do not answer"


def _what_moves_it(facts: Facts) -> str:
    if facts.state in TERMINAL:
        return "Nothing moves it any more" if facts.state is TaskState.SUCCEEDED else _what_revives_it(facts)
    if facts.is_to_end:
        return "What moves it: its end, within about a second while all parts answer"
    moves = {
        TaskState.QUEUED: _taker(facts),
        TaskState.RUNNING: "its worker; tenure admin transfer takes it to another, tenure cancel ends it",
        TaskState.RETRY_SCHEDULED: "time; tenure admin requeue queues it at once",
        TaskState.WAITING_USER: f"a person's word on the call: {RESOLVE_COMMANDS}; or tenure cancel"
        if facts.reason == Reason.TOOL_IN_DOUBT
        else "a person: tenure resume, or tenure cancel",
        TaskState.WAITING_EXTERNAL: "the end of the last of them (tenure tree), or tenure cancel"
        if facts.reason == Reason.SUB_AGENTS_AWAITED
        else "the event: tenure signal, or tenure cancel",
    }
    return f"What moves it: {moves[facts.state]}"


def _what_revives_it(facts: Facts) -> str:
    """What is advised must not fail in the same way again."""
    if facts.reason in {Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT}:
        return "Only an operator moves it: tenure admin grant-budget lets it go on"
    if facts.reason != Reason.MODEL_REJECTED:
        return "Only an operator moves it: tenure admin requeue begins its next attempt"
    match facts.error_class:
        case FailureClass.NOT_FOUND:
            return (
                "Its provider does not have its model, so a requeue would fail again: "
                "tenure fork --model NAME starts a new task from its history with another model"
            )
        case FailureClass.AUTHENTICATION | FailureClass.PERMISSION | FailureClass.BILLING:
            return "Mend the worker's key or the provider's account; then tenure admin requeue begins its next attempt"
        case _:
            return (
                "A requeue sends the same request again: tenure fork --step N goes on from an earlier step, "
                "tenure fork --model NAME with another model"
            )


def _taker(facts: Facts) -> str:
    if facts.until_start is not None:
        return "time; tenure cancel ends it"
    if facts.workers is None or any(not one.draining for one in _serving(facts.workers, facts)):
        return "a worker with a free slot"
    return f"a worker of queue {facts.queue} and {_offer(facts)} that is started"


def _offer(facts: Facts) -> str:
    """What a worker must have to take it."""
    function = offered_function(facts.loop)
    return f"the function {function}" if function else f"loop {facts.loop}"


def _serving(workers: Sequence[WorkerFact], facts: Facts) -> list[WorkerFact]:
    return [one for one in workers if facts.queue in one.queues and facts.loop in one.loops]


def _names(names: Sequence[str]) -> str:
    more = len(names) - _CALLS_TOLD
    return ", ".join(names[:_CALLS_TOLD]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """`3 s`, `4 min`, `2 h 5 min`, `3 d`: as people say it."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d"
