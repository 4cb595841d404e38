"""Tools: nothing runs before it is written down or behind the fence, and what must not happen twice does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from checker.check import Check
from checker.history import CallRecord, LedgerEntry, ObservedEffect, TaskHistory
from checker.reading import (
    TIME_GRAIN_SECONDS,
    arguments_hash,
    claim,
    drives_functions,
    drives_itself,
    intents,
    leaves,
    of_kind,
    outcome_hash,
    own,
    place,
    settled_by_waits,
)
from tenure.domain.entries import OperatorRequest, ToolIntent, ToolOutcome, Transition
from tenure.domain.fencing import describe_epoch
from tenure.domain.in_doubt import ABANDONED, HAPPENED, Abandon, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, STOPPED
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

# Calls in doubt: a word is given while the task waits for it, once, and decides nothing else.

_LEDGER: Final = "checkpoint"
"""Who puts tasks back whose calls turned out to be in doubt no more: that needs no word."""

_BY_RESOLUTION: Final[dict[tuple[OutcomeStatus, str], tuple[type[Abandon | Happened], str]]] = {
    (OutcomeStatus.IN_DOUBT, ABANDONED): (Abandon, "was given up"),
    (OutcomeStatus.SUCCEEDED, HAPPENED): (Happened, "happened by somebody's word"),
}
"""Outcomes that are only a person's word."""


def resolutions(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ResolveCall]]:
    """The words that people gave on calls in doubt, in order."""
    for entry, request in of_kind(own(task.entries), OperatorRequest):
        if isinstance(request.act, ResolveCall):
            yield entry, request.act


def may_run_again(task: TaskHistory, effects: Sequence[ObservedEffect]) -> bool:
    """Whether a person said between each two of these effects of a call that it had not happened."""
    message = [
        (entry, resolution)
        for entry, resolution in resolutions(task)
        if resolution.call_id == effects[0].call_id and isinstance(resolution.decision, DidNotHappen)
    ]
    opened = {entry.sequence: _next_epoch(task, entry) for entry, _ in message}
    ordered = sorted(effects, key=lambda effect: effect.epoch)
    return all(
        any(first.epoch < opened[entry.sequence] <= second.epoch for entry, _ in message)
        for first, second in pairwise(ordered)
    )


def is_by_resolution(task: TaskHistory, entry: LedgerEntry, message: ToolOutcome) -> bool:
    """Whether a person had said that this attempt happened, and with this result: an end that comes before the word is
    carried to the tools writes it down without them.
    """
    outcome = message.outcome
    text = (message.call_id, outcome.call_attempt - 1)
    return (outcome.status, outcome.detail) == (OutcomeStatus.SUCCEEDED, HAPPENED) and any(
        (resolution.call_id, resolution.call_attempt) == text and _is_result_of(resolution.decision, outcome)
        for before, resolution in resolutions(task)
        if before.sequence < entry.sequence
    )


def _is_result_of(decision: Decision, outcome: Outcome) -> bool:
    """Somebody who knows no result has it told in other words; a long one is cut."""
    return isinstance(decision, Happened) and (outcome.truncated or decision.result in {"", outcome.content})


def _next_epoch(task: TaskHistory, resolution: LedgerEntry) -> int:
    """Of the owner that was the first to know the word; 0: nobody was."""
    return next((entry.epoch for entry in task.entries if entry.sequence > resolution.sequence and entry.epoch), 0)


def resolutions_are_awaited(task: TaskHistory) -> Iterator[str]:
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
            case OperatorRequest(act=ResolveCall() as resolution):
                if entry.epoch:
                    yield f"{place(entry)} was written under a claim: nobody holds a task that waits"
                if not waits or (named and resolution.call_id not in named):
                    yield f"{place(entry)} is a word on call {resolution.call_id}, which the task does not wait for"
                elif named.get(resolution.call_id, 0) not in {0, resolution.call_attempt}:
                    yield (
                        f"{place(entry)} is a word on attempt {resolution.call_attempt} of call "
                        f"{resolution.call_id}, another one"
                    )
                named.pop(resolution.call_id, None)
                waits, before = waits and bool(named), entry
            case _:
                pass


def settled_calls_have_a_resolution(task: TaskHistory) -> Iterator[str]:
    """I40, of outcomes: each is of the attempt after the one that the word was about."""
    text = {
        (type(resolution.decision), resolution.call_id, resolution.call_attempt + 1): entry.sequence
        for entry, resolution in reversed([*resolutions(task)])
    }
    for entry, message in of_kind(own(task.entries), ToolOutcome):
        outcome = message.outcome
        kind, as_it_says = _BY_RESOLUTION.get((outcome.status, outcome.detail), (None, ""))
        if kind is None:
            continue
        if text.get((kind, message.call_id, outcome.call_attempt), entry.sequence) >= entry.sequence:
            yield (
                f"{place(entry)} says that call {message.call_id} {as_it_says}, and nobody had said so of that attempt"
            )


def what_did_not_happen_cannot_happen_any_more(task: TaskHistory) -> Iterator[str]:
    """I40: nobody is believed that a call did not happen while its runner may still make it happen."""
    for entry, resolution in resolutions(task):
        message = resolution.decision
        if isinstance(message, DidNotHappen) and not (message.runner_is_gone or message.runner_proven_gone):
            neither = "its runner was gone neither by proof nor by somebody's word"
            yield f"{place(entry)} says that call {resolution.call_id} did not happen, and {neither}"


def what_is_run_again_is_another_attempt(task: TaskHistory) -> Iterator[str]:
    """I40: else the old runner's start, withdrawal and outcome would count for the new one."""
    calls = {call.call_id: call for call in task.calls}
    for entry, resolution in resolutions(task):
        call = calls.get(resolution.call_id)
        if call is None or call.started_at is None or call.call_attempt != resolution.call_attempt:
            continue
        if call.started_at > entry.recorded_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            attempt = f"attempt {call.call_attempt}"
            yield (
                f"call {resolution.call_id} was started as {attempt} after {place(entry)}, a word on that very attempt"
            )


_IN_DOUBT_CHECKS: Final = (
    Check("I40", "a word on a call in doubt is waited for", ("entries",), resolutions_are_awaited),
    Check("I40", "what was settled by a word was so by somebody", ("entries",), settled_calls_have_a_resolution),
    Check(
        "I40",
        "did not happen is said when it cannot any more",
        ("entries",),
        what_did_not_happen_cannot_happen_any_more,
    ),
    Check("I40", "what is run again is another attempt", ("calls", "entries"), what_is_run_again_is_another_attempt),
)

RECORDING_TOOLS: Final = frozenset({"append_record", "append_record_unsafe"})
"""The tools whose effects the outside tells of."""

_REPEATABLE: Final = frozenset({EffectClass.PURE, EffectClass.IDEMPOTENT})
_WITHOUT_RECORD: Final = frozenset({OutcomeStatus.NOT_RUN, OutcomeStatus.INVALID_ARGUMENTS})
"""What an owner may write of a call that the tool service never took."""


def effects_happen_once(task: TaskHistory) -> Iterator[str]:
    """I12. Between two effects of a call a person has said that it did not happen."""
    calls = {call.call_id: call for call in task.calls}
    for call_id, count in Counter(effect.call_id for effect in task.effects).items():
        call = calls.get(call_id)
        if count < 2 or (call is not None and call.effect_class in _REPEATABLE):
            continue
        effects = [effect for effect in task.effects if effect.call_id == call_id]
        if not may_run_again(task, effects):
            places = ", ".join(effect.place for effect in effects)
            yield f"the effect of {_named(call_id, call)} happened {count} times: {places}"


def effects_are_what_the_record_says(task: TaskHistory) -> Iterator[str]:
    """I12, of calls with a clear end: done is done, and not run is not run."""
    happened = {effect.call_id for effect in task.effects}
    for call in task.calls:
        if call.tool not in RECORDING_TOOLS:
            continue
        succeeded = call.outcome is not None and call.outcome.status is OutcomeStatus.SUCCEEDED
        by_word = call.outcome is not None and call.outcome.detail == HAPPENED
        if succeeded and not by_word and call.call_id not in happened:
            yield f"{_named(call.call_id, call)} is recorded as succeeded, but its effect is not there"
        if call.state is CallState.NOT_RUN and call.call_id in happened:
            yield f"{_named(call.call_id, call)} is recorded as not run, but its effect happened"


def outcomes_come_once(task: TaskHistory) -> Iterator[str]:
    """I12, of results: a call has one."""
    first: dict[str, LedgerEntry] = {}
    for entry, outcome in of_kind(task.entries, ToolOutcome):
        if outcome.call_id in first:
            yield f"{place(entry)} is another outcome of call {outcome.call_id}, after {place(first[outcome.call_id])}"
        first.setdefault(outcome.call_id, entry)


def records_end_with_their_own_attempt(task: TaskHistory) -> Iterator[str]:
    """I12, of the tools' records: what an older attempt comes to is nothing to the one that was decided on since."""
    for call in task.calls:
        outcome_attempt = call.outcome.call_attempt if call.outcome is not None else 0
        if outcome_attempt and outcome_attempt != call.call_attempt:
            yield (
                f"{_named(call.call_id, call)} has the outcome of attempt {outcome_attempt}, and stands at "
                f"{call.call_attempt}"
            )


def calls_were_written_ahead(task: TaskHistory) -> Iterator[str]:
    """I13: the intent is committed before the tool service hears of the call, and says the same."""
    known, given = intents(task), leaves(task)
    for call in task.calls:
        if call.call_id not in known:
            yield f"{_named(call.call_id, call)} is on the tools' record, but the ledger has no intent of it"
            continue
        entry, intent = known[call.call_id]
        if entry.recorded_at > call.accepted_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            yield f"{_named(call.call_id, call)} was taken before its intent was committed ({place(entry)})"
        edited = given[call.call_id][1].edited_arguments_json if call.call_id in given else ""
        intended_hash = arguments_hash(intent.tool, edited or intent.arguments_json)
        if call.arguments_hash and call.arguments_hash != intended_hash:
            yield f"{_named(call.call_id, call)} was made with another tool or arguments than {place(entry)} says"
        if call.epoch < entry.epoch:
            yield (
                f"{_named(call.call_id, call)} was authorised by epoch {describe_epoch(call.epoch)}, which is older "
                f"than {describe_epoch(entry.epoch)} of its intent ({place(entry)})"
            )


def effects_were_written_ahead(task: TaskHistory) -> Iterator[str]:
    """I13, of the outside."""
    known = intents(task)
    for effect in task.effects:
        if effect.call_id not in known:
            yield f"an effect of call {effect.call_id} ({effect.place}) happened without an intent in the ledger"
        elif effect.epoch < known[effect.call_id][0].epoch:
            yield (
                f"the effect of call {effect.call_id} ({effect.place}) came under epoch "
                f"{describe_epoch(effect.epoch)}, older than its intent's"
            )


def effects_are_on_record(task: TaskHistory) -> Iterator[str]:
    """I19, of tools."""
    known = {call.call_id for call in task.calls}
    for effect in task.effects:
        if effect.call_id not in known:
            yield f"an effect of call {effect.call_id} ({effect.place}) happened, and the tools have no record of it"


def effects_were_marked(task: TaskHistory) -> Iterator[str]:
    """I14: an effect begins only when its call was marked as started under the fence."""
    calls = {call.call_id: call for call in task.calls}
    for effect in task.effects:
        call = calls.get(effect.call_id)
        if call is not None and call.started_at is None:
            yield f"the effect of {_named(effect.call_id, call)} ({effect.place}) happened, though it was never started"


def nothing_starts_behind_the_fence(task: TaskHistory) -> Iterator[str]:
    """I14, for the newest raise or closing of the tools' fence: both times are read under the fence's lock."""
    fence = task.fence
    for call in task.calls if fence is not None else ():
        assert fence is not None
        if call.started_at is None or call.started_at <= fence.changed_at + TIME_GRAIN_SECONDS:
            continue
        if call.epoch < fence.epoch:
            yield (
                f"{_named(call.call_id, call)} was started under epoch {describe_epoch(call.epoch)} after the tools' "
                f"fence had been raised to {claim(fence.fence)}"
            )
        elif fence.closed:
            yield f"{_named(call.call_id, call)} was started after the tools' fence had been closed"


def outcomes_are_what_the_tools_recorded(task: TaskHistory) -> Iterator[str]:
    """I15."""
    calls = {call.call_id: call for call in task.calls}
    ours = drives_itself(task) or drives_functions(task)
    by_waits = {entry.sequence for entry, _ in settled_by_waits(task)}
    spawns = {call_id for call_id, (_, intent) in intents(task).items() if intent.tool == SPAWN_SUB_AGENTS}
    for entry, outcome in of_kind(own(task.entries), ToolOutcome):
        call = calls.get(outcome.call_id)
        if call is not None:
            if (why := _contradiction(outcome.outcome, call)) and not is_by_resolution(task, entry, outcome):
                yield f"{place(entry)} says {outcome.outcome.status} of {_named(outcome.call_id, call)}, but {why}"
        elif outcome.outcome == STOPPED and outcome.call_id in spawns:
            continue  # an owner that ended its task: sub-agents are no matter of the tools
        elif ours and outcome.outcome.status not in _WITHOUT_RECORD and entry.sequence not in by_waits:
            yield (
                f"{place(entry)} says {outcome.outcome.status} of call {outcome.call_id}; the tools have no "
                f"record of it"
            )


def _contradiction(outcome: Outcome, call: CallRecord) -> str:
    """Why the record does not bear the ledger out. In doubt is never wrong: what is known later does not change it."""
    if outcome.status is OutcomeStatus.IN_DOUBT:
        return ""
    if outcome.status is OutcomeStatus.NOT_RUN:
        return "it was started" if call.started_at is not None else ""
    if call.state is not CallState.FINISHED:
        return f"its record is {call.state}"
    same = outcome_hash(outcome) == call.outcome_hash or not call.outcome_hash
    cut = outcome.truncated and call.outcome is not None and call.outcome.status is outcome.status
    return "" if same or cut else "its record has another outcome"


def _named(call_id: str, call: CallRecord | None) -> str:
    return f"call {call_id}" if call is None else f"call {call_id} ({call.tool}, {call.effect_class})"


def intents_are_said_once(task: TaskHistory) -> Iterator[str]:
    """I13: a call's name is given once."""
    first = intents(task)
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        if first[intent.call_id][0] is not entry:
            yield f"{place(entry)} is another intent of call {intent.call_id}, after {place(first[intent.call_id][0])}"


_CALLS_AND_EFFECTS_CHECKS: Final = (
    Check("I12", "what must not happen twice did not", ("effects", "calls"), effects_happen_once),
    Check("I12", "recorded ends and effects agree", ("effects", "calls"), effects_are_what_the_record_says),
    Check("I12", "a call has one outcome", ("entries",), outcomes_come_once),
    Check("I12", "a call's outcome is its attempt's", ("calls",), records_end_with_their_own_attempt),
    Check("I13", "calls have an intent that was committed before", ("calls", "entries"), calls_were_written_ahead),
    Check("I13", "effects have an intent", ("effects", "entries"), effects_were_written_ahead),
    Check("I13", "a call is intended once", ("entries",), intents_are_said_once),
    Check("I14", "no start after the fence was raised or closed", ("calls", "fences"), nothing_starts_behind_the_fence),
    Check("I14", "effects were marked as started", ("effects", "calls"), effects_were_marked),
    Check("I15", "outcomes are the tools' own", ("calls", "entries"), outcomes_are_what_the_tools_recorded),
    Check("I19", "effects are on the tools' record", ("effects", "calls"), effects_are_on_record),
)


CHECKS: Final = (
    *_IN_DOUBT_CHECKS,
    *_CALLS_AND_EFFECTS_CHECKS,
)
