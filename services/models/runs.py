"""The model calls of this process, from their beginning until their usage is in the ledger or was reported."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Final, NamedTuple
from uuid import UUID

from services.models.admission import LimitedCall, ModelCallLimits
from services.models.ends import answer_end, failure_end, outcome_of, stopped_end
from services.models.rules import ATTEMPT_SUPERSEDED, BeginCall, ModelCallState, runs_elsewhere
from services.models.stops import LedgerStops
from services.models.store import AdmittedRequest, CallElsewhere, EndMark, SentMark, give_up_calls, read_elsewhere
from services.models.vendor_requests import vendor_end
from services.models.work import CallWork, ModelCallKey
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable, WrongState
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelCall, ModelCallFailed
from tenure.model_providers.vendor_calls import VendorCall
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.server import draining
from tenure.runtime.store.batching import Batcher
from tenure.runtime.store.postgres import Pool
from tenure.runtime.usage_reports import UsageReport

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 0.5
TENANT_SHARE: Final = 8
"""One tenant has at most so many times the calls that are free, so that its flood leaves places to the others."""
LAST_WRITES_SECONDS: Final = 10.0
"""How long a process that ends tries to record the ends of calls that it stopped."""


class GenerationRun:
    """One call in this process. `end`: its end, once it is recorded. `error`: why readers get no end from here.

    `received_under`: the epochs of the owners that received the end. `needs_no_report`: its usage is in the ledger, or
    is being reported. `may_be_sent`: its row says SENT, or is about to say it. `is_settled`: the ledger takes no end of
    it any more.
    """

    def __init__(self, key: ModelCallKey, work: CallWork, begun: BeginCall) -> None:
        self.key, self.work = key, work
        self.begun_epoch, self.state, self.sent_at = begun.row.begun_epoch, begun.row.state, begun.row.sent_at
        self.call: ModelCall = work.new_call(self._append, self.wake)
        self.blocks: dict[int, list[str]] = {}
        self.end: bytes | None = None
        self.error: TenureError | None = None
        self.over = asyncio.Event()
        self.received_under: set[int] = set()
        self.needs_no_report = False
        self.is_settled = False
        self.stopped: FailureClass | None = None
        self.given_up = False
        self.may_be_sent = self.state is ModelCallState.SENT
        self.permit = work.permit
        self.failure: ModelCallFailed | None = None
        self.calling: asyncio.Task[bytes] | None = None
        self.readers: set[asyncio.Event] = set()

    def text(self, block: int) -> str:
        """Returns the text of a block so far."""
        pieces = self.blocks[block]
        if len(pieces) > 1:  # joined by the reader, so that unread text costs only an append
            pieces[:] = ["".join(pieces)]
        return pieces[0]

    def wake(self) -> None:
        """Tells the readers that there is something new. Each one comes back when it has read it."""
        readers, self.readers = self.readers, set()
        for reader in readers:
            reader.set()

    def conclude(self, end: bytes | None, error: TenureError | None = None) -> None:
        """Gives the readers the end, or the reason why there is none."""
        self.end, self.error = end, error
        self.over.set()
        self.wake()

    def forget_content(self) -> None:
        """Drops what was sent and what has arrived, once readers get the end: a run is kept for a while."""
        self.work.forget_prompt()
        self.call.forget_response()
        self.failure = None  # its traceback has both

    def stop(self, why: FailureClass) -> None:
        """Stops the call; its end follows. Repeatable."""
        if self.calling is not None and not self.over.is_set() and self.stopped is None:
            self.stopped = why
            self.calling.cancel()

    def _append(self, block: int, text: str) -> None:
        self.blocks.setdefault(block, []).append(text)
        self.wake()


class RunWriters(NamedTuple):
    """The batchers that write for a run."""

    sent_marks: Batcher[SentMark, bool]
    ends: Batcher[EndMark, bool]


class RunBounds(NamedTuple):
    """The bounds of the calls at one time and of their bytes, and the delay of a report after an end."""

    max_calls: int
    max_bytes: int
    kept_seconds: float


class Runs:
    """The newest call of each task in this process. `report`: takes usage for the ledger."""

    def __init__(
        self,
        limits: ModelCallLimits,
        writers: RunWriters,
        pool: Pool,
        runner_id: UUID,
        report: Callable[[UsageReport], None],
        bounds: RunBounds,
        stops: LedgerStops,
    ) -> None:
        self._stops = stops
        stops.on_change = self._stop_unsent
        self._limits, self._writers, self._pool = limits, writers, pool
        self._runner_id, self._report, self._bounds = runner_id, report, bounds
        self._newest: dict[UUID, GenerationRun] = {}
        self._running: dict[asyncio.Task[None], GenerationRun] = {}
        self._unreported: set[GenerationRun] = set()
        self._of_tenant: Counter[str] = Counter()
        self._prompt_bytes = self._end_bytes = 0
        self._is_draining = False

    def find(self, key: ModelCallKey) -> GenerationRun | None:
        """Returns the call if it runs here, or has ended here lately."""
        run = self._newest.get(key.task_id)
        return run if run is not None and run.key == key and not run.given_up else None

    def refuse_new(self, call: LimitedCall) -> TenureError | None:
        """Returns why this new call does not begin now."""
        if self._is_draining:
            return draining()
        most, free = self._bounds.max_calls, self._bounds.max_calls - len(self._running)
        if free <= 0:
            return _too_many(f"this model runner makes {most} calls already")
        if self._of_tenant[call.tenant] >= TENANT_SHARE * free:
            own = self._of_tenant[call.tenant]
            return _too_many(f"{own} of the {most} calls of this model runner are this tenant's, and others need some")
        if self._running and self._held_bytes + call.input_bytes > self._bounds.max_bytes:
            return _too_many(
                f"prompts and responses of this model runner's calls have {self._held_bytes} bytes already"
            )
        return None

    @property
    def _held_bytes(self) -> int:
        """The bytes of prompts, of responses that are passed on, and of ends that are kept for readers."""
        return self._prompt_bytes + self._end_bytes + sum(run.call.held_bytes for run in self._running.values())

    def begin(self, admitted: AdmittedRequest, begun: BeginCall) -> None:
        """Begins a call whose row says that this runner makes it."""
        work = admitted.work
        assert work is not None, "only Generate begins calls"
        run = GenerationRun(admitted.key, work, begun)
        run.call.may_go_on = lambda: not self._stops.covers(work.subject)
        older = self._newest.get(admitted.key.task_id)
        if older is not None and older.key == run.key:  # its number is another call's now: it must not record its end
            self._abandon(older)
        elif older is not None:
            older.stop(FailureClass.INTERRUPTED)  # the task has gone on without it
            # Only its own commit of the end lets an owner begin the next call. A received end alone proves no commit.
            older.needs_no_report |= begun.row.fence.epoch in older.received_under
        self._newest[admitted.key.task_id] = run
        self._unreported.add(run)
        run.calling = asyncio.create_task(self._call(run))
        task = asyncio.create_task(self._work(run), name=f"model call {work.request.attempt}")
        self._running[task] = run
        self._of_tenant[work.limited.tenant] += 1
        self._prompt_bytes += work.limited.input_bytes
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        limited = self._running.pop(task).work.limited
        self._prompt_bytes -= limited.input_bytes
        self._of_tenant[limited.tenant] -= 1
        if not self._of_tenant[limited.tenant]:
            del self._of_tenant[limited.tenant]

    @property
    def max_calls(self) -> int:
        """The most calls at once."""
        return self._bounds.max_calls

    def in_flight(self) -> list[GenerationRun]:
        """Returns the calls without an end."""
        return [run for run in self._running.values() if not run.over.is_set()]

    def count_by_state(self) -> dict[str, int]:
        """Returns the number of running calls by state."""
        counts = dict.fromkeys((ModelCallState.ACCEPTED.value, ModelCallState.SENT.value), 0)
        for run in self._running.values():
            counts[run.state.value] += 1
        return counts

    async def drain(self, seconds: float) -> None:
        """Begins no more calls, gives up those that were not sent, and waits for the others; then stops them."""
        self._is_draining = True
        await self._ended_or_given_up(seconds)
        for run in self._running.values():
            run.stop(FailureClass.LOST)
        if self._running:
            await asyncio.wait(list(self._running), timeout=LAST_WRITES_SECONDS)
        for run in list(self._unreported):
            self._report_usage(run)

    async def _ended_or_given_up(self, seconds: float) -> None:
        """Waits for the calls that were sent, and gives up the others, also those that a request began meanwhile."""
        until = monotonic() + seconds
        while self._running:
            await self._give_up([run for run in self._running.values() if not (run.may_be_sent or run.given_up)])
            left = until - monotonic()
            if left <= 0 or not self._running:
                break
            await asyncio.wait(list(self._running), timeout=min(left, _AGAIN_SECONDS))

    def _abandon(self, run: GenerationRun) -> None:
        """Ends a call without an end and without a report: both would be taken for those of another call."""
        self._unreported.discard(run)
        self._cancel_call(run)
        if not run.over.is_set():
            run.conclude(None, draining())

    @staticmethod
    def _cancel_call(run: GenerationRun) -> None:
        run.given_up = True
        if run.calling is not None:
            run.calling.cancel()

    async def _give_up(self, runs: list[GenerationRun]) -> None:
        for run in runs:
            self._cancel_call(run)
        if not runs:
            return
        try:
            await give_up_calls(self._pool, [run.key for run in runs], self._runner_id)
        except TryLater as error:  # they are free all the same as soon as this runner's row is gone
            _log.warning("could not give up calls that were not sent: %s", error)
        for run in runs:
            run.conclude(None, draining())

    async def _work(self, run: GenerationRun) -> None:
        """Makes the call and records its end."""
        end = await self._ended(run)
        if end is None:
            return
        run.work.forget_prompt()  # a prompt may be large, and the run is kept for a while
        try:
            await self._record(run, end)
        except Exception as error:  # noqa: BLE001  the process is closing, or the database refuses this end
            fields = {"attempt": run.work.request.attempt, "why": str(error)}
            _log.error("the end of a model call is not recorded", extra=fields)
            message = "the model runner could not record the end of the call: repeat the request later"
            unrecorded = Unavailable(message, reason="NOT_RECORDED", retry_after_seconds=1.0)
            run.conclude(None, error if isinstance(error, TryLater) else unrecorded)
        run.forget_content()
        end_bytes = len(run.end or b"")
        self._end_bytes += end_bytes
        if run.is_settled:
            self._report_usage(run)
        asyncio.get_running_loop().call_later(self._bounds.kept_seconds, self._forget, run, end_bytes)

    async def _ended(self, run: GenerationRun) -> bytes | None:
        """Returns the end of the call; None: this process gave it up before it was sent."""
        calling, number = run.calling, run.key.attempt.number
        assert calling is not None, "begin has started it"
        try:
            return await calling
        except asyncio.CancelledError:
            if run.given_up:
                return None
            if run.stopped is None:  # the process is closing
                calling.cancel()
                raise
            return stopped_end(number, run.stopped, run.call.usage, run.call.request_id)
        except Exception:  # noqa: BLE001  a bug of a provider must not leave the readers without an end
            _log.exception("a model call failed unexpectedly", extra={"attempt": run.work.request.attempt})
            return stopped_end(number, FailureClass.LOST, run.call.usage, run.call.request_id)
        finally:
            if run.permit is not None:  # here, because a task that is cancelled before it began runs no line
                run.permit.close(run.call.usage, run.failure)

    async def _call(self, run: GenerationRun) -> bytes:
        """Sends the call and returns its end."""
        number = run.key.attempt.number
        try:
            if run.permit is None:
                run.permit = await self._limits.admit(run.work.limited)
            if run.state is ModelCallState.ACCEPTED and not await self._mark_sent(run):
                return stopped_end(number, FailureClass.INTERRUPTED)
            await failpoint("models.before_call")
            if self._stops.covers(run.work.subject):
                return stopped_end(number, FailureClass.INTERRUPTED)
            answer = await run.permit.answer(run.work.request, run.call)
        except ModelCallFailed as error:
            run.failure = error
            return failure_end(number, error)
        if isinstance(run.call, VendorCall):
            return vendor_end(run.call, run.work.digest).SerializeToString()
        return answer_end(number, answer)

    def _stop_unsent(self) -> None:
        """Stops the calls that a stop covers and that no endpoint has: not sent yet, or refused."""
        for run in self.in_flight():
            is_refused = run.permit is not None and run.permit.is_moving
            if (is_refused or not run.may_be_sent) and self._stops.covers(run.work.subject):
                run.stop(FailureClass.INTERRUPTED)

    async def _mark_sent(self, run: GenerationRun) -> bool:
        """Records that the call is sent now. False: it was cancelled, or another runner has it."""
        sent_at = datetime.now(UTC)
        run.may_be_sent = True
        if not await self._writers.sent_marks.submit(SentMark(run.key, sent_at)):
            return False
        run.state, run.sent_at = ModelCallState.SENT, sent_at
        run.wake()
        return True

    async def _record(self, run: GenerationRun, end: bytes) -> None:
        """Records the end, then gives it to the readers. If the record has another end, they get that one."""
        if await self._writers.ends.submit(EndMark(run.key, end)):
            metrics.count("tenure_models_calls_ended_total", outcome=outcome_of(end))
            run.conclude(end)
            return
        metrics.count("tenure_models_calls_ended_total", outcome="OVERTAKEN")
        elsewhere = await self._read_elsewhere(run.key)
        if elsewhere is None:
            message = "a later attempt of the task has begun"
            run.conclude(None, WrongState(message, reason=ATTEMPT_SUPERSEDED))
        elif elsewhere.ended is None:  # it took the call over while this one was slow: the reader finds it there
            run.conclude(None, runs_elsewhere())
        else:
            run.conclude(elsewhere.ended)

    async def _read_elsewhere(self, key: ModelCallKey) -> CallElsewhere | None:
        while True:
            try:
                return await read_elsewhere(self._pool, key)
            except TryLater as error:
                _log.warning("could not read the end of a call: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    def _forget(self, run: GenerationRun, end_bytes: int) -> None:
        self._report_usage(run)
        self._unreported.discard(run)
        self._end_bytes -= end_bytes
        if self._newest.get(run.key.task_id) is run:
            del self._newest[run.key.task_id]

    def _report_usage(self, run: GenerationRun) -> None:
        """Reports the usage of a call that may have been settled as lost, or may be yet."""
        usage: TokenUsage = run.call.usage
        if not run.needs_no_report and run.over.is_set() and usage.total:
            run.needs_no_report = True
            task_id, (step, number) = run.key
            call = ReportedCall(step, number, usage)
            self._report(UsageReport(run.work.token, str(task_id), call, run.call.request_id))


def _too_many(why: str) -> LimitReached:
    return LimitReached(f"{why}: repeat the request later", reason="TOO_MANY_CALLS", retry_after_seconds=1.0)
