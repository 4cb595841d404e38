"""Works on many tasks at once, each in a coroutine of its own. One task's bug never harms another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

from services.worker.control.loop import ControlLoop
from services.worker.holdings import Holding, Holdings
from services.worker.loop import Loop
from services.worker.parts import Parts
from services.worker.rests import Rests
from services.worker.task_loop import TaskLoop
from tenure.domain.epochs import describe_epoch
from tenure.domain.errors import Fenced, TryLater, Unauthenticated, WrongState
from tenure.domain.states import ReleaseReason
from tenure.domain.task import offered_function
from tenure.runtime import metrics, semconv
from tenure.runtime.logs import log_context
from tenure.runtime.status import PeerFailed
from tenure.runtime.telemetry import span
from tenure.runtime.tenancy import set_tenant

_log: Final = logging.getLogger(__name__)
Release = Callable[[Holding, ReleaseReason], None]
"""Gives a claim back, with the reason."""


def loop_of(parts: Parts, holding: Holding) -> Loop:
    """What drives the task: the claim says what it was given out for."""
    return ControlLoop(parts, holding) if offered_function(holding.loop) else TaskLoop(parts, holding)


class Supervisor:
    """Closing it cancels what still works and lets those tasks go."""

    def __init__(self, parts: Parts, holdings: Holdings, rests: Rests, release: Release, slots: int) -> None:
        self._parts, self._holdings, self._rests, self._release = parts, holdings, rests, release
        self._most = 2 * slots  # a grant may cross a message about slots; far beyond that somebody miscounts
        self._working: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def take(self, holding: Holding) -> None:
        """Begins to work on a task."""
        if len(self._holdings) >= self._most:
            _log.warning("a grant beyond all slots is given back", extra={"task": holding.task_id})
            self._release(holding, ReleaseReason.WORKER_HALTED)
            return
        self._holdings.add(holding)
        holding.work = asyncio.create_task(self._work(holding), name=f"task {holding.task_id}")
        self._working.add(holding.work)
        holding.work.add_done_callback(self._working.discard)

    async def _work(self, holding: Holding) -> None:
        reason = ReleaseReason.WORKER_CRASHED
        claims = holding.claims
        set_tenant(claims.tenant)
        with log_context(task=claims.task_id, epoch=describe_epoch(claims.epoch)):
            try:
                reason = await self._loop(holding)
            finally:
                holding.live.close()
                self._holdings.remove(holding)
                if not holding.lost:
                    self._rest(reason)
                    self._release(holding, reason)
                told = "LOST" if holding.lost else reason
                metrics.count("tenure_worker_releases_total", reason=told)
                _log.info("task left", extra={"reason": told, "sequence": holding.progress.sequence})

    def _rest(self, reason: ReleaseReason) -> None:
        if reason is ReleaseReason.WORKER_CRASHED:
            self._rests.after_crash()
        elif reason is ReleaseReason.CLOSED:
            self._rests.after_success()

    async def _loop(self, holding: Holding) -> ReleaseReason:
        attributes = {
            semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
            semconv.PROVIDER_NAME: semconv.PROVIDER_ANTHROPIC,
            semconv.AGENT_NAME: holding.loop,
            semconv.CONVERSATION_ID: holding.task_id,
            semconv.TASK_ID: holding.task_id,
            semconv.EPOCH: holding.claims.epoch,
        }
        try:
            with span(f"{semconv.INVOKE_AGENT} {holding.loop}", attributes):
                return await loop_of(self._parts, holding).run()
        except Fenced as fenced:
            _log.warning("fenced: the task is dropped", extra={"why": str(fenced)})
            return ReleaseReason.FENCED
        except WrongState as refusal:  # ended or parked since it was granted: nothing is left to do
            _log.info("the task cannot be opened", extra={"why": str(refusal)})
            return ReleaseReason.CLOSED
        except (TryLater, Unauthenticated) as error:  # a service may not know yet the key that signs since a moment
            _log.warning("the task is let go", extra={"why": str(error)})
            return ReleaseReason.WORKER_HALTED
        except PeerFailed as error:
            _log.warning("the task is let go", extra={"why": str(error)})
        except Exception:  # noqa: BLE001  a bug in one task's work: logged with its stack, the others go on
            _log.exception("unexpected error: the task is let go")
        return ReleaseReason.WORKER_CRASHED
