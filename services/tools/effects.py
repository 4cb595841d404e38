"""Carrying out a tool once: begun in time or never, bounded in time, stopped when asked, its end put into words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.tools.runs import STOPPING_SECONDS, Run, Stop
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed, ToolInDoubt
from tenure.domain.errors import TryLater, Unavailable
from tenure.domain.in_doubt import MAY_HAVE_HAPPENED
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus

_log: Final = logging.getLogger(__name__)
BEGINS_WITHIN_SECONDS: Final = 1.0


class NeverBegan(Exception):  # noqa: N818  the one thing that is certain about it
    """The mark was set, the effect was not begun in time and now never will be."""


class Effect:
    """One effect. `may_begin` is asked immediately before it begins, when nothing can come in between any more."""

    def __init__(
        self, run: Run, tool: Tool, arguments: Arguments, context: CallContext, may_begin: Callable[[], bool]
    ) -> None:
        self._run, self._tool, self._arguments, self._context = run, tool, arguments, context
        self._may_begin = may_begin
        self._began_at = 0.0
        self._timed_out = False
        self._limit_seconds = min(context.timeout_seconds, tool.definition.timeout_seconds)
        keeps_time = tool.keeps_any_timeout or self._limit_seconds >= tool.definition.timeout_seconds
        # A tool that bounds itself does so at its own limit, and is left the time to say how it ended.
        self._guard_seconds = tool.guard_seconds if keeps_time else 0.0

    async def carry_out(self, hold: Callable[[asyncio.Task[Outcome]], None]) -> Outcome:
        """The outcome. Raises NeverBegan, ToolInDoubt of an UNSAFE tool, and Unavailable when it was stopped by a
        runner that is no longer trusted.

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
        if self._run.stop is not None or not self._may_begin():
            raise NeverBegan
        self._run.mark_started()
        try:
            return self._outcome(await self._tool.run(self._context, self._arguments))
        except ToolFailed as failure:
            return self._outcome(ToolAnswer(failure.message, OutcomeStatus.FAILED, failure.detail))
        except ToolInDoubt as doubt:
            if not self._tool.definition.effect_class.may_run_again:
                raise
            told = f"{doubt.message} It is not known whether it had its effect."
            return self._outcome(ToolAnswer(told, OutcomeStatus.FAILED, MAY_HAVE_HAPPENED))
        except TryLater:
            raise  # nothing was done
        except Exception as error:  # noqa: BLE001  an outcome the agent reads, never the death of the task
            _log.exception("the tool %s crashed", self._tool.name)
            crash = f"The tool {self._tool.name} crashed. This is a fault of the tool, not of its arguments."
            return self._outcome(ToolAnswer(crash, OutcomeStatus.FAILED, type(error).__name__))

    def _stopped(self, *, gone: bool) -> Outcome:
        """Cancelled in the middle. Only a runner that is trusted may say so: of another's calls, others judge.

        An UNSAFE tool that tells doubts by itself, and was cut off before it could, leaves one.
        """
        if not gone:
            _log.error("the tool %s does not stop when asked to", self._tool.name)
        if self._run.stop in {Stop.LAPSED, Stop.DRAINED}:
            raise Unavailable("the runner of this call stopped", reason="RUNNER_STOPPED", retry_after_seconds=0.5)
        if self._timed_out and self._tool.keeps_any_timeout and not self._tool.definition.effect_class.may_run_again:
            # It would have said what is known, and could not: this process stood still for longer than it was left.
            raise ToolInDoubt(f"It gave no answer within {self._limit_seconds:g} s, and was stopped.")
        if self._timed_out:
            words = f"It took longer than {self._limit_seconds:g} s and was stopped."
            status, detail = OutcomeStatus.TIMED_OUT, "TIMEOUT"
        elif self._run.stop is Stop.FENCED:
            words = "It was stopped because its task was ended under a newer epoch."
            status, detail = OutcomeStatus.CANCELLED, "FENCED"
        else:
            words = "It was stopped because its task was ended."
            status, detail = OutcomeStatus.CANCELLED, "CANCELLED"
        return self._outcome(ToolAnswer(words + self._doubt(), status, detail))

    def _doubt(self) -> str:
        pure = self._tool.definition.effect_class is EffectClass.PURE
        return "" if pure else " What it did until then has happened."

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
