"""Decides close-outs: which pending ending a task gets, who carries it out, and the outcomes of its open calls.

A task has at most one pending ending. The worker that holds the task carries the ending out. The ledger itself ends a
task without a claim, unless a tool call is open: then a coordinator must first claim the task and fence the tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tenure.domain.agents import AgentKind
from tenure.domain.conversation import text_of
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
from tenure.domain.in_doubt import Resolution, ResolveCall, ResolvedCall, SettledByResolution, apply_resolution
from tenure.domain.states import MOVES, TERMINAL, WAITING, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, STOPPED
from tenure.domain.task import LeaseLostPolicy, is_undo_loop, offered_function
from tenure.domain.tools import (
    IN_DOUBT,
    NOT_RUN,
    UNRECORDED,
    USUAL_OUTPUT_BYTES,
    CallState,
    CallStatus,
    CallStatuses,
    Outcome,
    ToolDefinition,
    bounded,
)
from tenure.domain.waits import MAX_WAIT_SECONDS, MIN_WAIT_SECONDS, BeginWait

PARKED: Final = WAITING | {TaskState.RETRY_SCHEDULED}
ORDERLY: Final = frozenset(
    {Reason.WORKER_DRAINED, Reason.WORKER_HALTED, Reason.OPERATOR_TRANSFER, Reason.POOL_CHANGED, Reason.ENDING_OVER}
)
"""Reasons of released claims: no lease was lost. ENDING_OVER: a coordinator opened the task to end it, but the task no
longer had that pending ending."""

WITHOUT_CRASH: Final = ORDERLY | {Reason.CLAIM_LOST, Reason.START_TIMEOUT}
"""Reasons that do not count toward CRASH_LOOP.

CLAIM_LOST: the claim was lost with etcd's data, or with the coordinator that made it; that says nothing about the
owner. START_TIMEOUT: the worker did not open the task, so the task cannot have killed the worker. When an owner dies,
its stream ends, its lease expires or it makes no progress, and those cases have reasons of their own."""


@dataclass(frozen=True, slots=True)
class PendingEnding:
    """A recorded request that the task ends in `to_state`. `actor` is the author of the request.

    `result` "": the task ends with its partial result.
    """

    to_state: TaskState
    reason: str
    message: str
    actor: str
    result: str = ""


def ending_of_full_ledger(ledger_bytes: int, limit_bytes: int) -> PendingEnding | None:
    """Returns the pending ending of a task whose ledger is larger than the limit, or None. `limit_bytes` 0: no limit.

    Every takeover sends the whole history to the next worker, which holds it in memory.
    """
    if not limit_bytes or ledger_bytes <= limit_bytes:
        return None
    message = f"its history has {ledger_bytes:,} bytes, and this installation keeps at most {limit_bytes:,} of a task"
    return PendingEnding(TaskState.FAILED, Reason.LEDGER_LIMIT, message, "checkpoint")


LEDGER_WARNING_SHARE: Final = 0.8
"""The share of the limit of a ledger's bytes at which the ledger warns."""


CLOSED_OUT_AS: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED})
"""The terminal states that an operator may give a task in any state."""


def refuse_operator_wait(
    state: TaskState, ending: PendingEnding | None, request: BeginWait, now: float
) -> TenureError | None:
    """Returns the refusal of an operator's wait, or None. A RUNNING task begins it once its claim is released.

    `now`: Unix time.
    """
    if not now + MIN_WAIT_SECONDS <= request.until <= now + MAX_WAIT_SECONDS:
        message = f"must be {MIN_WAIT_SECONDS:g} s to {MAX_WAIT_SECONDS / 86_400:g} days from now"
        return InvalidRequest(violations=[("until", message)])
    if ending is None and state not in TERMINAL | WAITING:
        return None
    why = f"the task is {state}" if ending is None or state in TERMINAL else "the task has a pending ending"
    remedy = ": answer its wait, or wait for its answer, first" if state in WAITING else ""
    return WrongState(f"{why}{remedy}", metadata={"state": state.value})


def follow_up(state: TaskState, ending: PendingEnding | None, *, has_open_calls: bool) -> TaskState | None:
    """Returns the state to which the ledger moves a task with a pending ending now. None: the state does not change.

    A RUNNING task is ended by its owner, a QUEUED task with an open call by a coordinator's claim. A parked task goes
    to the queue if it has an open call, because only a queued task can be opened to be ended, or if `MOVES` does not
    allow the ending from its state; `follow_up` of QUEUED then decides again.
    """
    if ending is None or state in TERMINAL or state is TaskState.RUNNING:
        return None
    if state in PARKED and (has_open_calls or ending.to_state not in MOVES[state]):
        return TaskState.QUEUED
    return None if has_open_calls else ending.to_state


def ending_of_lost_claim(
    policy: LeaseLostPolicy, deaths: OwnerDeaths, reason: str, message: str
) -> PendingEnding | None:
    """Returns the pending ending that a lost claim causes, or None: the task is only requeued.

    `deaths` includes the death of this claim's owner.
    """
    if policy is LeaseLostPolicy.TIME_OUT and reason not in ORDERLY:
        return PendingEnding(TaskState.TIMED_OUT, reason, message, "checkpoint")
    if deaths.is_crash_loop:
        sentence = f"owners died {deaths.count} times in a row without a new step: {', '.join(deaths.owners)}"
        return PendingEnding(TaskState.FAILED, Reason.CRASH_LOOP, sentence, "checkpoint")
    return None


@dataclass(frozen=True, slots=True)
class CallOpened:
    """An intent opens the call."""

    call_id: str


@dataclass(frozen=True, slots=True)
class CallSettled:
    """An outcome settles the call."""

    call_id: str


def open_calls_after(
    open_calls: tuple[str, ...], changes: Iterable[CallOpened | CallSettled]
) -> tuple[str, ...] | TenureError:
    """Returns the call ids without an outcome after these changes, or the error if a change cannot follow."""
    calls = dict.fromkeys(open_calls)
    for change in changes:
        if isinstance(change, CallOpened):
            if change.call_id in calls:
                return InvalidRequest(violations=[("entries", f"the call {change.call_id} is open already")])
            calls[change.call_id] = None
        elif change.call_id in calls:
            del calls[change.call_id]
        else:
            return InvalidRequest(violations=[("entries", f"the call {change.call_id} is not open")])
    return tuple(calls)


def refuse_early_end(to_state: TaskState, open_calls: tuple[str, ...]) -> TenureError | None:
    """Returns WrongState (OPEN_INTENTS) if a task would end with open calls, or None.

    A call without an outcome could still begin after the end. So the commit that ends a task writes all outcomes.
    """
    if to_state in TERMINAL and open_calls:
        names = ", ".join(open_calls[:8])
        return WrongState(
            f"the task cannot end as {to_state} while calls have no outcome: {names}", reason="OPEN_INTENTS"
        )
    return None


@dataclass(slots=True)
class Unfinished:
    """The parts of a task's history that its close-out needs.

    `intents`: the intents of the calls without an outcome; `resolutions`: a person's newest resolution of each of these
    calls.
    """

    step: int = 0
    tools: tuple[ToolDefinition, ...] = ()
    intents: dict[str, ToolIntent] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    last_text: str = ""

    @property
    def open_intents(self) -> list[ToolIntent]:
        """The intents without an outcome, in the order in which they were opened."""
        return list(self.intents.values())


def unfinished(entries: Iterable[Entry]) -> Unfinished:
    """Folds the entries for a close-out. It does not build the conversation, so a task whose history no owner can fold
    can still end.

    The open intents equal the result of `open_calls_after`; the ledger refuses to end a task while it has any.
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


def resolved_calls(
    open_intents: Iterable[ToolIntent], resolutions: Mapping[str, Resolution], tools: Iterable[ToolDefinition]
) -> list[ResolvedCall]:
    """Returns the resolutions that the end of a task passes to the tool service: no owner will send them any more."""
    limits = _output_limits(tools)
    return [
        ResolvedCall(one.call_id, resolutions[one.call_id], one.undoes, limits.get(one.tool, USUAL_OUTPUT_BYTES))
        for one in open_intents
        if one.call_id in resolutions
    ]


def _output_limits(tools: Iterable[ToolDefinition]) -> dict[str, int]:
    return {tool.name: tool.output_limit_bytes for tool in tools}


def outcomes_of_ended_calls(
    open_intents: Iterable[ToolIntent],
    statuses: CallStatuses,
    resolutions: Mapping[str, Resolution],
    tools: Iterable[ToolDefinition],
) -> list[ToolOutcome]:
    """Returns the outcomes of the open intents when their task ends: the recorded outcome, NOT_RUN or IN_DOUBT.

    `statuses` must have been read after the tool service's fence was closed for the task: a call without a status never
    reached the tool service and can no longer reach it.
    `resolutions`: resolutions that no owner has passed to the tool service yet. A person's resolution of a call in
    doubt counts, but a close-out never runs a call again. The outcome of a resolution is bounded by the output limit
    of its tool in `tools`, because a requeued task reads it.
    """
    limits = _output_limits(tools)
    return [
        ToolOutcome(
            intent.call_id,
            _outcome(
                intent.tool,
                statuses.get(intent.call_id, _NEVER_SENT),
                resolutions.get(intent.call_id),
                limits.get(intent.tool, USUAL_OUTPUT_BYTES),
            ),
        )
        for intent in open_intents
    ]


def outcomes_after_refusal(refused: Iterable[ToolOutcome]) -> list[ToolOutcome]:
    """Returns the outcomes for a close-out whose first outcomes the ledger refused.

    The texts of this module are known to be writable; every other outcome is replaced, because the refusal names none.
    """
    known = (NOT_RUN, IN_DOUBT, STOPPED)
    return [one if one.outcome in known else ToolOutcome(one.call_id, UNRECORDED) for one in refused]


_NEVER_SENT: Final = CallStatus(CallState.NOT_RUN)


def _outcome(tool: str, status: CallStatus, resolution: Resolution | None, limit_bytes: int) -> Outcome:
    state, recorded, call_attempt = status
    if state is CallState.FINISHED and recorded is not None:
        return recorded
    if tool == SPAWN_SUB_AGENTS and state is CallState.NOT_RUN:
        return STOPPED
    if state is CallState.IN_DOUBT:
        doubt = recorded or IN_DOUBT
        applied = apply_resolution(resolution, call_attempt, runner_gone=False) if resolution is not None else None
        if isinstance(applied, SettledByResolution):
            return bounded(replace(applied.outcome, no_effect=doubt.no_effect), limit_bytes)
        return doubt
    return IN_DOUBT if state is CallState.STARTED else NOT_RUN


# Messages from users: which tasks still accept them, and which transition must wait until they are read.

UNREAD_MESSAGES: Final = "UNREAD_MESSAGES"
NO_READER: Final = "NO_READER"
MAX_FACTS: Final = 1000
"""The most external entries of one task. Messages cost tokens of its budget and are stored as long as the task."""


def no_reader(loop: str, kind: AgentKind | None) -> WrongState | None:
    """Returns the error for a message to a function, or None for an agent. `kind`: None, if it is not registered."""
    if is_undo_loop(loop):
        return WrongState("an undo reads no messages: it makes only the calls of its plan", reason=NO_READER)
    name = offered_function(loop)
    if not name or kind is AgentKind.PYTHON:
        return None
    why = "is a function, which reads no messages" if kind else "is not registered as an agent yet: start its worker"
    return WrongState(f"{name}, which runs this task, {why}", reason=NO_READER)


def refuse_message(
    state: TaskState, ending: PendingEnding | None, external_entries: int, loop: str = "", kind: AgentKind | None = None
) -> TenureError | None:
    """Returns the error for a message that the task's agent would not read, or None if it will read the message."""
    if state in TERMINAL or ending is not None:
        message = f"the task has ended as {state}" if state in TERMINAL else "the task has a pending ending"
        return WrongState(
            f"{message}: its agent reads no more messages; ForkTask with a message continues it as a new task",
            metadata={"state": state.value},
        )
    if refusal := no_reader(loop, kind):
        return refusal
    if external_entries >= MAX_FACTS:
        return WrongState(
            f"the task already has {MAX_FACTS} messages, which is the most that a task accepts", reason="MESSAGES_FULL"
        )
    return None


def refuse_success_with_unread(
    to_state: TaskState, ending: PendingEnding | None, unread_sequence: int
) -> TenureError | None:
    """Returns WrongState (UNREAD_MESSAGES) if a task would succeed before its owner has read a message, or None.

    `unread_sequence`: the sequence of the unread message; 0: none. Other terminal states do not wait for messages, and
    a pending ending takes precedence.
    """
    if to_state is not TaskState.SUCCEEDED or ending is not None or not unread_sequence:
        return None
    return WrongState(
        f"the owner has not read the user's message at sequence {unread_sequence}: open the task again and continue",
        reason=UNREAD_MESSAGES,
        metadata={"sequence": str(unread_sequence)},
    )


# Decides when a task is in a crash loop: it kills its workers, rather than being held by workers that died anyway.
#
# The rules count the deaths of owners in a row without a new step. A worker that dies loses all of its tasks, so
# without further rules the task that killed the worker and the worker's other tasks would have equal counts, and would
# move together to the next worker. Two rules separate them:
#
# - A task is in a crash loop only when several different owners died with it, because one worker may itself be broken.
#   Where there are so few workers that the same one dies each time, a higher count is enough.
# - Before that, the task is a suspect, and a session holds at most one suspect at a time. From then on, a task in a
#   crash loop kills its worker without another suspect beside it, and any other suspect makes its next step.

SUSPECT_DEATHS: Final = 3
CRASH_LOOP_DEATHS: Final = 5
CRASH_LOOP_OWNERS: Final = 3
CRASH_LOOP_DEATHS_OF_FEW: Final = 10
"""The limit for any number of different owners. Without it, a single worker that its supervisor restarts under the same
name would die with the task forever.
"""


@dataclass(frozen=True, slots=True)
class OwnerDeaths:
    """The number of owner deaths in a row, and the worker ids of these owners, each once.

    A worker that restarts under a new id counts as a different worker: the ledger cannot recognise it.
    """

    count: int = 0
    owners: tuple[str, ...] = ()

    def and_of(self, owner: str) -> OwnerDeaths:
        """Returns the deaths with one more death, of `owner`."""
        owners = self.owners if self.count else ()  # a new step resets the count; the old owners no longer count either
        is_new = owner not in owners and len(owners) < CRASH_LOOP_DEATHS_OF_FEW
        return OwnerDeaths(self.count + 1, (*owners, owner) if is_new else owners)

    @property
    def is_crash_loop(self) -> bool:
        """Whether the task fails with CRASH_LOOP."""
        has_several_owners = self.count >= CRASH_LOOP_DEATHS and len(self.owners) >= CRASH_LOOP_OWNERS
        return has_several_owners or self.count >= CRASH_LOOP_DEATHS_OF_FEW


def is_suspect(deaths: int) -> bool:
    """Whether a task with `deaths` owner deaths in a row is a suspect. A session holds at most one suspect."""
    return deaths >= SUSPECT_DEATHS
