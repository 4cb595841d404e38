"""Checks of tool calls: intents, call records, effects, and calls in doubt (I12 to I15, I19, I40)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from checker.check import Check
from checker.history import CallRecord, LedgerEntry, ObservedEffect, TaskHistory
from checker.reading import (
    TIME_GRAIN_SECONDS,
    approvals,
    arguments_hash,
    claim,
    drives_functions,
    drives_itself,
    intents,
    of_kind,
    outcome_hash,
    own,
    place,
    replays,
    settled_by_waits,
)
from tenure.domain.entries import OperatorRequest, ToolIntent, ToolOutcome, Transition
from tenure.domain.fencing import describe_epoch
from tenure.domain.in_doubt import ABANDONED, HAPPENED, Abandon, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.repeated_effects import ALREADY_HAPPENED
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, STOPPED
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

# Calls in doubt: a resolution is given once, while the task waits for it, and decides only its own call attempt.

_LEDGER: Final = "checkpoint"
"""The actor that requeues tasks whose calls are no longer in doubt, which needs no resolution."""

_BY_RESOLUTION: Final[dict[tuple[OutcomeStatus, str], tuple[type[Abandon | Happened], str]]] = {
    (OutcomeStatus.IN_DOUBT, ABANDONED): (Abandon, "was abandoned"),
    (OutcomeStatus.SUCCEEDED, HAPPENED): (Happened, "happened by a resolution"),
}
"""The outcomes that only a person's resolution can cause."""


def resolutions(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ResolveCall]]:
    """Yields the resolutions of calls in doubt in order."""
    for entry, request in of_kind(own(task.entries), OperatorRequest):
        if isinstance(request.act, ResolveCall):
            yield entry, request.act


def may_run_again(task: TaskHistory, effects: Sequence[ObservedEffect]) -> bool:
    """Whether a person resolved, between each two of these effects of a call, that the call had not happened."""
    denials = [
        (entry, resolution)
        for entry, resolution in resolutions(task)
        if resolution.call_id == effects[0].call_id and isinstance(resolution.decision, DidNotHappen)
    ]
    opened = {entry.sequence: _next_epoch(task, entry) for entry, _ in denials}
    ordered = sorted(effects, key=lambda effect: effect.epoch)
    return all(
        any(first.epoch < opened[entry.sequence] <= second.epoch for entry, _ in denials)
        for first, second in pairwise(ordered)
    )


def is_by_resolution(task: TaskHistory, entry: LedgerEntry, tool_outcome: ToolOutcome) -> bool:
    """Whether a person had resolved that this call attempt happened, with this result.

    A close-out before the tool service has the resolution writes such an outcome without the tool service.
    """
    outcome = tool_outcome.outcome
    resolved = (tool_outcome.call_id, outcome.call_attempt - 1)
    return (outcome.status, outcome.detail) == (OutcomeStatus.SUCCEEDED, HAPPENED) and any(
        (resolution.call_id, resolution.call_attempt) == resolved and _is_result_of(resolution.decision, outcome)
        for before, resolution in resolutions(task)
        if before.sequence < entry.sequence
    )


def _is_result_of(decision: Decision, outcome: Outcome) -> bool:
    """Whether the outcome has the resolution's result.

    Without a result it has a fixed text; a long one is truncated.
    """
    return isinstance(decision, Happened) and (outcome.truncated or decision.result in {"", outcome.content})


def _next_epoch(task: TaskHistory, resolution: LedgerEntry) -> int:
    """Returns the epoch of the first owner after the resolution, or 0 without one."""
    return next((entry.epoch for entry in task.entries if entry.sequence > resolution.sequence and entry.epoch), 0)


def resolutions_are_awaited(task: TaskHistory) -> Iterator[str]:
    """I40: the task waits for the resolution of this call and attempt, and is queued after the last resolution.

    A wait that names no calls accepts any.
    """
    waits, named, before = False, dict[str, int](), None
    for entry in own(task.entries):
        match entry.body:
            case Transition() as transition:
                by_resolution = transition.reason == Reason.CALL_RESOLVED and entry.actor != _LEDGER
                if by_resolution and (before is None or named):
                    unresolved = ", ".join(named) or "calls in doubt"
                    yield f"{place(entry)} continues the task before a resolution of {unresolved}"
                waits = transition.to_state is TaskState.WAITING_USER and transition.reason == Reason.TOOL_IN_DOUBT
                named = {call.call_id: call.call_attempt for call in transition.calls_in_doubt}
                before = None
            case OperatorRequest(act=ResolveCall() as resolution):
                if entry.epoch:
                    yield f"{place(entry)} was written under a claim, but no claim holds a waiting task"
                if not waits or (named and resolution.call_id not in named):
                    yield f"{place(entry)} resolves call {resolution.call_id}, for which the task does not wait"
                elif named.get(resolution.call_id, 0) not in {0, resolution.call_attempt}:
                    yield (
                        f"{place(entry)} resolves attempt {resolution.call_attempt} of call {resolution.call_id}, "
                        f"but the task waits for attempt {named[resolution.call_id]}"
                    )
                named.pop(resolution.call_id, None)
                waits, before = waits and bool(named), entry
            case _:
                pass


def settled_calls_have_a_resolution(task: TaskHistory) -> Iterator[str]:
    """I40, for outcomes: an outcome by resolution belongs to the call attempt after the resolved one."""
    resolved = {
        (type(resolution.decision), resolution.call_id, resolution.call_attempt + 1): entry.sequence
        for entry, resolution in reversed([*resolutions(task)])
    }
    for entry, tool_outcome in of_kind(own(task.entries), ToolOutcome):
        outcome = tool_outcome.outcome
        kind, claimed = _BY_RESOLUTION.get((outcome.status, outcome.detail), (None, ""))
        if kind is None:
            continue
        if resolved.get((kind, tool_outcome.call_id, outcome.call_attempt), entry.sequence) >= entry.sequence:
            yield (
                f"{place(entry)} says that call {tool_outcome.call_id} {claimed}, "
                "but that call attempt has no such resolution"
            )


def denied_calls_have_a_dead_runner(task: TaskHistory) -> Iterator[str]:
    """I40: "did not happen" is accepted only if the runner is gone, else the runner may still run the call."""
    for entry, resolution in resolutions(task):
        decision = resolution.decision
        if isinstance(decision, DidNotHappen) and not (decision.runner_is_gone or decision.runner_proven_gone):
            missing = "there is no proof and no person's statement that its runner is gone"
            yield f"{place(entry)} says that call {resolution.call_id} did not happen, but {missing}"


def resolved_attempts_do_not_start(task: TaskHistory) -> Iterator[str]:
    """I40: a call runs again only as the next attempt, else messages of the old runner would count for the new one."""
    calls = {call.call_id: call for call in task.calls}
    for entry, resolution in resolutions(task):
        call = calls.get(resolution.call_id)
        if call is None or call.started_at is None or call.call_attempt != resolution.call_attempt:
            continue
        if call.started_at > entry.recorded_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            attempt = f"attempt {call.call_attempt}"
            yield (f"call {resolution.call_id} was started as {attempt} after {place(entry)}, which resolved it")


_IN_DOUBT_CHECKS: Final = (
    Check("I40", "a task waits for each resolution", ("entries",), resolutions_are_awaited),
    Check("I40", "outcomes by resolution have a resolution", ("entries",), settled_calls_have_a_resolution),
    Check(
        "I40",
        "calls that did not happen have no runner",
        ("entries",),
        denied_calls_have_a_dead_runner,
    ),
    Check(
        "I40", "a resolved call runs again as the next attempt", ("calls", "entries"), resolved_attempts_do_not_start
    ),
)

RECORDING_TOOLS: Final = frozenset({"append_record", "append_record_unsafe"})
"""The tools whose effects are recorded in files outside of the installation."""

_REPEATABLE: Final = frozenset({EffectClass.PURE, EffectClass.IDEMPOTENT})
_WITHOUT_RECORD: Final = frozenset({OutcomeStatus.NOT_RUN, OutcomeStatus.INVALID_ARGUMENTS})
"""The outcomes that an owner may write for a call that the tool service never accepted."""


def effects_happen_once(task: TaskHistory) -> Iterator[str]:
    """I12. A second effect of a call needs a resolution between both effects that the call did not happen."""
    calls = {call.call_id: call for call in task.calls}
    for call_id, count in Counter(effect.call_id for effect in task.effects).items():
        call = calls.get(call_id)
        if count < 2 or (call is not None and call.effect_class in _REPEATABLE):
            continue
        effects = [effect for effect in task.effects if effect.call_id == call_id]
        if not may_run_again(task, effects):
            places = ", ".join(effect.place for effect in effects)
            yield f"the effect of {_named(call_id, call)} happened {count} times: {places}"


def effects_match_their_records(task: TaskHistory) -> Iterator[str]:
    """I12, for calls with a definite outcome: a succeeded call has an effect, and a call that did not run has none.

    The lines of calls under another key than their own do not name the call: I44 and I45 are about those.
    """
    happened = {effect.call_id for effect in task.effects}
    for call in task.calls:
        if call.tool not in RECORDING_TOOLS or call.idempotency_key or _made_by_another(call):
            continue
        succeeded = call.outcome is not None and call.outcome.status is OutcomeStatus.SUCCEEDED
        by_resolution = call.outcome is not None and call.outcome.detail == HAPPENED
        if succeeded and not by_resolution and call.call_id not in happened:
            yield f"{_named(call.call_id, call)} is recorded as succeeded, but has no effect"
        if call.state is CallState.NOT_RUN and call.call_id in happened:
            yield f"{_named(call.call_id, call)} is recorded as not run, but its effect happened"


def _made_by_another(call: CallRecord) -> bool:
    """Whether the call did nothing, because another one with its effect key had made the effect."""
    return call.outcome is not None and call.outcome.detail == ALREADY_HAPPENED


def outcomes_come_once(task: TaskHistory) -> Iterator[str]:
    """I12, for outcomes in the ledger: a call has one."""
    first: dict[str, LedgerEntry] = {}
    for entry, outcome in of_kind(task.entries, ToolOutcome):
        if outcome.call_id in first:
            yield f"{place(entry)} is another outcome of call {outcome.call_id}, after {place(first[outcome.call_id])}"
        first.setdefault(outcome.call_id, entry)


def records_have_the_outcome_of_their_attempt(task: TaskHistory) -> Iterator[str]:
    """I12, for call records: the outcome of an older attempt is not the outcome of the attempt after a resolution."""
    for call in task.calls:
        outcome_attempt = call.outcome.call_attempt if call.outcome is not None else 0
        if outcome_attempt and outcome_attempt != call.call_attempt:
            yield (
                f"{_named(call.call_id, call)} has the outcome of attempt {outcome_attempt}, but its record is at "
                f"attempt {call.call_attempt}"
            )


def calls_have_an_earlier_intent(task: TaskHistory) -> Iterator[str]:
    """I13: the intent is committed before the tool service gets the call, and has the same tool and arguments."""
    known, approved = intents(task), approvals(task)
    for call in task.calls:
        if call.call_id not in known:
            yield f"{_named(call.call_id, call)} has a call record, but no intent in the ledger"
            continue
        entry, intent = known[call.call_id]
        if entry.recorded_at > call.accepted_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            yield f"{_named(call.call_id, call)} was accepted before its intent was committed ({place(entry)})"
        edited = approved[call.call_id][1].edited_arguments_json if call.call_id in approved else ""
        intended_hash = arguments_hash(intent.tool, edited or intent.arguments_json)
        if call.arguments_hash and call.arguments_hash != intended_hash:
            yield f"{_named(call.call_id, call)} was made with another tool or other arguments than {place(entry)}"
        if call.epoch < entry.epoch:
            yield (
                f"{_named(call.call_id, call)} was authorised by epoch {describe_epoch(call.epoch)}, which is older "
                f"than epoch {describe_epoch(entry.epoch)} of its intent ({place(entry)})"
            )


def effects_have_an_intent(task: TaskHistory) -> Iterator[str]:
    """I13, for outside effects."""
    known = intents(task)
    for effect in task.effects:
        if effect.call_id not in known:
            yield f"an effect of call {effect.call_id} ({effect.place}) happened without an intent in the ledger"
        elif effect.epoch < known[effect.call_id][0].epoch:
            yield (
                f"the effect of call {effect.call_id} ({effect.place}) has epoch "
                f"{describe_epoch(effect.epoch)}, which is older than its intent's"
            )


def effects_have_a_call_record(task: TaskHistory) -> Iterator[str]:
    """I19, for outside effects."""
    known = {call.call_id for call in task.calls}
    for effect in task.effects:
        if effect.call_id not in known:
            yield f"an effect of call {effect.call_id} ({effect.place}) happened, but the call has no record"


def effects_follow_started(task: TaskHistory) -> Iterator[str]:
    """I14: an effect begins only after its call was recorded as STARTED under the fence."""
    calls = {call.call_id: call for call in task.calls}
    for effect in task.effects:
        call = calls.get(effect.call_id)
        if call is not None and call.started_at is None:
            yield f"the effect of {_named(effect.call_id, call)} ({effect.place}) happened, but it was never started"


def no_call_starts_after_the_fence(task: TaskHistory) -> Iterator[str]:
    """I14, for the newest raise or closing of the tool fence: both times are read under the fence's lock."""
    fence = task.fence
    for call in task.calls if fence is not None else ():
        assert fence is not None
        if call.started_at is None or call.started_at <= fence.changed_at + TIME_GRAIN_SECONDS:
            continue
        if call.epoch < fence.epoch:
            yield (
                f"{_named(call.call_id, call)} was started under epoch {describe_epoch(call.epoch)} after the tool "
                f"fence had been raised to {claim(fence.fence)}"
            )
        elif fence.closed:
            yield f"{_named(call.call_id, call)} was started after the tool fence had been closed"


def outcomes_match_call_records(task: TaskHistory) -> Iterator[str]:
    """I15."""
    calls = {call.call_id: call for call in task.calls}
    is_own_loop = drives_itself(task) or (drives_functions(task) and not replays(task))
    by_waits = {entry.sequence for entry, _ in settled_by_waits(task)}
    spawns = {call_id for call_id, (_, intent) in intents(task).items() if intent.tool == SPAWN_SUB_AGENTS}
    for entry, outcome in of_kind(own(task.entries), ToolOutcome):
        call = calls.get(outcome.call_id)
        if call is not None:
            if (problem := _contradiction(outcome.outcome, call)) and not is_by_resolution(task, entry, outcome):
                yield f"{place(entry)} says {outcome.outcome.status} of {_named(outcome.call_id, call)}, but {problem}"
        elif outcome.outcome == STOPPED and outcome.call_id in spawns:
            continue  # the owner ended its task; sub-agents have no call record
        elif is_own_loop and outcome.outcome.status not in _WITHOUT_RECORD and entry.sequence not in by_waits:
            yield (
                f"{place(entry)} says {outcome.outcome.status} of call {outcome.call_id}, but the call has no record"
            )


def _contradiction(outcome: Outcome, call: CallRecord) -> str:
    """Returns how the call record contradicts the ledger, or "". IN_DOUBT is never wrong, whatever is known later."""
    if outcome.status is OutcomeStatus.IN_DOUBT:
        return ""
    if outcome.status is OutcomeStatus.NOT_RUN:
        return "it was started" if call.started_at is not None else ""
    if call.state is not CallState.FINISHED:
        return f"its record is {call.state}"
    same = outcome_hash(outcome) == call.outcome_hash or not call.outcome_hash
    truncated = outcome.truncated and call.outcome is not None and call.outcome.status is outcome.status
    return "" if same or truncated else "its record has another outcome"


def _named(call_id: str, call: CallRecord | None) -> str:
    return f"call {call_id}" if call is None else f"call {call_id} ({call.tool}, {call.effect_class})"


def calls_have_one_intent(task: TaskHistory) -> Iterator[str]:
    """I13: a call id has one intent."""
    first = intents(task)
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        if first[intent.call_id][0] is not entry:
            yield f"{place(entry)} is another intent of call {intent.call_id}, after {place(first[intent.call_id][0])}"


_CALLS_AND_EFFECTS_CHECKS: Final = (
    Check("I12", "effects that must not happen twice did not", ("effects", "calls"), effects_happen_once),
    Check("I12", "call records and effects agree", ("effects", "calls"), effects_match_their_records),
    Check("I12", "a call has one outcome", ("entries",), outcomes_come_once),
    Check("I12", "an outcome belongs to the record's attempt", ("calls",), records_have_the_outcome_of_their_attempt),
    Check("I13", "calls have an intent that was committed before", ("calls", "entries"), calls_have_an_earlier_intent),
    Check("I13", "effects have an intent", ("effects", "entries"), effects_have_an_intent),
    Check("I13", "a call has one intent", ("entries",), calls_have_one_intent),
    Check(
        "I14",
        "no call starts after the tool fence was raised or closed",
        ("calls", "fences"),
        no_call_starts_after_the_fence,
    ),
    Check("I14", "effects follow STARTED", ("effects", "calls"), effects_follow_started),
    Check("I15", "outcomes are those of the call records", ("calls", "entries"), outcomes_match_call_records),
    Check("I19", "effects have a call record", ("effects", "calls"), effects_have_a_call_record),
)


CHECKS: Final = (
    *_IN_DOUBT_CHECKS,
    *_CALLS_AND_EFFECTS_CHECKS,
)
