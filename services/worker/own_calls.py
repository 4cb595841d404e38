"""Runs calls of own tools in this process: each call once at a time, and only while the trust window is open.

A run belongs to the claim, not to the request that ordered it. After a broken stream, and after the task was opened
again, the call is requested again and gets the outcome of the run that goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Final

from services.worker.held_claims import HeldTask
from services.worker.interrupts import TrustGate
from tenure.control.failures import NOT_REPLAYABLE, NotReplayable, text_of
from tenure.control.own_tools import EffectUnknown, ForModel, OwnTool, ToolError
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import Fenced, Refused, TryLater
from tenure.domain.long_output import BEGINNING_CHARACTERS, SHORTENED, shortened_output
from tenure.domain.texts import MAX_KEPT_BYTES, KeptContent
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.domain.tools import RAN_TO_ITS_END, TOO_LARGE, Outcome, OutcomeStatus, ToolDefinition, within_limit
from tenure.runtime.failpoints import failpoint, failpoint_enabled
from tenure.runtime.observability.logs import log_context
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import tool_service_pb2 as pb
from tenure.wire.common import OUTCOME_STATUSES, duration, seconds

_log: Final = logging.getLogger(__name__)
PROGRESS_SECONDS: Final = 10.0
KEEP_AGAIN_SECONDS: Final = 1.0
BEGINS_WITHIN_SECONDS: Final = 1.0
"""An UNSAFE run begins so soon after its order, or never: a stop covers what begins later."""
STOP_SECONDS: Final = 1.0
"""The time for a stopped run to clean up. After it the task leaves the worker in any case."""

_MAX_FAILURE_CHARACTERS: Final = 4000

Answer = Callable[[pb.OwnOutcome], None]
"""Sends what a run came to."""


@dataclass(frozen=True, slots=True)
class CallOfOwnTool:
    """A call of an own tool: what to run, and for which claim.

    `keep`: keeps what is too large for the outcome; None: that is a failure. `context`: the variables of the task's
    work.
    """

    tool: OwnTool
    intent: ToolIntent
    held_task: HeldTask
    keep: Callable[[bytes], Awaitable[KeptContent]] | None = None
    context: Context = field(default_factory=copy_context)

    @property
    def definition(self) -> ToolDefinition:
        return self.tool.definition


@dataclass(frozen=True, slots=True)
class _Context:
    """Implements tenure.control.OwnToolContext."""

    task_id: str
    call_id: str
    call_attempt: int
    idempotency_key: str
    epoch: int
    on_progress: Callable[[], None]

    def emit(self, text: str) -> None:  # noqa: ARG002  the text is not recorded
        self.on_progress()


class _Run:
    """One run of a call. It starts when `former`, the run of the same call under an older claim, has ended."""

    def __init__(self, call: CallOfOwnTool, order: pb.RunHere, trust: TrustGate, former: _Run | None) -> None:
        self.call, self._trust = call, trust
        self._timeout_seconds = seconds(order.timeout)
        self._attempt = order.call_attempt
        self._answer: Answer = _drop_answer
        self._outcome: Outcome | None = None
        self._ordered_at, self._began_at = monotonic(), 0.0
        self.is_stopped = False
        self._running: asyncio.Task[Outcome] | None = None
        self._former = former
        self._progress = call.held_task.progress
        claims = call.held_task.claims
        self._context = _Context(
            claims.task_id,
            call.intent.call_id,
            order.call_attempt,
            order.idempotency_key,
            claims.epoch,
            self._progress.on_tool_progress,
        )
        # Orders arrive in the context of the stream: the tool's logs and traces belong to the task's work.
        self.task = asyncio.create_task(
            self._carry_out(), name=f"own tool {order.idempotency_key}", context=call.context
        )

    def is_void(self, order: pb.RunHere) -> bool:
        """Whether the run did not begin in time, and this order is a newer one."""
        is_void = self._outcome is not None and self._outcome.status is OutcomeStatus.NOT_RUN
        return is_void and order.call_attempt != self._attempt

    @property
    def outcome(self) -> pb.OwnOutcome | None:
        """The outcome of the run, under the newest attempt; None while the run goes on."""
        outcome = self._outcome
        if outcome is None:
            return None
        return pb.OwnOutcome(
            call_attempt=self._attempt,
            status=OUTCOME_STATUSES.to_wire(outcome.status),
            content=outcome.content,
            detail=outcome.detail,
            duration=duration(min(outcome.duration_seconds, MAX_PHASE_SECONDS)),  # a timeout may be as long itself
            output_path=outcome.output_path,
        )

    def answer_to(self, order: pb.RunHere, answer: Answer) -> None:
        """Answers this order when the run has ended, in place of an earlier one."""
        self._attempt, self._answer = order.call_attempt, answer
        if (outcome := self.outcome) is not None:
            answer(outcome)

    @property
    def going_on(self) -> asyncio.Task[Any] | None:
        """The unfinished work of this run or of those before it; None: all of it has ended."""
        mine = (task for task in (self.task, self._running) if task is not None and not task.done())
        return next(mine, None) or (None if self._former is None else self._former.going_on)

    def stop(self) -> None:
        """Stops the run. A second cancellation would end the wait for a tool that cleans up."""
        if not self.is_stopped:
            self.is_stopped = True
            self.task.cancel()

    async def _carry_out(self) -> None:
        while self._former is not None and (former := self._former.going_on) is not None:
            await asyncio.wait({former})
        self._former = None
        self._running = running = asyncio.create_task(self._guarded(), name=f"{self.task.get_name()}: run")
        try:
            outcome = await self._ended(running)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait({running})
            raise
        outcome = replace(outcome, duration_seconds=self._elapsed_seconds)
        self._outcome = within_limit(outcome, self.call.definition)
        with log_context(task=self.call.held_task.task_id):
            await failpoint("worker.after_own_tool")
        self._progress.on_tool_progress()
        assert self.outcome is not None
        self._answer(self.outcome)

    @property
    def _elapsed_seconds(self) -> float:
        return monotonic() - self._began_at if self._began_at else 0.0

    async def _ended(self, running: asyncio.Task[Outcome]) -> Outcome:
        """Returns the outcome of the run, or of its timeout. Reports progress while the tool runs."""
        while not running.done():
            left_seconds = self._timeout_seconds - self._elapsed_seconds
            if left_seconds <= 0:
                running.cancel()
                await asyncio.wait({running}, timeout=STOP_SECONDS)
                return self._timed_out(running)
            await asyncio.wait({running}, timeout=min(PROGRESS_SECONDS, left_seconds))
            if self._began_at:
                self._progress.on_tool_progress()
        return running.result()

    def _timed_out(self, running: asyncio.Task[Outcome]) -> Outcome:
        if running.done() and not running.cancelled():
            return running.result()
        stopped = "was stopped" if running.done() else "was asked to stop, and has not stopped yet"
        message = f"{self.call.tool.name} took longer than {self._timeout_seconds:g} s and {stopped}."
        return Outcome(OutcomeStatus.TIMED_OUT, message, detail="TIMEOUT")

    async def _guarded(self) -> Outcome:
        """Runs the tool. Nothing awaits between the look at the trust window and the tool's own first step.

        A new session opens the window of the process and loses the claims of the former one in the same moment, so the
        claim is looked at too.
        """
        arguments = json.loads(self.call.intent.arguments_json)
        with log_context(task=self.call.held_task.task_id):
            await failpoint("worker.before_own_tool")
        await self._trust.wait_open()
        if self.call.held_task.lost and not failpoint_enabled("worker.ignore_trust_window"):
            raise asyncio.CancelledError
        name, is_repeatable = self.call.tool.name, self.call.definition.effect_class.may_run_again
        if not is_repeatable and monotonic() > self._ordered_at + BEGINS_WITHIN_SECONDS:
            return Outcome(OutcomeStatus.NOT_RUN, f"{name} could not begin within {BEGINS_WITHIN_SECONDS:g} s.")
        self._began_at = monotonic()
        try:
            content = await self.call.tool.run(self._context, arguments)
        except EffectUnknown as unknown:
            return Outcome(OutcomeStatus.IN_DOUBT, _text(f"{name} lost the answer to what it sent: {unknown}."))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return _failure(name, error)  # the tool cancelled a coroutine of its own
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  the user's tool may raise anything, and the call needs an outcome
            _log.warning("an own tool failed", exc_info=True, extra={"tool": name, "call": self.call.intent.call_id})
            return _failure(name, error)
        if not _is_text(content):
            message = f"{name} returned {type(content).__name__}, and must return text. {RAN_TO_ITS_END}"
            return Outcome(OutcomeStatus.FAILED, message, detail="NOT_TEXT")
        outcome = Outcome(OutcomeStatus.SUCCEEDED, _text(content))
        return await (self._shortened(outcome) if isinstance(content, ForModel) else self._kept(outcome))

    async def _shortened(self, outcome: Outcome) -> Outcome:
        """Returns the outcome as the model reads it. If all of it cannot be kept, the text says so."""
        encoded, keep, limit_bytes = outcome.content.encode(), self.call.keep, self.call.tool.model_limit_bytes
        if len(encoded) <= limit_bytes:
            return outcome
        path = ""
        try:
            path = "" if keep is None else (await _keep(keep, encoded[:MAX_KEPT_BYTES])).path
        except Fenced:
            raise asyncio.CancelledError from None  # the claim is lost, and this outcome must not be used
        except (Refused, PeerFailed) as refusal:
            _log.warning("a long result could not be kept: %s", refusal, extra={"tool": self.call.tool.name})
        content = shortened_output(encoded, limit_bytes, path)
        return replace(outcome, content=content, truncated=True, detail=SHORTENED, output_path=path)

    async def _kept(self, outcome: Outcome) -> Outcome:
        """Returns the outcome with a reference in place of content that is too large for it."""
        encoded, keep = outcome.content.encode(), self.call.keep
        if keep is None or not self.call.definition.output_limit_bytes < len(encoded) <= MAX_KEPT_BYTES:
            return outcome  # or too large for the workspace as well: a failure, which says so
        try:
            kept = await _keep(keep, encoded)
        except Fenced:
            raise asyncio.CancelledError from None  # the claim is lost, and this outcome must not be used
        except (Refused, PeerFailed) as refusal:
            why = refusal.message if isinstance(refusal, Refused) else str(refusal)
            message = f"{why} {self.call.tool.name} returned {len(encoded)} bytes, which were not recorded."
            return Outcome(OutcomeStatus.FAILED, f"{message} {RAN_TO_ITS_END}", detail=TOO_LARGE)
        beginning = outcome.content[:BEGINNING_CHARACTERS]
        return replace(outcome, content=beginning, truncated=True, output_path=kept.path)


async def _keep(keep: Callable[[bytes], Awaitable[KeptContent]], encoded: bytes) -> KeptContent:
    """Keeps content, however long the tool service is away: the effect has happened. The tool's timeout ends it."""
    while True:
        try:
            return await keep(encoded)
        except TryLater as error:
            _log.warning("what an own tool returned cannot be kept yet", extra={"why": str(error)})
            await asyncio.sleep(KEEP_AGAIN_SECONDS)


class OwnRuns:
    """The runs of own tools in this process, by task and call."""

    def __init__(self, trust: TrustGate) -> None:
        self._trust = trust
        self._runs: dict[tuple[str, str], _Run] = {}

    def outcome_of(self, call: CallOfOwnTool) -> pb.OwnOutcome | None:
        """Returns what the call's run under this claim came to, or None."""
        run = self._find(call)
        return None if run is None else run.outcome

    def is_running(self, call: CallOfOwnTool) -> bool:
        """Whether the call runs under this claim."""
        run = self._find(call)
        return run is not None and not run.task.done()

    def order(self, call: CallOfOwnTool, order: pb.RunHere, answer: Answer) -> None:
        """Runs the call, or joins its run under this claim. An order that came before begins no UNSAFE run."""
        run = self._find(call)
        if run is None and order.again and not call.definition.effect_class.may_run_again:
            not_run = OUTCOME_STATUSES.to_wire(OutcomeStatus.NOT_RUN)
            answer(pb.OwnOutcome(call_attempt=order.call_attempt, status=not_run))
            return
        if run is None or run.is_void(order):
            former = self._runs.get(_key(call))
            if former is not None:
                former.stop()
            run = self._runs[_key(call)] = _Run(call, order, self._trust, former)
            run.task.add_done_callback(_note_fault)
        run.answer_to(order, answer)

    def end(self, call: CallOfOwnTool) -> None:
        """Stops the call's run, and forgets it: the call has its outcome, or this claim may not run it."""
        if (run := self._find(call)) is not None:
            self._stop([run])

    def stop_claim(self, held_task: HeldTask) -> list[asyncio.Task[None]]:
        """Stops all runs under this claim. Returns those that have not ended yet."""
        return self._stop(self._of_claim(held_task))

    async def stopped(self, held_task: HeldTask) -> None:
        """Stops all runs under this claim, and waits a moment for them to clean up."""
        if stopping := self.stop_claim(held_task):
            await asyncio.wait(stopping, timeout=STOP_SECONDS)

    def _find(self, call: CallOfOwnTool) -> _Run | None:
        run = self._runs.get(_key(call))
        if run is None or run.is_stopped or not _same_claim(run.call.held_task, call.held_task):
            return None
        return run

    def _of_claim(self, held_task: HeldTask) -> list[_Run]:
        return [run for run in self._runs.values() if _same_claim(run.call.held_task, held_task)]

    def _stop(self, runs: list[_Run]) -> list[asyncio.Task[None]]:
        for run in runs:
            run.stop()
            run.task.add_done_callback(partial(self._forget, run))
        return [run.task for run in runs if not run.task.done()]

    def _forget(self, run: _Run, _ended: asyncio.Task[Any]) -> None:
        """Forgets the run when it and those before it have ended: the next one of the call waits for them."""
        if self._runs.get(_key(run.call)) is not run:
            return
        if (going_on := run.going_on) is not None:
            going_on.add_done_callback(partial(self._forget, run))
        else:
            del self._runs[_key(run.call)]


def _key(call: CallOfOwnTool) -> tuple[str, str]:
    return call.held_task.task_id, call.intent.call_id


def _same_claim(one: HeldTask, other: HeldTask) -> bool:
    return one.task_id == other.task_id and one.claims.fence == other.claims.fence


def _drop_answer(_outcome: pb.OwnOutcome) -> None:
    """Does nothing: the first order sets the answer."""


def _note_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("unexpected error in the run of an own tool", exc_info=error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failure(name: str, error: BaseException) -> Outcome:
    message, detail = text_of(error), ""
    match error:
        case ToolError(detail=detail):
            pass
        case NotReplayable():
            detail = NOT_REPLAYABLE
        case _:
            message = f"{name} failed: {type(error).__name__}: {message}"
    return Outcome(OutcomeStatus.FAILED, _text(message[:_MAX_FAILURE_CHARACTERS]), detail=detail)


def _is_text(content: object) -> bool:
    """Nothing checks the types of the user's tool."""
    return isinstance(content, str)


def _text(text: str) -> str:
    """Returns valid UTF-8 text: a tool's text may have lone surrogates, which no message can carry."""
    return text.encode("utf-8", "replace").decode()
