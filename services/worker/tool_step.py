"""The tool calls of one step: run in parallel, their outcomes collected for the next commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from services.worker.claim_ledger import ClaimLedger, Fact
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.tools_client import CallLimits
from tenure.domain.compaction import Window
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import Fenced, InvalidRequest, TryLater
from tenure.domain.in_doubt import is_unsettled
from tenure.domain.retry import RetryPolicy
from tenure.domain.task import InDoubtPolicy, TaskPolicy
from tenure.domain.tools import Outcome, OutcomeStatus, ToolDefinition
from tenure.runtime import semconv
from tenure.runtime.failpoints import failpoint, failpoint_enabled
from tenure.runtime.telemetry import span
from tenure.validators import MIN_OUTPUT_BYTES

SIBLING_WAIT_SECONDS: Final = 1.0
"""So long an outcome waits for the other calls of its step, then it is committed without them."""

GRACE_SECONDS: Final = 30.0
"""Beyond a tool's own timeout, for its queue and its records."""

UNKNOWN_TOOL_TIMEOUT_SECONDS: Final = 60.0
AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=5.0)
PATIENCE_SECONDS: Final = 60.0
"""With tools that give no sign of life; then the task is let go. Short of the time after which a coordinator takes this
worker for stuck, and counts its death: an outage must not look like a task that kills its workers."""


@dataclass(slots=True)
class ToolStepProblems:
    """Calls of a step that its model may not be all there is to: a person must settle them, or they took too long."""

    in_doubt: list[tuple[ToolIntent, Outcome]] = field(default_factory=list)
    late: list[ToolIntent] = field(default_factory=list)


class ToolStep:
    """`uncommitted` has the outcomes that no commit took along yet, also after an interruption."""

    def __init__(
        self, dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, policy: TaskPolicy, window: Window
    ) -> None:
        self._dependencies, self._held_task, self._ledger, self._policy = (
            dependencies,
            held_task,
            ledger,
            policy.on_in_doubt,
        )
        self._limit_seconds = policy.timeouts.tool_call.after_seconds
        self._tools: Mapping[str, ToolDefinition] = {}
        self._window = window
        self._output_limit_bytes = 0
        self.uncommitted: list[Fact] = []

    def use_tools(self, tools: Sequence[ToolDefinition]) -> None:
        """The definitions as the task keeps them: how long a call may take."""
        self._tools = {tool.name: tool for tool in tools}

    async def run(self, step: int, intents: Sequence[ToolIntent]) -> ToolStepProblems:
        """Runs all of them; returns those that may be no matter of the model's alone.

        Interrupted: stops waiting. What runs goes on, and is joined by whoever executes it again.
        """
        unusual = ToolStepProblems()
        self._output_limit_bytes = max(MIN_OUTPUT_BYTES, self._window.result_bytes // max(1, len(intents)))
        running = {asyncio.create_task(self._execute(intent)): intent for intent in intents}
        commit_at: float | None = None
        try:
            while running:
                for call in await self._held_task.interrupts.guard(_first_done(running, commit_at)):
                    intent, outcome = running.pop(call), call.result()
                    if is_unsettled(outcome) and self._policy is InDoubtPolicy.WAIT_FOR_PERSON:
                        unusual.in_doubt.append((intent, outcome))
                    else:
                        unusual.late += [intent] if outcome.status is OutcomeStatus.TIMED_OUT else []
                        self.uncommitted.append((step, ToolOutcome(intent.call_id, outcome)))
                commit_at = await self._commit_overdue(commit_at) if running else None
        finally:
            for call in running:
                call.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return unusual

    async def _commit_overdue(self, commit_at: float | None) -> float | None:
        """When the outcomes so far are to be committed at the latest; commits them when that is now."""
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
        tool = self._tools.get(intent.tool)
        outcome_seconds = (tool.timeout_seconds if tool else UNKNOWN_TOOL_TIMEOUT_SECONDS) + GRACE_SECONDS
        limits = CallLimits(outcome_seconds, self._limit_seconds, self._output_limit_bytes)
        attributes = {
            semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
            semconv.TOOL_NAME: intent.tool,
            semconv.TOOL_CALL_ID: intent.call_id,
        }
        with span(f"{semconv.EXECUTE_TOOL} {intent.tool}", attributes) as executing:
            try:
                outcome = await self._execute_with_retries(intent, limits)
            except InvalidRequest as refusal:  # the model's own doing, for example arguments beyond all bounds
                outcome = Outcome(OutcomeStatus.INVALID_ARGUMENTS, refusal.message)
            except Fenced as refusal:
                if not failpoint_enabled("worker.ignore_trust_window"):
                    raise
                outcome = Outcome(OutcomeStatus.NOT_RUN, refusal.message)  # deaf to the end: it goes on to its commit
            if outcome.is_error:
                executing.set_attribute(semconv.ERROR_TYPE, outcome.status.value)
            return outcome

    async def _execute_with_retries(self, intent: ToolIntent, limits: CallLimits) -> Outcome:
        """The outcome, asked for again and again. Raises TryLater once nothing was heard of the call for too long."""
        progress = self._held_task.progress
        heard_at, failures = monotonic(), 0

        def hear() -> None:
            nonlocal heard_at
            heard_at = monotonic()
            progress.on_tool_progress()

        while True:
            await self._dependencies.trust.wait_open()
            try:
                return await self._dependencies.tools.execute(
                    self._held_task.token, intent, hear, limits, self._ledger.point.resolutions.get(intent.call_id)
                )
            except TryLater as error:
                failures += 1
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds)
                if monotonic() + wait_seconds - heard_at >= PATIENCE_SECONDS:
                    raise
            await asyncio.sleep(wait_seconds)


async def _first_done(
    running: Mapping[asyncio.Task[Outcome], ToolIntent], until: float | None
) -> set[asyncio.Task[Outcome]]:
    """The calls that ended; none when `until` comes first."""
    timeout = None if until is None else max(0.0, until - monotonic())
    done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return done
