"""Writes one claim's entries to the ledger: opens the task, commits under commit numbers, keeps the fold up to date."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from services.worker.held_claims import HeldTask
from services.worker.interrupts import Interruption
from services.worker.ledger_client import LedgerClient
from tenure.domain import entries
from tenure.domain.budget import Denied, Granted, ReserveRequest
from tenure.domain.errors import TOO_MUCH_APPENDED, InvalidRequest, SequenceConflict, TryLater, Unavailable
from tenure.domain.fold import ResumePoint
from tenure.domain.retry import RetryPolicy
from tenure.domain.spans import attempt_traceparent, call_traceparent
from tenure.runtime.request_context import Exporting
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.validators.common import MAX_TRANSITION_MESSAGE
from tenure.wire.checkpoint_service import portions
from tenure.wire.common import STATES, duration, seconds
from tenure.wire.ledger import new_entry, read_entries
from tenure.wire.task import budget_request_to_domain, prices_to_domain, wait_to_wire
from tenure.wire.tool import calls_in_doubt_to_wire, output_to_wire

_log: Final = logging.getLogger(__name__)
TRIES: Final = RetryPolicy(max_attempts=3, initial_seconds=1.0, factor=2.0, cap_seconds=5.0)
"""The retries of a request to the ledger. After them the worker releases the claim, and the next owner may succeed."""

MAX_CATCH_UPS: Final = 8

StepEntry = tuple[int, entries.Body]
"""An entry to append: its step and its body."""


class CommitRefused(Exception):  # noqa: N818  named after the answer, as the domain's errors
    """The ledger refuses the entries of a commit from any sender: nothing was written, and no repeat can help."""

    def __init__(self, refusal: InvalidRequest) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class _OwnEntry(NamedTuple):
    """An entry to append, with its message: it is measured and sent."""

    entry: StepEntry
    message: ledger_pb2.NewEntry


@dataclass(frozen=True, slots=True)
class _Written:
    """The content of a commit, to be folded in once it is durable."""

    own: Sequence[_OwnEntry]
    reserve: ReserveRequest | None
    transition: entries.Transition | None


class ClaimLedger:
    """The ledger of one task under one claim.

    Every method may raise Fenced (the claim is stale: drop it at once) and, after `TRIES`, TryLater (release it). A
    method that commits raises CommitRefused for entries that cannot be written.
    """

    def __init__(self, client: LedgerClient, held_task: HeldTask) -> None:
        self._client = client
        self._held_task = held_task
        self._commit_number = 1
        self.point = ResumePoint()
        self._root_task_id, self._attempt_number = "", 0

    async def open(self) -> None:
        """Opens the task and folds its history, a page at a time: the other tasks of this worker go on meanwhile."""
        point = ResumePoint(planned_tools=frozenset(plan.tool for plan in self._held_task.claims.plans))

        def take(page: Sequence[ledger_pb2.Entry]) -> None:
            for entry in read_entries(page):
                point.apply(entry)

        header = await retrying(self._client.open(self._held_task.token, take).read, TRIES, on=(TryLater, PeerFailed))
        self.point, self._commit_number = point, header.next_commit_number
        self._root_task_id, self._attempt_number = header.task.root_task_id, header.task.attempt
        if header.task.cancel_requested:
            self._held_task.interrupts.request(Interruption.END)
        self._held_task.progress.sequence = self.point.sequence
        _log.info("task opened", extra={"sequence": self.point.sequence})

    def attempt_trace(self) -> str:
        """Returns the traceparent of the task's span; "" while traces are not exported."""
        if not Exporting.traces:
            return ""
        return attempt_traceparent(self._root_task_id, self._held_task.task_id, self._attempt_number)

    def call_trace(self, call_id: str) -> str:
        """Returns the traceparent of a tool call's span; "" while traces are not exported."""
        return call_traceparent(self._root_task_id, self._held_task.task_id, call_id) if Exporting.traces else ""

    async def append(self, own: Sequence[StepEntry]) -> None:
        """Appends entries, in as many commits as their size needs."""
        for part in portions(_with_messages(own), _message_bytes):
            if part:
                await self._commit(_Written(part, None, None))

    async def reserve(self, own: Sequence[StepEntry], request: ReserveRequest) -> Granted | Denied:
        """Appends entries and reserves the tokens of a model call.

        The entries are written even when the answer is Denied.
        """
        *before, last = portions(_with_messages(own), _message_bytes)
        for part in before:
            await self._commit(_Written(part, None, None))
        return _reserve_result(await self._commit(_Written(last, request, None)))

    async def close_out(self, own: Sequence[StepEntry], transition: entries.Transition) -> None:
        """Appends entries and moves the task out of RUNNING in the same commit. Afterwards the claim holds nothing."""
        last_bytes = _transition_to_wire(transition).ByteSize()
        *before, last = portions(_with_messages(own), _message_bytes, last_bytes=last_bytes)
        for part in before:
            await self._commit(_Written(part, None, None))
        await self._commit(_Written(last, None, transition))

    async def _commit(self, written: _Written) -> pb.CommitResponse:
        response = await self._send(written)
        _log.debug("committed", extra={"sequence": response.sequence, "entries": len(written.own)})
        self._commit_number += 1
        if written.transition is None:
            self._fold_in(written, response)
        self._held_task.progress.sequence = response.sequence
        if response.cancel_requested:
            self._held_task.interrupts.request(Interruption.END)
        return response

    async def _send(self, written: _Written) -> pb.CommitResponse:
        """Sends a commit, and reads other authors' entries first when they do not fit into the commit's answer.

        Another Open would be wrong here: it would settle as lost a model call of this process, whose answer is in this
        very commit.
        """
        for _ in range(MAX_CATCH_UPS):
            request = self._request(written)
            try:
                return await retrying(partial(self._client.commit, request), TRIES, on=(TryLater, PeerFailed))
            except InvalidRequest as refusal:
                raise CommitRefused(refusal) from refusal
            except SequenceConflict as conflict:
                if conflict.reason != TOO_MUCH_APPENDED:
                    raise
                _log.info("other authors appended many entries meanwhile", extra={"sequence": self.point.sequence})
            await self.catch_up()
        raise SequenceConflict(f"other authors append faster than this worker reads, in {MAX_CATCH_UPS} tries")

    async def catch_up(self) -> None:
        """Folds in the entries that other authors appended since the last commit. Not beside a commit."""
        task_id, more = self._held_task.task_id, True
        while more:
            read = partial(self._client.entries_after, task_id, self.point.sequence)
            page, more = await retrying(read, TRIES, on=(TryLater, PeerFailed))
            for entry in page:
                self.point.apply(entry)

    def _request(self, written: _Written) -> pb.CommitRequest:
        """Builds a commit. A retry sends the same object: its number and its id make the repeat harmless."""
        reserve, transition = written.reserve, written.transition
        return pb.CommitRequest(
            token=self._held_task.token,
            commit_id=str(uuid.uuid4()),
            commit_number=self._commit_number,
            known_sequence=self.point.sequence,
            entries=[message for _, message in written.own],
            reserve=None if reserve is None else _reserve_to_wire(reserve),
            transition=None if transition is None else _transition_to_wire(transition),
        )

    def _fold_in(self, written: _Written, response: pb.CommitResponse) -> None:
        """Folds in this claim's entries and those of other authors, in the order of the ledger.

        Raises SequenceConflict when entries are missing: the task must be opened again.
        """
        external = {entry.sequence: entry for entry in response.foreign_entries}
        own = [entry for entry, _ in written.own]
        if written.reserve is not None and isinstance(granted := _reserve_result(response), Granted):
            own.append((written.reserve.step, _attempt(written.reserve, granted)))
        ours = iter(own)
        while self.point.sequence < response.sequence:
            sequence = self.point.sequence + 1
            if sequence in external:
                self.point.apply(*read_entries([external[sequence]]))
                continue
            entry = next(ours, None)
            if entry is None:
                break
            self.point.apply(entries.Entry(sequence, *entry, epoch=self._held_task.claims.epoch))
        if self.point.sequence != response.sequence or next(ours, None) is not None:
            raise SequenceConflict("the answer to a commit does not have all new entries of the task")


def _with_messages(own: Sequence[StepEntry]) -> list[_OwnEntry]:
    return [_OwnEntry(entry, new_entry(*entry)) for entry in own]


def _message_bytes(own: _OwnEntry) -> int:
    return own.message.ByteSize()


def size_bytes(entry: StepEntry) -> int:
    """Returns the size of an entry in a commit, in bytes."""
    return new_entry(*entry).ByteSize()


def _attempt(request: ReserveRequest, granted: Granted) -> entries.ModelAttempt:
    return entries.ModelAttempt(
        attempt_number=request.attempt_number,
        model=request.model,
        input_tokens=request.input_tokens,
        max_output_tokens=granted.max_output_tokens,
        reserved_tokens=granted.reserved_tokens,
        summary_through_step=request.summary_through_step,
        reserved_nano_usd=granted.reserved_nano_usd,
        prices=granted.prices,
        outlives_worker=request.outlives_worker,
    )


def _reserve_to_wire(request: ReserveRequest) -> pb.Reserve:
    return pb.Reserve(
        step=request.step,
        attempt_number=request.attempt_number,
        model=request.model,
        input_tokens=request.input_tokens,
        max_output_tokens=request.max_output_tokens,
        min_output_tokens=request.min_output_tokens,
        summary_through_step=request.summary_through_step,
        outlives_worker=request.outlives_worker,
    )


def _reserve_result(response: pb.CommitResponse) -> Granted | Denied:
    result = response.reserve
    match result.WhichOneof("result"):
        case "granted":
            granted = result.granted
            prices = prices_to_domain(granted.prices)
            return Granted(granted.max_output_tokens, granted.reserved_tokens, granted.reserved_nano_usd, prices)
        case "denied":
            denied = result.denied
            after = seconds(denied.retry_after) if denied.HasField("retry_after") else None
            wanted = denied.budget_request
            request = budget_request_to_domain(wanted) if denied.HasField("budget_request") else None
            return Denied(denied.reason, denied.message, after, request)
        case _:
            raise Unavailable("the answer to a commit has no result of its reservation", reason="NO_RESERVE_RESULT")


def _transition_to_wire(transition: entries.Transition) -> pb.Transition:
    delay, wait = transition.retry_delay_seconds, transition.wait
    return pb.Transition(
        to_state=STATES.to_wire(transition.to_state),
        reason=transition.reason,
        message=transition.message[:MAX_TRANSITION_MESSAGE],
        result=transition.result,
        retry_delay=None if delay is None else duration(delay),
        result_json=transition.result_json,
        wait=None if wait is None else wait_to_wire(wait),
        wait_timeout=None if wait is None else duration(wait.timeout_seconds),
        error_class=transition.error_class,
        calls_in_doubt=calls_in_doubt_to_wire(transition.calls_in_doubt),
        outputs=[output_to_wire(output) for output in transition.outputs],
    )
