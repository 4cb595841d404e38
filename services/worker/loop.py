"""The common part of all loops: open, fold, work until the task leaves this worker; tools and interruptions.

task_loop.py (agents) and control/loop.py (control functions) hold the work of each loop.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from services.worker.budget_wait import queue_until_budget, wait_for_budget
from services.worker.claim_ledger import ClaimLedger, CommitRefused, StepEntry
from services.worker.context_window import window_for
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.interrupts import Interrupted, Interruption, StepClock
from services.worker.model_attempt import AttemptWatch
from services.worker.tool_step import ToolStep
from services.worker.transitions import after_calls, after_interruption, close_out, end_after_refusal
from tenure.domain import entries
from tenure.domain.budget import Denied, Granted
from tenure.domain.close_out import UNREAD_MESSAGES
from tenure.domain.compaction import Window
from tenure.domain.errors import SequenceConflict, WrongState
from tenure.domain.fold import ResumePoint
from tenure.domain.next_action import ExecuteTools, with_notes, without_progress
from tenure.domain.requeue import UNREAD_GRANT
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import BUDGET_WAIT_REASONS, ReleaseReason
from tenure.domain.task import TaskSpec
from tenure.domain.tools import ToolDefinition
from tenure.domain.waiting_calls import first_wait, leave_at_cap, move_to_wait
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability.logs import log_context
from tenure.runtime.retrying import retrying
from tenure.runtime.usage_reports import UsageReport

_log: Final = logging.getLogger(__name__)
MAX_CONFLICTS: Final = 3
LIST_TOOLS_TRIES: Final = RetryPolicy(max_attempts=8, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)


class Loop:
    """Drives one task under one claim. `run` returns the reason of the release.

    Raises Fenced when the claim is stale (drop it); any other error releases the claim.
    """

    _tools: ToolStep
    _window: Window
    _own_approvals: tuple[str, ...] = ()

    def __init__(self, dependencies: Dependencies, held_task: HeldTask) -> None:
        self._dependencies, self._held_task = dependencies, held_task
        self._ledger = ClaimLedger(dependencies.ledger, held_task)
        self._pending: list[StepEntry] = []
        self._clock = StepClock(held_task.interrupts)
        self._watch = AttemptWatch(held_task, self._ledger)

    async def run(self) -> ReleaseReason:
        """Works until the task leaves this worker."""
        try:
            return await self._run()
        except CommitRefused as refused:
            self._report_unsettled_call()
            await self._dependencies.own_runs.stopped(self._held_task)
            await end_after_refusal(self._dependencies, self._held_task, self._ledger, refused)
            return ReleaseReason.CLOSED
        except BaseException:
            self._report_unsettled_call()
            raise
        finally:
            self._clock.stop()
            self._dependencies.own_runs.stop_claim(self._held_task)

    async def _run(self) -> ReleaseReason:
        await failpoint("worker.after_grant")
        await self._ledger.open()
        await failpoint("worker.after_open")
        conflicts = 0
        while conflicts < MAX_CONFLICTS:
            try:
                return await self._work()
            except Interrupted as interrupted:
                return await self._stop(interrupted)
            except SequenceConflict as conflict:
                _log.warning("the task is opened again after a sequence conflict", extra={"why": str(conflict)})
                conflicts += 1
            except WrongState as refusal:
                if refusal.reason not in {UNREAD_MESSAGES, UNREAD_GRANT}:
                    raise
                _log.info(
                    "the close-out was refused because of new entries; the task is opened again",
                    extra={"why": str(refusal)},
                )
            self._report_unsettled_call()
            await self._ledger.open()
        raise SequenceConflict(f"{MAX_CONFLICTS} sequence conflicts under one claim")

    def _report_unsettled_call(self) -> None:
        """Reports a call's usage before the ledger settles the call as lost with less information."""
        if (lost := self._watch.unsettled) is not None:
            held_task = self._held_task
            self._dependencies.reports.note(UsageReport(held_task.token, held_task.task_id, *lost))

    async def _work(self) -> ReleaseReason:
        """Works from the resume point until the task leaves this worker."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Prepares the work after an Open: no entry is pending."""
        self._window = window_for(self._spec, self._dependencies.defaults)
        self._tools = ToolStep(self._dependencies, self._held_task, self._ledger, self._spec.policy, self._window)
        self._pending = []

    @property
    def _point(self) -> ResumePoint:
        return self._ledger.point

    @property
    def _spec(self) -> TaskSpec:
        assert self._point.spec is not None, "the first entry of every ledger is the spec"
        return self._point.spec

    def _time(self, step: int) -> None:
        """Starts the step timeout of this step. A step that was begun before goes on."""
        self._clock.begin(step, self._spec.policy.timeouts.step.after_seconds)

    async def _define_tools(self) -> Sequence[ToolDefinition]:
        """Returns the task's tools.

        The first Open writes their definitions to the ledger, and a resumed task keeps them.
        """
        tools = self._point.tools
        if tools is None:
            defined = await self._service_tools()
            if defined.unknown_names:
                _log.warning("the task allows tools that do not exist", extra={"tools": list(defined.unknown_names)})
            tools = defined.tools
            self._pending.append((0, defined))
        self._tools.use_tools(tools)
        return tools

    async def _service_tools(self) -> entries.ToolsDefined:
        """Returns the tools of the tool service that the task may use."""
        return await self._held_task.interrupts.guard(self._list_tools())

    async def _list_tools(self) -> entries.ToolsDefined:
        async def ask() -> entries.ToolsDefined:
            await self._dependencies.trust.wait_open()
            return await self._dependencies.tools.list_tools(self._held_task.token)

        return await retrying(ask, LIST_TOOLS_TRIES)

    async def _wait_trusted(self) -> None:
        """Commits pending entries and waits while the trust window is closed: nothing new may begin then."""
        if self._dependencies.trust.is_open:
            return
        await self._flush()
        await self._held_task.interrupts.guard(self._dependencies.trust.wait_open())

    async def _flush(self) -> None:
        """Commits the pending entries."""
        await self._ledger.append(self._pending)
        self._pending = []

    async def _back_off(self, wait_seconds: float) -> None:
        self._held_task.progress.announce_backoff(wait_seconds)
        await self._held_task.interrupts.sleep(wait_seconds)

    async def _reserve(self, reserve: Callable[[], Awaitable[Granted | Denied]]) -> entries.Transition | None:
        """Reserves the tokens of a model call. Returns a transition when the task must leave this worker.

        `reserve` also commits the pending entries. Retries while other calls' reservations or a cap of the tenant are
        in the way.
        """
        await self._wait_trusted()
        result = await self._granted_or_denied(reserve)
        self._held_task.interrupts.check()  # a denied reservation may be the effect of a pending ending
        if isinstance(result, Granted):
            await failpoint("worker.after_reserve")
            await self._held_task.interrupts.guard(self._dependencies.trust.wait_open())
            return None
        if result.reason in BUDGET_WAIT_REASONS:
            return queue_until_budget(result)
        return leave_at_cap(result, self._spec.policy.on_budget, self._point.last_text)

    async def _granted_or_denied(self, reserve: Callable[[], Awaitable[Granted | Denied]]) -> Granted | Denied:
        for waits in itertools.count():
            result = await reserve()
            self._pending = []
            wait_seconds = wait_for_budget(result, waits, random.random()) if isinstance(result, Denied) else None
            if wait_seconds is None:
                return result
            await self._back_off(wait_seconds)
        raise AssertionError("unreachable: the counter has no end")

    async def _settle_failure(self) -> None:
        """Commits the failure of a model call before a wait: the next owner would bill an estimate otherwise."""
        await failpoint("worker.before_failure")
        await self._flush()
        await failpoint("worker.after_failure")

    async def _execute_calls(self, move: ExecuteTools) -> entries.Transition | None:
        """Runs tool calls; their outcomes become pending. Returns a transition when the task must leave this worker."""
        self._time(move.step)
        await failpoint("worker.after_intent")
        approve_tools = (*self._spec.agent.approve_tools, *self._own_approvals)
        try:
            unusual = await self._tools.run(move.step, move.intents, approve_tools)
        finally:
            self._pending += self._tools.uncommitted
            self._tools.uncommitted = []
        await self._executed(move.step)
        self._clock.stop()
        self._pending = self._with_notes(self._pending)
        if transition := after_calls(self._point, self._spec.policy, unusual):
            return transition
        reasons = {intent.call_id: outcome.content for intent, outcome in unusual.to_approve}
        asks = (*(intent for intent, _ in unusual.to_approve), *move.asks)
        wait, unfit = first_wait(asks, approve_tools, self._point.allowed_calls, reasons)
        self._pending += [(move.step, outcome) for outcome in unfit]
        if wait is not None:
            return move_to_wait(wait)
        return without_progress(self._point, _outcomes(self._pending))

    def _with_notes(self, pending: Sequence[StepEntry]) -> list[StepEntry]:
        noted = iter(with_notes(self._point, _outcomes(pending)))
        return [(step, next(noted) if isinstance(body, entries.ToolOutcome) else body) for step, body in pending]

    async def _executed(self, step: int) -> None:
        """Failpoint: what ran in this step has a result that only this worker has."""
        with log_context(step=step):
            await failpoint("worker.after_execute")

    async def _end_model_call(self, kind: Interruption) -> list[StepEntry]:
        """Returns the entries that settle the open model attempt after an interruption.

        Leaves a call that outlives this worker to the next owner after a drain or stop. Any other end stops it.
        """
        attempt = self._point.open_attempt
        if attempt is None or not attempt.outlives_worker:
            return self._watch.settlement()
        return [] if kind in {Interruption.DRAIN, Interruption.STOP} else await self._cancel_model_call()

    async def _cancel_model_call(self) -> list[StepEntry]:
        """Stops the call of the open attempt, which outlives this worker, and returns the entries that settle it.

        Without an end from a runner it returns nothing: the ledger settles the attempt as lost, and the runner reports
        its usage later.
        """
        raise NotImplementedError

    async def _stop(self, interrupted: Interrupted) -> ReleaseReason:
        """Closes the task out after an interruption, in one commit with all pending entries.

        An answer that a model runner had before its call was stopped has a commit before.
        """
        await self._dependencies.own_runs.stopped(self._held_task)
        self._pending += await self._end_model_call(interrupted.kind)
        transition = after_interruption(self._point, self._spec.policy, interrupted)
        await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
        return ReleaseReason.WORKER_DRAINED if interrupted.kind is Interruption.DRAIN else ReleaseReason.CLOSED


def _outcomes(pending: Sequence[StepEntry]) -> list[entries.ToolOutcome]:
    return [body for _, body in pending if isinstance(body, entries.ToolOutcome)]
