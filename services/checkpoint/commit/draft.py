"""A draft: the changes of one transaction to one locked task row, its new entries and its bills.

A draft only computes. `writing.write` writes drafts to the database; an unwritten draft has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from services.checkpoint.commit.task_row import begin_wait
from services.checkpoint.entries import KINDS
from services.checkpoint.rows import BillRow, NewEntryRow
from tenure.domain.budget import Granted, ReserveRequest, TokenUsage, cost, crossed_warnings
from tenure.domain.close_out import PendingEnding
from tenure.domain.in_doubt import (
    Abandon,
    CallInDoubt,
    DidNotHappen,
    Happened,
    ReportedCall,
    decide_resolution,
    settle_lost,
    stays_open,
)
from tenure.domain.states import TERMINAL, WAITING, WITHOUT_SUCCESS, Reason, TaskState, check_transition
from tenure.domain.task import FailurePolicy
from tenure.domain.timeouts import TIMEOUT_REASONS
from tenure.domain.waits import BeginWait
from tenure.v1 import ledger_pb2
from tenure.wire.common import STATES, timestamp
from tenure.wire.ledger import operator_request_to_domain
from tenure.wire.task import budget_to_wire, prices_to_wire, usage_to_wire
from tenure.wire.tool import calls_in_doubt_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from services.checkpoint.rows import BudgetRow, TaskRow
    from tenure.domain.entries import OperatorRequest
    from tenure.domain.in_doubt import ResolveCall
    from tenure.domain.waits import Wait
    from tenure.v1 import tool_pb2


# Calls in doubt in a task row: the calls that a wait needs resolved, and their resolutions, under the row's lock.

_RESOLUTION_TEXTS = {Happened: "happened", DidNotHappen: "did not happen", Abandon: "is given up"}


def to_texts(calls: Iterable[CallInDoubt]) -> tuple[str, ...]:
    """Returns the calls as the task row stores them: `call_id:call_attempt`."""
    return tuple(f"{call.call_id}:{call.call_attempt}" for call in calls)


def calls_in_doubt(texts: Iterable[str]) -> list[CallInDoubt]:
    """Parses the calls of a task row."""
    split = (text.rpartition(":") for text in texts)
    return [CallInDoubt(call_id, int(attempt)) for call_id, _, attempt in split]


def waited_for(texts: Iterable[str], open_calls: Iterable[str]) -> list[CallInDoubt]:
    """Returns the calls that the wait needs resolved: those of the row, else all open calls (the worker named none)."""
    return calls_in_doubt(texts) or [CallInDoubt(call_id, 0) for call_id in open_calls]


def record_resolution(row: TaskRow, resolution: ResolveCall) -> None:
    """Removes the resolved call from the row; the caller appends the resolution. Raises WrongState; then nothing has
    changed.
    """
    left = decide_resolution(row.state, row.reason, row.open_calls, calls_in_doubt(row.calls_in_doubt), resolution)
    if not isinstance(left, tuple):
        raise left
    row.calls_in_doubt = to_texts(left)


def conclude_with_resolution(draft: Draft, request: OperatorRequest, resolution: ResolveCall, actor: str) -> None:
    """Queues the task once every call that it waits for is resolved; until then only its row changes."""
    if draft.row.calls_in_doubt:
        draft.moved = True
        return
    message = f"{actor} says that {resolution.call_id} {_RESOLUTION_TEXTS[type(resolution.decision)]}: {request.reason}"
    draft.move(TaskState.QUEUED, Reason.CALL_RESOLVED, message, actor=actor)


LEDGER: str = "checkpoint"
"""The actor of entries that the ledger adds by itself."""


class Move(NamedTuple):
    """A transition as it is measured. `queued_seconds`: how long the task had been queued; None: it was not queued."""

    from_state: TaskState
    from_reason: str
    to_state: TaskState
    reason: str
    tenant: str
    queued_seconds: float | None


@dataclass(slots=True)
class Draft:
    """The changes of one transaction to one task.

    - moved: columns beyond those of a step changed
    - committed: a commit was counted
    - deadline_at: the task's new deadline
    - warnings: entries that the ledger added by itself and also reports in `ledger.changes`
    - own_warnings: the task's own caps that need a warning
    - escalated: a step of its wait was taken; queue, priority: the step's, or "" and 0
    - spawned: ids of the tasks that were created with this draft
    - moves: the transitions, to be counted once they are durable
    - late_seconds: by how much a sweep was late; None: no sweep found the task, or nothing was due at a time
    - reported: the usage of the open model call, as its lost worker reported it
    - lease_end: of a lost claim, for the transition that takes it
    - interrupting_sequence: of the entry that is an interrupting message; 0: there is none
    """

    row: TaskRow
    budget: BudgetRow
    entries: list[NewEntryRow] = field(default_factory=list)
    bills: list[BillRow] = field(default_factory=list)
    result: bytes = b""
    result_json: bytes = b""
    spawned: tuple[str, ...] = ()
    moved: bool = False
    committed: bool = False
    claimable: bool = False
    deadline_at: datetime | None = None
    begins_attempt: bool = False
    warnings: list[NewEntryRow] = field(default_factory=list)
    own_warnings: list[str] = field(default_factory=list)
    escalated: bool = False
    queue: str = ""
    priority: int = 0
    moves: list[Move] = field(default_factory=list)
    late_seconds: float | None = None
    reported: ReportedCall | None = None
    lease_end: ledger_pb2.LeaseEnd | None = None
    interrupting_sequence: int = 0

    @property
    def passes_on(self) -> bool:
        """Whether an interrupting message goes on to sub-agents of the task."""
        return bool(self.interrupting_sequence) and self.row.sub_agents > 0

    def append(self, kind: int, body: bytes, *, step: int, actor: str, by_claim: bool) -> None:
        """Appends the next entry. `by_claim`: its author is the holder, under its epoch."""
        row = self.row
        row.sequence += 1
        row.ledger_bytes += len(body)
        epoch, claim_id = (row.epoch, row.claim_id) if by_claim else (0, "")
        self.entries.append(
            NewEntryRow(  # with positional arguments: names would take as long again
                row.task_id, row.sequence, row.tenant, epoch, claim_id, row.attempt, step, kind, actor, body
            )
        )

    def reserve(self, request: ReserveRequest, granted: Granted, actor: str) -> None:
        """Reserves tokens and money for a model call and appends its model attempt."""
        row = self.row
        self.budget.reserve(granted.reserved_tokens, granted.reserved_nano_usd)
        row.model_open, row.model_step, row.model_attempt = True, request.step, request.attempt_number
        row.model_outlives = request.outlives_worker
        row.model_name, row.model_input = clean(request.model), request.input_tokens
        row.model_output, row.model_nano_usd = granted.max_output_tokens, granted.reserved_nano_usd
        prices = prices_to_wire(granted.prices)
        row.model_prices = b"" if prices is None else prices.SerializeToString(deterministic=True)
        self.reach(request.step)
        attempt = ledger_pb2.ModelAttempt(
            attempt_number=request.attempt_number,
            model=request.model,
            input_tokens=request.input_tokens,
            max_output_tokens=granted.max_output_tokens,
            reserved_tokens=granted.reserved_tokens,
            summary_through_step=request.summary_through_step,
            reserved_nano_usd=granted.reserved_nano_usd,
            prices=prices,
            budget=self.budget.shown,
            outlives_worker=request.outlives_worker,
        )
        body = ledger_pb2.EntryBody(model_attempt=attempt).SerializeToString()
        self.append(KINDS["model_attempt"], body, step=request.step, actor=actor, by_claim=True)

    def settle(self, usage: TokenUsage, *, provider_request_id: str = "", model: str = "", lost: bool = False) -> None:
        """Settles the open model attempt: bills what it used and frees the rest of its reservation."""
        row = self.row
        assert row.model_open, "only an open attempt is settled"
        prices = row.prices
        nano_usd = cost(prices, usage)
        self.budget.give_back(row.model_reserved, row.model_nano_usd)
        self.budget.use(usage.total, nano_usd, unpriced=prices is None)
        self.budget.count_beyond(usage.total - row.model_reserved, nano_usd - row.model_nano_usd)
        self.bills.append(
            BillRow(
                row.task_id,
                row.model_step,
                row.model_attempt,
                row.tenant,
                row.root_task_id,
                row.epoch,
                clean(model) or row.model_name,
                clean(provider_request_id),
                lost,
                nano_usd,
                prices is None,
                usage,
            )
        )
        before = row.own_budget if row.has_own_caps else None
        row.add_usage(usage, nano_usd)
        if before is not None:
            self.own_warnings += crossed_warnings(before, row.own_budget)
        row.model_open, row.model_nano_usd, row.model_outlives = False, 0, False

    def warn(self) -> None:
        """Appends one budget warning for each cap that is nearly used up and has no warning yet. Call it after a
        settlement.
        """
        limits = self.budget.take_warnings()
        if not limits and not self.own_warnings:
            return
        root = self.budget.shown
        warnings = [ledger_pb2.BudgetWarning(limit=limit, budget=root) for limit in limits]
        own = budget_to_wire(self.row.own_budget)
        warnings += [ledger_pb2.BudgetWarning(limit=limit, budget=root, own=own) for limit in self.own_warnings]
        self.own_warnings.clear()
        for warning in warnings:
            body = ledger_pb2.EntryBody(budget_warning=warning).SerializeToString()
            self.append(KINDS["budget_warning"], body, step=self.row.model_step, actor=LEDGER, by_claim=False)
            self.warnings.append(self.entries[-1])

    def settle_lost(self) -> None:
        """Settles the open model attempt of a lost holder by what the worker reported, and appends AttemptLost."""
        row, reported = self.row, self.reported
        if not row.model_open:
            return
        if reported is not None and (reported.step, reported.attempt_number) != (row.model_step, row.model_attempt):
            reported = None  # the report is about an earlier model attempt
        usage = settle_lost(row.model_input, row.model_output, reported)
        lost = ledger_pb2.AttemptLost(attempt_number=row.model_attempt, usage=usage_to_wire(usage))
        body = ledger_pb2.EntryBody(attempt_lost=lost).SerializeToString()
        self.settle(usage, lost=True)
        self.append(KINDS["attempt_lost"], body, step=row.model_step, actor=LEDGER, by_claim=False)
        self.warn()

    def reach(self, step: int) -> None:
        """Records the highest step. A new step proves progress of the owners, so the crash loop count starts again."""
        if step > self.row.step:
            self.row.step, self.row.deaths = step, 0

    def move(
        self,
        to_state: TaskState,
        reason: str,
        message: str,
        *,
        actor: str,
        result: str = "",
        result_json: str = "",
        retry_delay_seconds: float = 0.0,
        wait: Wait | None = None,
        error_class: str = "",
        in_doubt: Sequence[CallInDoubt] = (),
        outputs: Sequence[tool_pb2.TaskOutput] = (),
        by_claim: bool = False,
    ) -> None:
        """Applies one transition and appends its entry. Leaving RUNNING takes the claim, and settles a model attempt
        that does not stay open.
        """
        row = self.row
        check_transition(row.state, to_state, begins_attempt=self.begins_attempt)
        self.begins_attempt = False
        shows_budget = row.state is TaskState.RUNNING or row.model_open
        if not stays_open(to_state, outlives_worker=row.model_outlives):
            self.settle_lost()
        if to_state in TERMINAL and row.ending is not None:
            result = row.ending.result or result
            if to_state is TaskState.SUCCEEDED and row.has_result_schema:
                result_json = result
        retry_at = self._retry_at(to_state, retry_delay_seconds)
        self._leave_wait()
        begun = None if wait is None else begin_wait(row, wait, row.sequence + 1)
        row.calls_in_doubt = to_texts(in_doubt)
        row.waiting_since = row.locked_at if to_state in WAITING else None
        transition = ledger_pb2.StateTransition(
            from_state=STATES.to_wire(row.state),
            to_state=STATES.to_wire(to_state),
            reason=reason,
            message=message,
            result=result,
            next_retry_time=None if retry_at is None else timestamp(retry_at),
            wait=begun,
            result_json=result_json,
            error_class=error_class,
            budget=self.budget.shown if shows_budget else None,
            calls_in_doubt=calls_in_doubt_to_wire(in_doubt),
            outputs=outputs,
            lease_end=self.lease_end if row.holds else None,
        )
        body = ledger_pb2.EntryBody(transition=transition).SerializeToString()
        self.append(KINDS["transition"], body, step=row.step, actor=actor, by_claim=by_claim)
        self.moves.append(Move(row.state, row.reason, to_state, reason, row.tenant, self._queued_seconds()))
        if to_state is not TaskState.QUEUED:
            row.queued_at = None
        elif row.state is not TaskState.QUEUED:
            row.queued_at = row.locked_at
        row.state, row.reason, row.message = to_state, clean(reason), clean(message)
        row.holds, row.next_retry_at = to_state is TaskState.RUNNING, retry_at
        row.owner = row.owner if row.holds else ""
        self.result, self.result_json = result.encode() or self.result, result_json.encode()
        row.queued_until = self._queued_until(to_state)
        if to_state is TaskState.RETRY_SCHEDULED and reason in TIMEOUT_REASONS:
            row.timeout_retries += 1
        self.moved = True
        self.claimable = to_state is TaskState.QUEUED and row.ending is None
        if to_state in TERMINAL:
            row.operator_wait = b""
        if self.claimable and row.operator_wait:
            self.begin_operator_wait(LEDGER)

    def begin_operator_wait(self, actor: str) -> None:
        """Begins the wait that an operator requested, unless its deadline has passed."""
        request = operator_request_to_domain(ledger_pb2.OperatorRequest.FromString(self.row.operator_wait))
        self.row.operator_wait = b""
        assert isinstance(request.act, BeginWait), "only a request for a wait is stored"
        wait = request.act.wait(self.row.locked_at.timestamp())
        if wait is not None:
            self.move(TaskState.WAITING_USER, Reason.OPERATOR_WAIT, request.reason, actor=actor, wait=wait)

    def claim(self, epoch: int, claim_id: str, owner: str) -> None:
        """Gives the task to a claim. From now on the fence refuses older claims."""
        row = self.row
        row.epoch, row.claim_id, row.owner = epoch, claim_id, owner
        row.commit_number, row.last_base = 0, row.sequence
        row.last_commit_id, row.last_commit_hash, row.last_reply = "", b"", b""
        row.claim_count += 1
        self.move(TaskState.RUNNING, Reason.OPENED, "", actor=owner, by_claim=True)

    def begin_attempt(self, timeout_seconds: float) -> None:
        """Clears the limits and counters of the last attempt; the transition to QUEUED follows. See
        tenure.domain.requeue.
        """
        row = self.row
        assert row.state in TERMINAL, "the last attempt must have ended"
        row.attempt += 1
        row.deaths, row.dead_owners, row.timeout_retries = 0, (), 0
        row.ending_state = row.ending_reason = row.ending_message = row.ending_actor = ""
        row.ending_result, row.ending_at = b"", None
        self.deadline_at = row.locked_at + timedelta(seconds=timeout_seconds)
        self.begins_attempt = True

    def request_ending(self, ending: PendingEnding) -> None:
        """Records the pending ending."""
        row = self.row
        row.ending_state, row.ending_reason = ending.to_state.value, clean(ending.reason)
        row.ending_message, row.ending_actor = clean(ending.message), clean(ending.actor)
        row.ending_result, row.ending_at = ending.result.encode(), row.locked_at
        self.moved, self.claimable = True, False

    @property
    def ended(self) -> bool:
        return self.row.state in TERMINAL

    @property
    def wants_undo(self) -> bool:
        """Whether the task ended without success, and its policy undoes its effects then."""
        return self.row.state in WITHOUT_SUCCESS and self.row.task_policy.on_failure is FailurePolicy.UNDO

    @property
    def concerns_line(self) -> bool:
        """Whether the move makes the line of the task's source longer, or lets it admit the next task."""
        return self.row.exclusive_source is not None if self.ended else self.row.in_line

    @property
    def has_work(self) -> bool:
        """Whether there is anything to write."""
        return self.moved or self.committed or bool(self.entries)

    def _leave_wait(self) -> None:
        """Ends the wait. The deadline of the task moves by the time that it waited for a person."""
        row = self.row
        if row.state is TaskState.WAITING_USER and row.waiting_since is not None:
            row.deadline_at += row.locked_at - row.waiting_since
            self.deadline_at = row.deadline_at
        row.wait, row.wait_deadline_at, row.wait_step_at, row.wait_correlation = b"", None, None, ""

    def _queued_seconds(self) -> float | None:
        since = self.row.queued_at
        return None if since is None else max(0.0, (self.row.locked_at - since).total_seconds())

    def _queued_until(self, to_state: TaskState) -> datetime | None:
        """Returns the end of this stay in the queue; every stay has its own timeout."""
        if to_state is not TaskState.QUEUED:
            return None
        after_seconds = self.row.task_policy.timeouts.queued.after_seconds
        return None if after_seconds is None else self.row.locked_at + timedelta(seconds=after_seconds)

    def _retry_at(self, to_state: TaskState, delay_seconds: float) -> datetime | None:
        is_retry = to_state is TaskState.RETRY_SCHEDULED
        return self.row.locked_at + timedelta(seconds=delay_seconds) if is_retry else None


def time_of(touched: Sequence[Draft]) -> datetime:
    """Returns the time of a transaction's records: the newest lock time of its tasks."""
    return max(draft.row.locked_at for draft in touched)


def clean(text: str) -> str:
    """Returns the text without NUL, which Postgres cannot store. The entry keeps the original."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
