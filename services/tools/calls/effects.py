"""Runs a tool once: it begins in time or never, ends within its timeout, stops on request, and yields an outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from services.tools.calls.runs import STOPPING_SECONDS, RunningCall, StopReason, Superseded
from services.tools.tool import CallContext, RunnerStopped, ToolAnswer, ToolFailure, ToolInDoubt, ToolWork
from tenure.domain.errors import TryLater
from tenure.domain.settlement import HARMLESS, leaves_doubt
from tenure.domain.stops import stopped
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.eager import begin_now

_log: Final = logging.getLogger(__name__)
BEGINS_WITHIN_SECONDS: Final = 1.0
MAX_ATTEMPTS: Final = 5
"""A call whose tool keeps raising TryLater fails with this attempt, so that the model decides how to go on."""

_UNSENT: Final = "It was not sent yet: nothing was done."
_EFFECTS_STAY: Final = "What it had done until then stays done."
_EFFECTS_UNKNOWN: Final = "It is not known whether it had its effect."


class NeverBegan(Exception):  # noqa: N818  a fact about the call, not an error
    """The call was marked STARTED, but its effect did not begin in time or was stopped before, and never will begin."""


class PutOff(Exception):  # noqa: N818  an answer of the tool, not an error
    """The tool raised TryLater, and the call may run again: this attempt ends without an outcome.

    `may_have_begun`: the effect may have happened nevertheless; then the start is released, else withdrawn.
    """

    def __init__(self, refusal: TryLater, *, may_have_begun: bool) -> None:
        super().__init__(str(refusal))
        self.refusal, self.may_have_begun = refusal, may_have_begun


class MayBegin(Protocol):
    """Checked immediately before an effect, without an await between the check and the effect."""

    def in_time(self) -> bool:
        """Whether the STARTED mark is fresh and its runner's life goes on.

        An effect in this process begins then or never.
        """

    def at_all(self) -> bool:
        """Whether that runner's life goes on.

        An effect elsewhere may begin later than `in_time` allows, because the tool may have to connect first.
        """


class ToolEffect:
    """One execution of a tool for one call attempt."""

    def __init__(self, run: RunningCall, work: ToolWork, may_begin: MayBegin) -> None:
        self._run, self._work, self._may_begin = run, work, may_begin
        self._tool = tool = work.tool
        self._began_at = 0.0
        self._has_run = self._timed_out = self._is_unsent = False
        most_seconds = tool.definition.timeout_seconds
        self._limit_seconds = min(most_seconds, run.request.timeout_seconds or most_seconds)
        keeps_time = tool.keeps_any_timeout or self._limit_seconds >= most_seconds
        # A tool that enforces its own timeout does so at its own limit, and gets extra time to report how it ended.
        self._guard_seconds = tool.guard_seconds if keeps_time else 0.0

    async def carry_out(self, hold: Callable[[asyncio.Task[Outcome]], None]) -> Outcome:
        """Runs the tool and returns the outcome.

        Raises NeverBegan, PutOff, ToolInDoubt for a call of unknown end that a repeat by the model could harm, and
        RunnerStopped when the life of this runner is over. `hold` gets the task of an effect that waits, because
        one that does not stop outlives this call.
        """
        ends_at = _now() + self._limit_seconds + self._guard_seconds
        effect = self._run.effect = begin_now(self._guarded(), name=f"effect {self._run.name}")
        if not effect.done():
            hold(effect)
            await self._end(effect, ends_at)
        if not effect.done():
            return self._stopped(gone=False)
        if not effect.cancelled():
            return effect.result()
        if not self._has_run:  # cancelled before its first step
            raise NeverBegan
        return self._stopped(gone=True)

    async def _end(self, effect: asyncio.Task[Outcome], ends_at: float) -> None:
        """Waits for the end of the effect. One that takes too long is cancelled, and may go on nevertheless."""
        done, _ = await asyncio.wait({effect}, timeout=ends_at - _now())
        if not done:
            self._timed_out = True
            effect.cancel()
            await asyncio.wait({effect}, timeout=STOPPING_SECONDS)

    def _context(self) -> CallContext:
        """Returns the context for the tool. Not kept: it refers to this object, which only a collector would free."""
        run = self._run
        return CallContext(
            tenant=run.request.claims.tenant,
            task_id=run.request.claims.task_id,
            call_id=run.key.call_id,
            idempotency_key=run.idempotency_key,
            epoch=run.request.claims.epoch,
            emit=run.emit,
            token=self._work.token,
            output_limit_bytes=run.output_limit_bytes(self._tool),
            report_usage=run.note_usage,
            timeout_seconds=self._limit_seconds,
            check_may_begin=self._check_may_begin,
            mark_not_sent=self._mark_not_sent,
            caller=run,
            sent_before=run.sent_before,
        )

    async def _guarded(self) -> Outcome:
        self._has_run, self._began_at = True, _now()
        self._run.effect = asyncio.current_task()  # a stop may come in the first step
        if self._run.stop is not None or not self._may_begin.in_time():
            raise NeverBegan
        self._run.mark_started()
        try:
            return self._outcome(await self._tool.run(self._context(), self._work.arguments))
        except ToolFailure as failure:
            return self._outcome(
                ToolAnswer(failure.message, OutcomeStatus.FAILED, failure.detail, no_effect=failure.no_effect)
            )
        except ToolInDoubt as in_doubt:
            return self._unknown(in_doubt)
        except (RunnerStopped, NeverBegan, Superseded):
            raise  # no outcome: the call starts again, or others settle it
        except TryLater as refusal:
            return self._put_off(refusal)
        except Exception as error:
            _log.exception("the tool %s crashed", self._tool.name)
            crash = f"The tool {self._tool.name} crashed. The fault is in the tool, not in its arguments."
            if self._tool.acts_elsewhere and self._must_be_settled and not self._is_unsent:
                raise ToolInDoubt(crash) from error
            return self._outcome(ToolAnswer(crash, OutcomeStatus.FAILED, type(error).__name__))

    def _unknown(self, in_doubt: ToolInDoubt) -> Outcome:
        """Returns the outcome of a call of unknown end that may be repeated without harm, or raises ToolInDoubt."""
        if self._must_be_settled:
            raise in_doubt
        is_pure = self._tool.definition.effect_class is EffectClass.PURE
        text = in_doubt.message if is_pure else f"{in_doubt.message} {HARMLESS}"
        return self._outcome(ToolAnswer(text, in_doubt.status, in_doubt.detail))

    def _put_off(self, refusal: TryLater) -> Outcome:
        """Returns the outcome of a begun call whose tool raised TryLater, or raises PutOff if it may run again."""
        if self._run.stop is not None or self._timed_out:
            return self._stopped(gone=True)
        may_run_again = self._is_unsent or self._tool.definition.effect_class.may_run_again
        # The attempts of a call that its caller runs count callers and connections: they say nothing about the tool.
        if may_run_again and (self._run.call_attempt < MAX_ATTEMPTS or self._run.request.runs_at_caller):
            raise PutOff(refusal, may_have_begun=not self._is_unsent) from refusal
        message = f"The tool {self._tool.name} cannot do this now ({refusal.message})."
        if self._is_unsent:
            answer = ToolAnswer(f"{message} Nothing was done: try again later.", OutcomeStatus.FAILED, refusal.reason)
            return self._outcome(answer)
        return self._unknown(ToolInDoubt(message))

    def _mark_not_sent(self) -> None:
        self._is_unsent = not self._run.sent_before

    def _check_may_begin(self, sent_before: bool) -> None:
        if self._may_begin.at_all():
            return
        if sent_before:
            raise RunnerStopped  # the effect may have happened: the other replicas settle the call
        raise NeverBegan

    @property
    def _must_be_settled(self) -> bool:
        """Whether the model may not go on before Tenure has learned the end of the call.

        The caller of a KEYED call that runs it itself settles it: it knows its own tool.
        """
        definition = self._tool.definition
        if self._run.request.runs_at_caller:
            return not definition.effect_class.may_run_again
        return leaves_doubt(definition.effect_class, definition.settlement)

    def _stopped(self, *, gone: bool) -> Outcome:
        """Returns the outcome of a cancelled effect. `gone`: the asyncio task of the effect has ended.

        Raises RunnerStopped when the life of this runner is over, because then the other replicas settle the call,
        Superseded when the record no longer waits for this run, and PutOff when an operator stopped the call.
        """
        if not gone:
            _log.error("the tool %s did not stop within %g s", self._tool.name, STOPPING_SECONDS)
        if gone and self._is_unsent and not self._timed_out:
            raise NeverBegan
        if self._run.stop is StopReason.SUPERSEDED:
            raise Superseded
        if self._run.stop in {StopReason.LAPSED, StopReason.DRAINED}:
            raise RunnerStopped
        if self._run.stop is StopReason.STOPPED and self._run.stopped_by is not None:
            has_begun = not (gone and self._is_unsent)
            raise PutOff(stopped(self._run.stopped_by, may_have_begun=has_begun), may_have_begun=has_begun)
        clause, status, detail = self._why_stopped()
        effect_class = self._tool.definition.effect_class
        if gone and self._is_unsent:
            return self._outcome(ToolAnswer(f"{clause.format('stopped')}. {_UNSENT}", status, detail))
        stop_requested = clause.format("asked to stop") + (". " if gone else ", and has not stopped yet. ")
        goes_on = self._tool.acts_elsewhere or not gone
        if goes_on and (not effect_class.may_run_again or (self._timed_out and self._must_be_settled)):
            raise ToolInDoubt(stop_requested.rstrip(), status, detail)
        message = clause.format("stopped") + ". " if gone and not self._tool.acts_elsewhere else stop_requested
        if effect_class is not EffectClass.PURE:
            message += _EFFECTS_UNKNOWN if goes_on else _EFFECTS_STAY
        return self._outcome(ToolAnswer(message.rstrip(), status, detail))

    def _why_stopped(self) -> tuple[str, OutcomeStatus, str]:
        """Returns a clause with a gap for "stopped" or "asked to stop", and the outcome's status and detail."""
        if self._timed_out:
            return f"It took longer than {self._limit_seconds:g} s and was {{}}", OutcomeStatus.TIMED_OUT, "TIMEOUT"
        if self._run.stop is StopReason.FENCED:
            message = "It was {} because its task was ended under a newer epoch"
            return message, OutcomeStatus.CANCELLED, "FENCED"
        return "It was {} because its task was ended", OutcomeStatus.CANCELLED, "CANCELLED"

    def _outcome(self, answer: ToolAnswer) -> Outcome:
        """Returns the outcome with the whole output: the runner truncates it."""
        return Outcome(
            status=answer.status,
            content=answer.content,
            truncated=answer.truncated,
            detail=answer.detail,
            duration_seconds=_now() - self._began_at,
            call_attempt=self._run.call_attempt,
            usage=self._run.usage,
            output=answer.output,
            images=answer.images,
            no_effect=self._proves_no_effect(answer),
        )

    def _proves_no_effect(self, answer: ToolAnswer) -> bool:
        """Whether the answer proves that the call had no effect. After an earlier sending no answer does."""
        if self._run.sent_before:
            return False
        return answer.no_effect or (self._is_unsent and answer.status is not OutcomeStatus.SUCCEEDED)


def _now() -> float:
    return asyncio.get_running_loop().time()
