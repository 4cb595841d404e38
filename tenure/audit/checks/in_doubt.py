"""Calls in doubt: a word is given while the task waits for it, once, and decides nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import Effect, LedgerEntry
from tenure.audit.reading import TIME_GRAIN_SECONDS, of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import OperatorRequest, ToolOutcome, Transition
from tenure.domain.in_doubt import ABANDONED, HAPPENED, Abandon, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import Outcome, OutcomeStatus

_LEDGER: Final = "checkpoint"
"""Who puts tasks back whose calls turned out to be in doubt no more: that needs no word."""

_BY_WORD: Final[dict[tuple[OutcomeStatus, str], tuple[type[Abandon | Happened], str]]] = {
    (OutcomeStatus.IN_DOUBT, ABANDONED): (Abandon, "was given up"),
    (OutcomeStatus.SUCCEEDED, HAPPENED): (Happened, "happened by somebody's word"),
}
"""Outcomes that are only a person's word."""


def words(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ResolveCall]]:
    """The words that people gave on calls in doubt, in order."""
    for entry, request in of_kind(own(task.entries), OperatorRequest):
        if isinstance(request.act, ResolveCall):
            yield entry, request.act


def may_run_again(task: TaskHistory, effects: Sequence[Effect]) -> bool:
    """Whether a person said between each two of these effects of a call that it had not happened."""
    said = [
        (entry, word)
        for entry, word in words(task)
        if word.call_id == effects[0].call_id and isinstance(word.decision, DidNotHappen)
    ]
    opened = {entry.sequence: _next_epoch(task, entry) for entry, _ in said}
    ordered = sorted(effects, key=lambda effect: effect.epoch)
    return all(
        any(first.epoch < opened[entry.sequence] <= second.epoch for entry, _ in said)
        for first, second in pairwise(ordered)
    )


def is_by_word(task: TaskHistory, entry: LedgerEntry, told: ToolOutcome) -> bool:
    """Whether a person had said that this attempt happened, and with this result: an end that comes before the word is
    carried to the tools writes it down without them.
    """
    outcome = told.outcome
    said = (told.call_id, outcome.call_attempt - 1)
    return (outcome.status, outcome.detail) == (OutcomeStatus.SUCCEEDED, HAPPENED) and any(
        (word.call_id, word.call_attempt) == said and _is_result_of(word.decision, outcome)
        for before, word in words(task)
        if before.sequence < entry.sequence
    )


def _is_result_of(decision: Decision, outcome: Outcome) -> bool:
    """Somebody who knows no result has it told in other words; a long one is cut."""
    return isinstance(decision, Happened) and (outcome.truncated or decision.result in {"", outcome.content})


def _next_epoch(task: TaskHistory, word: LedgerEntry) -> int:
    """Of the owner that was the first to know the word; 0: nobody was."""
    return next((entry.epoch for entry in task.entries if entry.sequence > word.sequence and entry.epoch), 0)


def words_are_waited_for(task: TaskHistory) -> Iterator[str]:
    """I40: by a wait that names the call and its attempt, if it names any; and with the last the task is queued."""
    waits, named, before = False, dict[str, int](), None
    for entry in own(task.entries):
        match entry.body:
            case Transition() as move:
                by_word = move.reason == Reason.CALL_RESOLVED and entry.actor != _LEDGER
                if by_word and (before is None or named):
                    left = ", ".join(named) or "calls in doubt"
                    yield f"{place(entry)} goes on as if {left} had been settled"
                waits = move.to_state is TaskState.WAITING_USER and move.reason == Reason.TOOL_IN_DOUBT
                named = {call.call_id: call.call_attempt for call in move.calls_in_doubt}
                before = None
            case OperatorRequest(act=ResolveCall() as word):
                if entry.epoch:
                    yield f"{place(entry)} was written under a claim: nobody holds a task that waits"
                if not waits or (named and word.call_id not in named):
                    yield f"{place(entry)} is a word on call {word.call_id}, which the task does not wait for"
                elif named.get(word.call_id, 0) not in {0, word.call_attempt}:
                    yield f"{place(entry)} is a word on attempt {word.call_attempt} of call {word.call_id}, another one"
                named.pop(word.call_id, None)
                waits, before = waits and bool(named), entry
            case _:
                pass


def what_was_settled_was_so_by_somebody(task: TaskHistory) -> Iterator[str]:
    """I40, of outcomes: each is of the attempt after the one that the word was about."""
    said = {
        (type(word.decision), word.call_id, word.call_attempt + 1): entry.sequence
        for entry, word in reversed([*words(task)])
    }
    for entry, told in of_kind(own(task.entries), ToolOutcome):
        outcome = told.outcome
        kind, as_it_says = _BY_WORD.get((outcome.status, outcome.detail), (None, ""))
        if kind is None:
            continue
        if said.get((kind, told.call_id, outcome.call_attempt), entry.sequence) >= entry.sequence:
            yield f"{place(entry)} says that call {told.call_id} {as_it_says}, and nobody had said so of that attempt"


def what_did_not_happen_cannot_happen_any_more(task: TaskHistory) -> Iterator[str]:
    """I40: nobody is believed that a call did not happen while its runner may still make it happen."""
    for entry, word in words(task):
        said = word.decision
        if isinstance(said, DidNotHappen) and not (said.runner_is_gone or said.runner_proven_gone):
            neither = "its runner was gone neither by proof nor by somebody's word"
            yield f"{place(entry)} says that call {word.call_id} did not happen, and {neither}"


def what_is_run_again_is_another_attempt(task: TaskHistory) -> Iterator[str]:
    """I40: else the old runner's start, withdrawal and outcome would count for the new one."""
    calls = {call.call_id: call for call in task.calls}
    for entry, word in words(task):
        call = calls.get(word.call_id)
        if call is None or call.started_at is None or call.call_attempt != word.call_attempt:
            continue
        if call.started_at > entry.recorded_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            attempt = f"attempt {call.call_attempt}"
            yield f"call {word.call_id} was started as {attempt} after {place(entry)}, a word on that very attempt"


CHECKS: Final = (
    Check("I40", "a word on a call in doubt is waited for", ("entries",), words_are_waited_for),
    Check("I40", "what was settled by a word was so by somebody", ("entries",), what_was_settled_was_so_by_somebody),
    Check(
        "I40",
        "did not happen is said when it cannot any more",
        ("entries",),
        what_did_not_happen_cannot_happen_any_more,
    ),
    Check("I40", "what is run again is another attempt", ("calls", "entries"), what_is_run_again_is_another_attempt),
)
