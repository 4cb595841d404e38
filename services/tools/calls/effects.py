"""Carrying out a tool once: begun in time or never, bounded in time, stopped when asked, its end put into words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from services.tools.calls.runs import STOPPING_SECONDS, RunningCall, StopReason
from services.tools.tool import Arguments, CallContext, RunnerStopped, Tool, ToolAnswer, ToolFailure, ToolInDoubt
from tenure.domain.errors import TryLater
from tenure.domain.in_doubt import MAY_HAVE_HAPPENED
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus

_log: Final = logging.getLogger(__name__)
BEGINS_WITHIN_SECONDS: Final = 1.0
MOST_ATTEMPTS: Final = 5
"""A call whose tool keeps saying "try later" ends with this attempt: the model decides what to do then."""

_UNSENT: Final = "It was not sent yet: nothing was done."


class NeverBegan(Exception):  # noqa: N818  the one thing that is certain about it
    """The mark was set, the effect was not begun in time, or not before it was stopped, and now never will be."""


class PutOff(Exception):  # noqa: N818  an answer of the tool, no error
    """The tool said "try later", and the call may run again: this attempt ends without an outcome, and is given back.

    `may_have_begun`: its effect may be there all the same.
    """

    def __init__(self, refusal: TryLater, *, may_have_begun: bool) -> None:
        super().__init__(str(refusal))
        self.refusal, self.may_have_begun = refusal, may_have_begun


class MayBegin(Protocol):
    """Asked immediately before an effect, when nothing can come in between any more."""

    def in_time(self) -> bool:
        """Whether the mark is fresh and the life in which it was set goes on: an effect here begins then or never."""

    def at_all(self) -> bool:
        """Whether that life goes on. One elsewhere that had to be connected to first may begin later than in time."""


class ToolEffect:
    """One effect."""

    def __init__(
        self, run: RunningCall, tool: Tool, arguments: Arguments, context: CallContext, may_begin: MayBegin
    ) -> None:
        self._run, self._tool, self._arguments = run, tool, arguments
        self._context = replace(context, mark_not_sent=self._mark_not_sent, check_may_begin=self._check_may_begin)
        self._may_begin = may_begin
        self._began_at = 0.0
        self._timed_out = self._is_unsent = False
        self._limit_seconds = min(context.timeout_seconds, tool.definition.timeout_seconds)
        keeps_time = tool.keeps_any_timeout or self._limit_seconds >= tool.definition.timeout_seconds
        # A tool that bounds itself does so at its own limit, and is left the time to say how it ended.
        self._guard_seconds = tool.guard_seconds if keeps_time else 0.0

    async def carry_out(self, hold: Callable[[asyncio.Task[Outcome]], None]) -> Outcome:
        """The outcome. Raises NeverBegan, PutOff, ToolInDoubt of an UNSAFE tool, and RunnerStopped when it was stopped
        by a runner that is no longer trusted.

        `hold` is given the effect, which goes on after this if it does not stop when asked.
        """
        effect = self._run.effect = asyncio.create_task(self._guarded(), name=f"effect {self._run.key.idempotency_key}")
        hold(effect)
        done, _ = await asyncio.wait({effect}, timeout=self._limit_seconds + self._guard_seconds)
        if not done:
            self._timed_out = True
            effect.cancel()
            done, _ = await asyncio.wait({effect}, timeout=STOPPING_SECONDS)
        if done and not effect.cancelled():
            return effect.result()
        return self._stopped(gone=bool(done))

    async def _guarded(self) -> Outcome:
        self._began_at = _now()
        if self._run.stop is not None or not self._may_begin.in_time():
            raise NeverBegan
        self._run.mark_started()
        try:
            return self._outcome(await self._tool.run(self._context, self._arguments))
        except ToolFailure as failure:
            return self._outcome(ToolAnswer(failure.message, OutcomeStatus.FAILED, failure.detail))
        except ToolInDoubt as in_doubt:
            return self._unknown(in_doubt.message)
        except (RunnerStopped, NeverBegan):
            raise  # no outcome: it is begun again, or others judge
        except TryLater as refusal:
            return self._put_off(refusal)
        except Exception as error:
            _log.exception("the tool %s crashed", self._tool.name)
            crash = f"The tool {self._tool.name} crashed. This is a fault of the tool, not of its arguments."
            if self._leaves_doubt and not self._is_unsent:
                raise ToolInDoubt(crash) from error
            return self._outcome(ToolAnswer(crash, OutcomeStatus.FAILED, type(error).__name__))

    def _unknown(self, message: str) -> Outcome:
        """The end of a call of which its tool does not know whether it had its effect."""
        if not self._tool.definition.effect_class.may_run_again:
            raise ToolInDoubt(message)
        text = f"{message} It is not known whether it had its effect."
        return self._outcome(ToolAnswer(text, OutcomeStatus.FAILED, MAY_HAVE_HAPPENED))

    def _put_off(self, refusal: TryLater) -> Outcome:
        """The end of a call whose tool said "try later" after it was begun. Raises PutOff if it may run again."""
        if self._run.stop is not None or self._timed_out:
            return self._stopped(gone=True)
        may_run_again = self._is_unsent or self._tool.definition.effect_class.may_run_again
        if may_run_again and self._run.call_attempt < MOST_ATTEMPTS:
            raise PutOff(refusal, may_have_begun=not self._is_unsent) from refusal
        message = f"The tool {self._tool.name} did not carry this out now ({refusal.message})."
        if self._is_unsent:
            answer = ToolAnswer(f"{message} Nothing was done: try again later.", OutcomeStatus.FAILED, refusal.reason)
            return self._outcome(answer)
        return self._unknown(message)

    def _mark_not_sent(self) -> None:
        self._is_unsent = True

    def _check_may_begin(self, sent_before: bool) -> None:
        if self._may_begin.at_all():
            return
        if sent_before:
            raise RunnerStopped  # of a call that may have happened, others judge
        raise NeverBegan

    @property
    def _leaves_doubt(self) -> bool:
        """Whether nothing but an answer decides the call: it must not happen twice, and goes on elsewhere."""
        return self._tool.acts_elsewhere and not self._tool.definition.effect_class.may_run_again

    def _stopped(self, *, gone: bool) -> Outcome:
        """Cancelled in the middle. Only a runner that is trusted may say so: of another's calls, others judge."""
        if not gone:
            _log.error("the tool %s does not stop when asked to", self._tool.name)
        if gone and self._is_unsent and not self._timed_out:
            raise NeverBegan
        if self._run.stop in {StopReason.LAPSED, StopReason.DRAINED}:
            raise RunnerStopped
        clause, status, detail = self._why_stopped()
        effect_class = self._tool.definition.effect_class
        if gone and self._is_unsent:
            return self._outcome(ToolAnswer(f"{clause.format('stopped')}. {_UNSENT}", status, detail))
        asked_to_stop_message = clause.format("asked to stop") + (". " if gone else ", and has not stopped yet. ")
        if self._leaves_doubt or (not gone and not effect_class.may_run_again):
            raise ToolInDoubt(asked_to_stop_message.rstrip())
        message = clause.format("stopped") + ". " if gone else asked_to_stop_message
        if effect_class is not EffectClass.PURE:
            message += "What it did until then has happened." if gone else "What it does may still happen."
        return self._outcome(ToolAnswer(message.rstrip(), status, detail))

    def _why_stopped(self) -> tuple[str, OutcomeStatus, str]:
        """In words with a gap for how far that came."""
        if self._timed_out:
            return f"It took longer than {self._limit_seconds:g} s and was {{}}", OutcomeStatus.TIMED_OUT, "TIMEOUT"
        if self._run.stop is StopReason.FENCED:
            message = "It was {} because its task was ended under a newer epoch"
            return message, OutcomeStatus.CANCELLED, "FENCED"
        return "It was {} because its task was ended", OutcomeStatus.CANCELLED, "CANCELLED"

    def _outcome(self, answer: ToolAnswer) -> Outcome:
        """Not yet cut."""
        return Outcome(
            status=answer.status,
            content=answer.content,
            truncated=answer.truncated,
            detail=answer.detail,
            duration_seconds=_now() - self._began_at,
            call_attempt=self._run.call_attempt,
            usage=self._run.usage,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
