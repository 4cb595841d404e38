"""Runs each held task in a coroutine of its own. A bug in one task's work never harms another task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, Self

from services.worker.claim_ledger import CommitRefused
from services.worker.control.loop import ControlLoop
from services.worker.control.replay import ReplayControlLoop
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.interrupts import Interruption
from services.worker.loop import Loop
from services.worker.replay import ReplayLoop
from services.worker.session import WorkerSession
from services.worker.start_gate import StartGate
from services.worker.task_loop import TaskLoop
from services.worker.undo import UndoLoop
from tenure.domain.errors import Fenced, TryLater, Unauthenticated, WrongState
from tenure.domain.fencing import describe_epoch
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import ReleaseReason
from tenure.domain.task import REPLAY_LOOP, is_undo_loop, offered_function
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import log_context
from tenure.runtime.request_context import set_tenant
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.signing import UNKNOWN_KEY

_log: Final = logging.getLogger(__name__)

# Crash backoff: the pause of a slot after a crash in a task's work.

CRASH_BACKOFF: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=60.0)
"""The pause grows with the number of crashes in a row."""


class CrashBackoff:
    """Counts the slots that pause after a crash. The next renewal reports a slot whose pause is over."""

    def __init__(self) -> None:
        self._until: list[float] = []
        self._crashes = 0

    def after_crash(self) -> None:
        """Pauses one more slot."""
        self._crashes += 1
        self._until.append(monotonic() + CRASH_BACKOFF.ceiling_seconds(self._crashes))

    def after_success(self) -> None:
        """Resets the pause to its shortest: the worker can do its work."""
        self._crashes = 0

    def count(self) -> int:
        """Returns the number of slots that pause now."""
        now = monotonic()
        self._until = [until for until in self._until if until > now]
        return len(self._until)


# Draining: the worker ends without loss, and other workers resume its tasks at once.


async def drain(session: WorkerSession, held_tasks: HeldTasks, timeout_seconds: float) -> None:
    """Takes no more tasks, gives every held task back to the queue with a commit, and ends the session.

    Model calls of this process are cancelled and billed for the output so far. Running tools and the calls of model
    runners go on, and the next owner joins them. A claim that is not given back within `timeout_seconds` is released
    without a close-out: the next owner resumes its task from the last commit.
    """
    began, count = monotonic(), len(held_tasks)
    session.drain()
    for held_task in held_tasks:
        held_task.interrupts.request(Interruption.DRAIN)
    try:
        async with asyncio.timeout(timeout_seconds):
            await held_tasks.wait_empty()
    except TimeoutError:
        _log.warning(
            "the drain timed out: some tasks were not given back to the queue", extra={"left": len(held_tasks)}
        )
    await session.end_session()
    _log.info("drained", extra={"tasks": count, "seconds": round(monotonic() - began, 3)})


Release = Callable[[HeldTask, ReleaseReason, str], None]
"""Releases a claim with a reason, and a message for people: why."""


def loop_of(dependencies: Dependencies, held_task: HeldTask) -> Loop:
    """Returns the loop that drives the task. The claim names it."""
    if is_undo_loop(held_task.loop):
        return UndoLoop(dependencies, held_task)
    if offered_function(held_task.loop):
        return ControlLoop(dependencies, held_task)
    if held_task.loop == REPLAY_LOOP:  # a worker with a record has one kind of task
        return (ReplayControlLoop if dependencies.functions else ReplayLoop)(dependencies, held_task)
    return TaskLoop(dependencies, held_task)


def _ignore(_key_id: str) -> None:
    """The default of `on_foreign_key`."""


class Supervisor:
    """Runs held tasks. Closing it cancels the running work and releases its claims.

    `on_foreign_key` is called with a signing key that a service does not have, unless the ledger has opened a task for
    this worker before: then the services are of one installation, and the key is only too new.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        held_tasks: HeldTasks,
        crash_backoff: CrashBackoff,
        release: Release,
        slots: int,
        on_foreign_key: Callable[[str], None] = _ignore,
    ) -> None:
        self._dependencies = dependencies
        self._held_tasks = held_tasks
        self._crash_backoff = crash_backoff
        self._release = release
        self._on_foreign_key = on_foreign_key
        self._has_worked = False
        self._most = 2 * slots  # a grant may cross a report of free slots; far beyond that a coordinator miscounts
        self._working: set[asyncio.Task[None]] = set()
        self._start_gate = StartGate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def take(self, held_task: HeldTask) -> None:
        """Starts the work of a held task. Releases the claim at once when this worker holds far too many tasks."""
        if len(self._held_tasks) >= self._most:
            why = "this worker holds twice as many tasks as it has slots"
            _log.warning("a grant is refused", extra={"task": held_task.task_id, "why": why})
            self._release(held_task, ReleaseReason.WORKER_HALTED, why)
            return
        self._held_tasks.add(held_task)
        held_task.work = asyncio.create_task(self._work(held_task), name=f"task {held_task.task_id}")
        self._working.add(held_task.work)
        held_task.work.add_done_callback(self._working.discard)

    async def _work(self, held_task: HeldTask) -> None:
        reason, why = ReleaseReason.WORKER_CRASHED, ""
        claims = held_task.claims
        set_tenant(claims.tenant)
        with log_context(task=claims.task_id, epoch=describe_epoch(claims.epoch), claim=claims.claim_id):
            try:
                await self._start_gate.wait_turn()
                reason, why = await self._loop(held_task)
            finally:
                held_task.live.close()
                self._held_tasks.remove(held_task)
                self._has_worked |= held_task.progress.sequence > 0
                if not held_task.lost:
                    self._note_end(reason)
                    self._release(held_task, reason, why)
                ending = "LOST" if held_task.lost else reason
                metrics.count("tenure_worker_releases_total", reason=ending)
                _log.info("task left", extra={"reason": ending, "sequence": held_task.progress.sequence})

    def _has_opened(self) -> bool:
        """Whether the ledger has ever given this worker a task of the coordinator."""
        return self._has_worked or any(task.progress.sequence for task in self._held_tasks)

    def _note_end(self, reason: ReleaseReason) -> None:
        if reason is ReleaseReason.WORKER_CRASHED:
            self._crash_backoff.after_crash()
        elif reason is ReleaseReason.CLOSED:
            self._crash_backoff.after_success()

    async def _loop(self, held_task: HeldTask) -> tuple[ReleaseReason, str]:
        """Returns the reason of the release, and why."""
        try:
            return await loop_of(self._dependencies, held_task).run(), ""
        except Fenced as fenced:
            _log.warning("fenced: the task is dropped", extra={"why": str(fenced)})
            return ReleaseReason.FENCED, ""
        except WrongState as refusal:  # the task ended or began a wait after the grant, so nothing is left to do
            _log.info("the task cannot be opened", extra={"why": str(refusal)})
            return ReleaseReason.CLOSED, ""
        except (TryLater, PeerFailed, CommitRefused, Unauthenticated) as error:
            # A service is away or fails, the ledger refuses even the end, or a signing key is too new for a service:
            # none of these says that the task kills workers.
            _log.warning("the claim is released", extra={"why": str(error)})
            if isinstance(error, Unauthenticated) and UNKNOWN_KEY in error.metadata and not self._has_opened():
                self._on_foreign_key(error.metadata[UNKNOWN_KEY])
            return ReleaseReason.WORKER_HALTED, str(error)
        except Exception as error:  # noqa: BLE001  a bug in one task's work: logged with its stack, the others go on
            _log.exception("unexpected error: the claim is released")
            return ReleaseReason.WORKER_CRASHED, type(error).__name__
