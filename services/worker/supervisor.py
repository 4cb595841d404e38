"""Works on many tasks at once, each in a coroutine of its own. One task's bug never harms another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, Self

from services.worker.control.loop import ControlLoop
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.interrupts import Interruption
from services.worker.loop import Loop
from services.worker.session import WorkerSession
from services.worker.task_loop import TaskLoop
from tenure.domain.errors import Fenced, TryLater, Unauthenticated, WrongState
from tenure.domain.fencing import describe_epoch
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import ReleaseReason
from tenure.domain.task import offered_function
from tenure.runtime import metrics, semconv
from tenure.runtime.logs import log_context
from tenure.runtime.request_context import set_tenant
from tenure.runtime.rpc_status import PeerFailed
from tenure.runtime.telemetry import span

# Slots that rest after a crash in a task's work.

CRASH_BACKOFF: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=60.0)
"""The longer, the more crashes came in a row."""


class CrashBackoff:
    """How many slots rest now. Renewals tell the coordinator soon enough when one is rested."""

    def __init__(self) -> None:
        self._until: list[float] = []
        self._crashes = 0

    def after_crash(self) -> None:
        """One slot more, from now on."""
        self._crashes += 1
        self._until.append(monotonic() + CRASH_BACKOFF.ceiling_seconds(self._crashes))

    def after_success(self) -> None:
        """The worker can do its work after all: the next rest is a short one again."""
        self._crashes = 0

    def count(self) -> int:
        """Resting slots."""
        now = monotonic()
        self._until = [until for until in self._until if until > now]
        return len(self._until)


# The end of a worker in good order: nothing is lost, and another one goes on at once.

_log: Final = logging.getLogger(__name__)


async def drain(session: WorkerSession, held_tasks: HeldTasks, timeout_seconds: float) -> None:
    """Takes no more, gives every task back to the queue with what is known of it, and says so.

    Model calls in flight are broken off and billed for what they gave; tools go on and are joined by the next owner.
    What is not given back in time is let go: its successor resumes it from its last commit.
    """
    began, count = monotonic(), len(held_tasks)
    session.drain()
    for held_task in held_tasks:
        held_task.interrupts.request(Interruption.DRAIN)
    try:
        async with asyncio.timeout(timeout_seconds):
            await held_tasks.wait_empty()
    except TimeoutError:
        _log.warning("some tasks were not given back in time", extra={"left": len(held_tasks)})
    await session.end_session()
    _log.info("drained", extra={"tasks": count, "seconds": round(monotonic() - began, 3)})


Release = Callable[[HeldTask, ReleaseReason], None]
"""Gives a claim back, with the reason."""


def loop_of(dependencies: Dependencies, held_task: HeldTask) -> Loop:
    """What drives the task: the claim says what it was given out for."""
    return (
        ControlLoop(dependencies, held_task) if offered_function(held_task.loop) else TaskLoop(dependencies, held_task)
    )


class Supervisor:
    """Closing it cancels what still works and lets those tasks go."""

    def __init__(
        self, dependencies: Dependencies, held_tasks: HeldTasks, rests: CrashBackoff, release: Release, slots: int
    ) -> None:
        self._dependencies, self._held_tasks, self._rests, self._release = dependencies, held_tasks, rests, release
        self._most = 2 * slots  # a grant may cross a message about slots; far beyond that somebody miscounts
        self._working: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def take(self, held_task: HeldTask) -> None:
        """Begins to work on a task."""
        if len(self._held_tasks) >= self._most:
            _log.warning("a grant beyond all slots is given back", extra={"task": held_task.task_id})
            self._release(held_task, ReleaseReason.WORKER_HALTED)
            return
        self._held_tasks.add(held_task)
        held_task.work = asyncio.create_task(self._work(held_task), name=f"task {held_task.task_id}")
        self._working.add(held_task.work)
        held_task.work.add_done_callback(self._working.discard)

    async def _work(self, held_task: HeldTask) -> None:
        reason = ReleaseReason.WORKER_CRASHED
        claims = held_task.claims
        set_tenant(claims.tenant)
        with log_context(task=claims.task_id, epoch=describe_epoch(claims.epoch)):
            try:
                reason = await self._loop(held_task)
            finally:
                held_task.live.close()
                self._held_tasks.remove(held_task)
                if not held_task.lost:
                    self._rest(reason)
                    self._release(held_task, reason)
                ending = "LOST" if held_task.lost else reason
                metrics.count("tenure_worker_releases_total", reason=ending)
                _log.info("task left", extra={"reason": ending, "sequence": held_task.progress.sequence})

    def _rest(self, reason: ReleaseReason) -> None:
        if reason is ReleaseReason.WORKER_CRASHED:
            self._rests.after_crash()
        elif reason is ReleaseReason.CLOSED:
            self._rests.after_success()

    async def _loop(self, held_task: HeldTask) -> ReleaseReason:
        attributes = {
            semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
            semconv.PROVIDER_NAME: semconv.PROVIDER_ANTHROPIC,
            semconv.AGENT_NAME: held_task.loop,
            semconv.CONVERSATION_ID: held_task.task_id,
            semconv.TASK_ID: held_task.task_id,
            semconv.EPOCH: held_task.claims.epoch,
        }
        try:
            with span(f"{semconv.INVOKE_AGENT} {held_task.loop}", attributes):
                return await loop_of(self._dependencies, held_task).run()
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
