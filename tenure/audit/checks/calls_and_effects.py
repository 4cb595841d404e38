"""Tools: nothing runs before it is written down or behind the fence, and what must not happen twice does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.checks.in_doubt import is_by_word, may_run_again
from tenure.audit.history import Call, LedgerEntry
from tenure.audit.reading import (
    TIME_GRAIN_SECONDS,
    claim,
    drives_functions,
    drives_itself,
    intents,
    leaves,
    of_kind,
    own,
    place,
    settled_by_waits,
)
from tenure.audit.task_history import TaskHistory
from tenure.audit.tool_hashes import arguments_hash, outcome_hash
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.epochs import describe_epoch
from tenure.domain.in_doubt import HAPPENED
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, STOPPED
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

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
        told = call.outcome.call_attempt if call.outcome is not None else 0
        if told and told != call.call_attempt:
            yield f"{_named(call.call_id, call)} has the outcome of attempt {told}, and stands at {call.call_attempt}"


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
        asked = arguments_hash(intent.tool, edited or intent.arguments_json)
        if call.arguments_hash and call.arguments_hash != asked:
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
    for entry, told in of_kind(own(task.entries), ToolOutcome):
        call = calls.get(told.call_id)
        if call is not None:
            if (why := _contradiction(told.outcome, call)) and not is_by_word(task, entry, told):
                yield f"{place(entry)} says {told.outcome.status} of {_named(told.call_id, call)}, but {why}"
        elif told.outcome == STOPPED and told.call_id in spawns:
            continue  # an owner that ended its task: sub-agents are no matter of the tools
        elif ours and told.outcome.status not in _WITHOUT_RECORD and entry.sequence not in by_waits:
            yield f"{place(entry)} says {told.outcome.status} of call {told.call_id}; the tools have no record of it"


def _contradiction(told: Outcome, call: Call) -> str:
    """Why the record does not bear the ledger out. In doubt is never wrong: what is known later does not change it."""
    if told.status is OutcomeStatus.IN_DOUBT:
        return ""
    if told.status is OutcomeStatus.NOT_RUN:
        return "it was started" if call.started_at is not None else ""
    if call.state is not CallState.FINISHED:
        return f"its record is {call.state}"
    same = outcome_hash(told) == call.outcome_hash or not call.outcome_hash
    cut = told.truncated and call.outcome is not None and call.outcome.status is told.status
    return "" if same or cut else "its record has another outcome"


def _named(call_id: str, call: Call | None) -> str:
    return f"call {call_id}" if call is None else f"call {call_id} ({call.tool}, {call.effect_class})"


def intents_are_said_once(task: TaskHistory) -> Iterator[str]:
    """I13: a call's name is given once."""
    first = intents(task)
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        if first[intent.call_id][0] is not entry:
            yield f"{place(entry)} is another intent of call {intent.call_id}, after {place(first[intent.call_id][0])}"


CHECKS: Final = (
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
