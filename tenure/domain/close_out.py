"""Endings: how a task is to end once somebody asked for it, and who carries that out.

A task has at most one pending ending. Whoever holds the task carries it out; a task that nobody holds is ended by the
ledger itself, unless a tool call is open: then a claim must be taken and the tools fenced first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tenure.domain.conversation import text_of
from tenure.domain.crash_loop import OwnerDeaths
from tenure.domain.entries import (
    AssistantMessage,
    Entry,
    ModelAttempt,
    OperatorRequest,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
)
from tenure.domain.errors import InvalidRequest, TenureError, WrongState
from tenure.domain.in_doubt import Resolution, ResolveCall, SettledByResolution, apply_resolution
from tenure.domain.states import MOVES, TERMINAL, WAITING, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, STOPPED
from tenure.domain.task import LeaseLostPolicy, offered_function
from tenure.domain.tools import (
    IN_DOUBT,
    NOT_RUN,
    USUAL_OUTPUT_BYTES,
    CallState,
    CallStatus,
    CallStatuses,
    Outcome,
    ToolDefinition,
)
from tenure.domain.truncation import bounded

PARKED: Final = WAITING | {TaskState.RETRY_SCHEDULED}
ORDERLY: Final = frozenset({Reason.WORKER_DRAINED, Reason.WORKER_HALTED, Reason.OPERATOR_TRANSFER, Reason.ENDING_OVER})
"""Reasons of claims that were given back: no lease was lost. ENDING_OVER: a coordinator opened the task to end it, and
the task no longer had that ending."""

NOBODY_DIED: Final = ORDERLY | {Reason.CLAIM_LOST, Reason.START_TIMEOUT}
"""Reasons that do not count toward CRASH_LOOP. CLAIM_LOST: a claim that vanished with etcd, or with the replica that
had made it, says nothing of its owner. START_TIMEOUT: whoever did not open the task was not killed by it. An owner's
death shows in its stream, its lease or its silence, and those have reasons of their own."""


@dataclass(frozen=True, slots=True)
class PendingEnding:
    """How the task is to end, why, and who wants it. `result` "": whatever it came to."""

    to_state: TaskState
    reason: str
    message: str
    actor: str
    result: str = ""


def follow_up(state: TaskState, ending: PendingEnding | None, *, has_open_calls: bool) -> TaskState | None:
    """Where a task with a pending ending goes at once; None: it stays, and a claim will end it.

    A parked task with an open call goes back to the queue, where it can be opened to be ended; so does one that cannot
    end like this from where it is, and from the queue it goes on.
    """
    if ending is None or state in TERMINAL or state is TaskState.RUNNING:
        return None
    if state in PARKED and (has_open_calls or ending.to_state not in MOVES[state]):
        return TaskState.QUEUED
    return None if has_open_calls else ending.to_state


def ending_of_lost_claim(
    policy: LeaseLostPolicy, deaths: OwnerDeaths, reason: str, message: str
) -> PendingEnding | None:
    """What a lost claim leads to besides the queue; `deaths` counts this one."""
    if policy is LeaseLostPolicy.TIME_OUT and reason not in ORDERLY:
        return PendingEnding(TaskState.TIMED_OUT, reason, message, "checkpoint")
    if deaths.is_crash_loop:
        sentence = f"owners died {deaths.count} times in a row without a new step: {', '.join(deaths.owners)}"
        return PendingEnding(TaskState.FAILED, Reason.CRASH_LOOP, sentence, "checkpoint")
    return None


@dataclass(frozen=True, slots=True)
class CallOpened:
    """An intent."""

    call_id: str


@dataclass(frozen=True, slots=True)
class CallSettled:
    """An outcome."""

    call_id: str


def open_calls_after(
    open_calls: tuple[str, ...], facts: Iterable[CallOpened | CallSettled]
) -> tuple[str, ...] | TenureError:
    """The calls without an outcome after these facts, or why they cannot follow."""
    calls = dict.fromkeys(open_calls)
    for fact in facts:
        if isinstance(fact, CallOpened):
            if fact.call_id in calls:
                return InvalidRequest(violations=[("entries", f"the call {fact.call_id} is open already")])
            calls[fact.call_id] = None
        elif fact.call_id in calls:
            del calls[fact.call_id]
        else:
            return InvalidRequest(violations=[("entries", f"the call {fact.call_id} is not open")])
    return tuple(calls)


def refuse_early_end(to_state: TaskState, open_calls: tuple[str, ...]) -> TenureError | None:
    """No task ends with a call that may still begin: its outcome is written in the commit that ends the task."""
    if to_state in TERMINAL and open_calls:
        names = ", ".join(open_calls[:8])
        return WrongState(
            f"the task cannot end as {to_state} while calls have no outcome: {names}", reason="OPEN_INTENTS"
        )
    return None


@dataclass(slots=True)
class Unfinished:
    """What somebody who ends a task needs to know of its history.

    `intents`: of the calls without an outcome; `resolutions`: the newest word of a person on each of them.
    """

    step: int = 0
    tools: tuple[ToolDefinition, ...] = ()
    intents: dict[str, ToolIntent] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    last_text: str = ""

    @property
    def open_intents(self) -> list[ToolIntent]:
        """In the order in which they were opened."""
        return list(self.intents.values())


def unfinished(entries: Iterable[Entry]) -> Unfinished:
    """The fold of an ending. It takes no part in the conversation, so a history that no owner can read has an end.

    The calls without an outcome are those of `open_calls_after`, which the ledger refuses to end a task with.
    """
    unfinished, is_summary = Unfinished(), False
    for entry in entries:
        unfinished.step = max(unfinished.step, entry.step)
        match entry.body:
            case ToolsDefined(tools=tools):
                unfinished.tools = tools
            case ModelAttempt(summary_through_step=through):
                is_summary = through > 0
            case AssistantMessage(content=content) if not is_summary:
                unfinished.last_text = text_of(content) or unfinished.last_text
            case ToolIntent(call_id=call_id):
                unfinished.intents[call_id] = entry.body
            case ToolOutcome(call_id=call_id):
                unfinished.intents.pop(call_id, None)
                unfinished.resolutions.pop(call_id, None)
            case OperatorRequest(act=ResolveCall(call_id, attempt, decision)):
                unfinished.resolutions[call_id] = Resolution(attempt, decision, entry.body.reason, entry.actor)
    return unfinished


def outcomes_of_ended_calls(
    open_intents: Iterable[ToolIntent],
    statuses: CallStatuses,
    resolutions: Mapping[str, Resolution],
    tools: Iterable[ToolDefinition],
) -> list[ToolOutcome]:
    """What the ledger records for the open intents when their task is ended: the record, NOT_RUN or IN_DOUBT.

    `standings` are those of the closed tool fence: a call that never reached the tools does not any more.
    `resolutions`: words that no owner has carried to the tools yet. What a person said of a call in doubt counts; but
    an end runs nothing again. It is cut to what its tool, of the task's `tools`, may say: a requeued task reads it.
    """
    limits = {tool.name: tool.output_limit_bytes for tool in tools}
    return [
        ToolOutcome(
            intent.call_id,
            _outcome(
                intent.tool,
                statuses.get(intent.call_id, _NEVER_CAME),
                resolutions.get(intent.call_id),
                limits.get(intent.tool, USUAL_OUTPUT_BYTES),
            ),
        )
        for intent in open_intents
    ]


_NEVER_CAME: Final = CallStatus(CallState.NOT_RUN)


def _outcome(tool: str, status: CallStatus, resolution: Resolution | None, limit_bytes: int) -> Outcome:
    state, recorded, call_attempt = status
    if state is CallState.FINISHED and recorded is not None:
        return recorded
    if tool == SPAWN_SUB_AGENTS and state is CallState.NOT_RUN:
        return STOPPED
    if state is CallState.IN_DOUBT and resolution is not None:
        taken = apply_resolution(resolution, call_attempt, runner_gone=False)
        return bounded(taken.outcome, limit_bytes) if isinstance(taken, SettledByResolution) else IN_DOUBT
    return IN_DOUBT if state in {CallState.STARTED, CallState.IN_DOUBT} else NOT_RUN


# Words for an agent from outside: who still reads them, and what may not happen before they were read.

UNREAD_MESSAGES: Final = "UNREAD_MESSAGES"
NO_READER: Final = "NO_READER"
MOST_FACTS: Final = 1000
"""Of others, to one task: their words cost tokens of its budget, and are kept as long as it is."""


def refuse_message(
    state: TaskState, ending: PendingEnding | None, facts_so_far: int, loop: str = ""
) -> TenureError | None:
    """Why words to this task would not be read; None: they will be."""
    if state in TERMINAL or ending is not None:
        message = f"the task has ended as {state}" if state in TERMINAL else "the task's end was asked for"
        return WrongState(
            f"{message}: its agent reads no more messages; ForkTask with a message continues it as a new task",
            metadata={"state": state.value},
        )
    if offered_function(loop):
        return WrongState("a function carries this task out, which reads no messages", reason=NO_READER)
    if facts_so_far >= MOST_FACTS:
        return WrongState(f"{MOST_FACTS} messages were sent to this task", reason="MESSAGES_FULL")
    return None


def refuse_success_with_unread(
    to_state: TaskState, ending: PendingEnding | None, unread_sequence: int
) -> TenureError | None:
    """No task succeeds past words that its owner has not seen. `unread_sequence`: where they are; 0: there are none.

    Other ends do not wait for words, and one that was asked for comes first.
    """
    if to_state is not TaskState.SUCCEEDED or ending is not None or not unread_sequence:
        return None
    return WrongState(
        f"there is a user's message at {unread_sequence} that was not read: open again and go on",
        reason=UNREAD_MESSAGES,
        metadata={"sequence": str(unread_sequence)},
    )
