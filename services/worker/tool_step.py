"""Runs the tool calls of one step in parallel and collects their outcomes for the next commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Never

from services.worker.claim_ledger import ClaimLedger, StepEntry
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.interrupts import Interrupted, Interruption
from services.worker.kept_content import KeptContents
from services.worker.own_calls import CallOfOwnTool
from services.worker.tools_client import CallLimits, OwnCall
from tenure.control import OwnTool
from tenure.domain.compaction import Window
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import AlreadyExists, Fenced, InvalidRequest, TryLater
from tenure.domain.in_doubt import is_unsettled
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason
from tenure.domain.task import InDoubtPolicy, TaskPolicy
from tenure.domain.tool_rules import NEEDS_APPROVAL
from tenure.domain.tools import Outcome, OutcomeStatus, ToolDefinition
from tenure.domain.waiting_calls import needs_approval
from tenure.runtime.failpoints import failpoint, failpoint_enabled
from tenure.runtime.request_context import within_trace
from tenure.validators.common import MIN_OUTPUT_BYTES

SIBLING_WAIT_SECONDS: Final = 1.0
"""The time that an outcome waits for the other calls of its step. After it, it is committed without them."""

GRACE_SECONDS: Final = 30.0
"""The time beyond a tool's own timeout for its queue and its records."""

UNKNOWN_TOOL_TIMEOUT_SECONDS: Final = 60.0
OTHER_CALL: Final = (
    "This call was not run: the tool service has the record of another call in its place, because the task was "
    "restored to an earlier time. Calls of the time that was lost have had their effects, and this history does not "
    "show them: find out what they did before you make this call again."
)
AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=5.0)
_LETS_FINISH: Final = frozenset({Interruption.DRAIN, Interruption.STOP})
PATIENCE_SECONDS: Final = 60.0
"""The time without an event from the tool service after which the claim is released.

It is shorter than the time after which a coordinator declares the claim stuck and counts a crash: an outage of the tool
service must not look like a crash loop.
"""


@dataclass(slots=True)
class ToolStepProblems:
    """The calls of a step that need more than the model: calls in doubt, calls that took too long, and calls for which
    a rule of the tenant asks a person.
    """

    in_doubt: list[tuple[ToolIntent, Outcome]] = field(default_factory=list)
    late: list[ToolIntent] = field(default_factory=list)
    to_approve: list[tuple[ToolIntent, Outcome]] = field(default_factory=list)


class ToolStep:
    """Runs calls. `uncommitted` holds the outcomes that no commit took along yet, also after an interruption."""

    def __init__(
        self, dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, policy: TaskPolicy, window: Window
    ) -> None:
        self._dependencies, self._held_task, self._ledger = dependencies, held_task, ledger
        self._on_in_doubt = policy.on_in_doubt
        self._limit_seconds = policy.timeouts.tool_call.after_seconds
        self._tools: Mapping[str, ToolDefinition] = {}
        self._own: Mapping[str, OwnTool] = {}
        self._window = window
        self._contents = KeptContents(dependencies.tools, dependencies.trust, held_task)
        self._output_limit_bytes = 0
        self._stopped: set[str] = set()
        self._unapproved: set[str] = set()
        self.uncommitted: list[StepEntry] = []

    def use_tools(self, tools: Sequence[ToolDefinition]) -> None:
        """Takes the tool definitions that the task keeps, with their timeouts."""
        self._tools = {tool.name: tool for tool in tools}

    def use_own_tools(self, tools: Sequence[OwnTool]) -> None:
        """Takes the own tools of the next calls, which this process runs."""
        self._own = {tool.name: tool for tool in tools}

    async def run(
        self, step: int, intents: Sequence[ToolIntent], approve_tools: Collection[str] = ()
    ) -> ToolStepProblems:
        """Runs all calls. Returns the calls whose outcome may not go to the model. `approve_tools`: their calls need an
        approval; those without one run only by a plan.

        An interruption ends the wait. The calls go on, and the next owner joins them.
        """
        problems = ToolStepProblems()
        allowed = self._ledger.point.allowed_calls
        self._unapproved = {one.call_id for one in intents if needs_approval(one, approve_tools, allowed)}
        self._output_limit_bytes = max(
            MIN_OUTPUT_BYTES, self._window.within(self._ledger.point.window_tokens).result_bytes // max(1, len(intents))
        )
        running = {asyncio.create_task(self._execute(intent)): intent for intent in intents}
        commit_at: float | None = None
        try:
            while running:
                for call in await self._first_done(running, commit_at):
                    intent, outcome = running.pop(call), call.result()
                    if is_unsettled(outcome) and self._on_in_doubt is InDoubtPolicy.WAIT_FOR_PERSON:
                        problems.in_doubt.append((intent, outcome))
                    elif self._is_asked(intent, outcome):
                        problems.to_approve.append((intent, outcome))
                    else:
                        problems.late += [intent] if outcome.status is OutcomeStatus.TIMED_OUT else []
                        self.uncommitted.append((step, ToolOutcome(intent.call_id, outcome)))
                commit_at = await self._commit_overdue(commit_at) if running else None
        finally:
            for call in running:
                call.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        places = {intent.call_id: place for place, intent in enumerate(intents)}
        for calls in (problems.in_doubt, problems.to_approve):  # they came in the order of their ends
            calls.sort(key=lambda call: places[call[0].call_id])
        return problems

    def _is_asked(self, intent: ToolIntent, outcome: Outcome) -> bool:
        """Whether the call needs an approval that it does not have. One that has it is not asked about again."""
        asks = outcome.status is OutcomeStatus.NOT_ALLOWED and outcome.detail == NEEDS_APPROVAL
        return asks and intent.call_id not in self._ledger.point.allowed_calls

    async def _first_done(
        self, running: Mapping[asyncio.Task[Outcome], ToolIntent], until: float | None
    ) -> set[asyncio.Task[Outcome]]:
        """Returns the calls that ended; none when `until` comes first. Raises Interrupted.

        A drain, or a stop, waits for UNSAFE own tools: to stop them would put their calls in doubt.
        """
        while True:
            waits = any(self._is_unsafe_own(intent) for intent in running.values())
            ignoring = _LETS_FINISH if waits else frozenset[Interruption]()
            try:
                return await self._held_task.interrupts.guard(_first_done(running, until), ignoring=ignoring)
            except Interrupted as interrupted:
                if interrupted.kind not in ignoring:
                    raise

    def _is_unsafe_own(self, intent: ToolIntent) -> bool:
        own = self._own.get(intent.tool)
        return own is not None and not own.effect.may_run_again and intent.call_id not in self._stopped

    async def _commit_overdue(self, commit_at: float | None) -> float | None:
        """Commits the outcomes when they are due. Returns the latest time of the next commit, or None."""
        if not self.uncommitted:
            return None
        if commit_at is None:
            return monotonic() + SIBLING_WAIT_SECONDS
        if monotonic() < commit_at:
            return commit_at
        await self._ledger.append(self.uncommitted)
        self.uncommitted.clear()
        await failpoint("worker.after_outcome")
        return None

    async def _execute(self, intent: ToolIntent) -> Outcome:
        own = self._own.get(intent.tool)
        tool = self._tools.get(intent.tool) if own is None else own.definition
        outcome_seconds = (tool.timeout_seconds if tool else UNKNOWN_TOOL_TIMEOUT_SECONDS) + GRACE_SECONDS
        limits = CallLimits(outcome_seconds, self._limit_seconds, self._output_limit_bytes if own is None else 0)
        with within_trace(self._ledger.call_trace(intent.call_id)):
            call = None if own is None else CallOfOwnTool(own, intent, self._held_task, self._contents.keep)
            try:
                outcome = await self._execute_with_retries(intent, limits, call)
            except InvalidRequest as refusal:  # the model's own mistake, for example arguments beyond all limits
                outcome = Outcome(OutcomeStatus.INVALID_ARGUMENTS, refusal.message)
            except AlreadyExists:  # the call of a time that the ledger lost when it was restored
                outcome = Outcome(OutcomeStatus.NOT_RUN, OTHER_CALL)
            except Fenced as refusal:
                if not failpoint_enabled("worker.ignore_trust_window"):
                    raise
                # the failpoint makes the worker ignore the fence until its commit is refused
                outcome = Outcome(OutcomeStatus.NOT_RUN, refusal.message)
        if call is not None:
            self._dependencies.own_runs.end(call)
        return outcome

    async def _execute_with_retries(
        self, intent: ToolIntent, limits: CallLimits, call: CallOfOwnTool | None
    ) -> Outcome:
        """Retries until there is an outcome. Raises TryLater when the call gave no event for too long.

        The service owes no event while an own tool runs here: after that the time counts from the first refusal, so
        that the outcome of a long run is not given up.
        """
        progress = self._held_task.progress
        progress_at, failures, is_refused = monotonic(), 0, False

        def take_event() -> None:
            nonlocal progress_at, is_refused
            progress_at, is_refused = monotonic(), False
            progress.on_tool_progress()

        while True:
            await self._dependencies.trust.wait_open()
            try:
                return await self._dependencies.tools.execute(
                    self._held_task.token,
                    intent,
                    take_event,
                    limits,
                    self._ledger.point.resolutions.get(intent.call_id),
                    None if call is None else self._own_call(call),
                    needs_approval=intent.call_id in self._unapproved,
                )
            except TryLater as error:
                if error.reason == Reason.STOPPED:
                    await self._leave(intent, error.message)
                failures += 1
                if call is not None and self._dependencies.own_runs.is_running(call):
                    take_event()  # to give up now would stop the tool in the middle
                elif call is not None and not is_refused and error.reason != "TIMEOUT":
                    progress_at, is_refused = monotonic(), True
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds)
                if monotonic() + wait_seconds - progress_at >= PATIENCE_SECONDS:
                    raise
            await asyncio.sleep(wait_seconds)

    async def _leave(self, intent: ToolIntent, message: str) -> Never:
        """Has the task leave this worker, because a stop covers the call: the next owner makes it after the stop."""
        self._stopped.add(intent.call_id)
        self._held_task.interrupts.request(Interruption.STOP, message)
        while True:  # until the interruption cancels it
            await asyncio.Event().wait()

    def _own_call(self, call: CallOfOwnTool) -> OwnCall:
        runs = self._dependencies.own_runs
        return OwnCall(call.definition, runs.outcome_of(call), partial(runs.order, call))


async def _first_done(
    running: Mapping[asyncio.Task[Outcome], ToolIntent], until: float | None
) -> set[asyncio.Task[Outcome]]:
    """Returns the calls that ended; none when `until` comes first."""
    timeout = None if until is None else max(0.0, until - monotonic())
    done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return done
