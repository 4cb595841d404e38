"""Measures latency as a client sees it: submit, kill, freeze and drain to RUNNING."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from bench.report import Section, at_most
from bench.run import Options
from devstack import ServiceProcess, Stack, StackOptions
from tenure.client import Client
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """A transition to RUNNING. `at` is when it was received, a little later than it was durable."""

    at: float
    owner: str
    epoch: int


@dataclass(slots=True)
class FollowedTask:
    """The starts and the step of a task, by the entries that were received so far."""

    task_id: str
    starts: list[Start] = field(default_factory=list)
    step: int = 0
    ended: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def owner(self) -> str:
        """The worker that opened the task last."""
        return self.starts[-1].owner

    async def until(self, holds: Callable[[FollowedTask], bool]) -> None:
        """Waits until the condition holds, checked at each entry. Raises TimeoutError after a minute."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def next_start(self, known: int) -> Start:
        """Waits for, and returns, the first start after the first `known` ones."""
        await self.until(lambda task: len(task.starts) > known)
        return self.starts[known]

    async def follow(self, client: Client) -> None:
        """Reads the task's entries until the task ends."""
        async for event in client.watch(self.task_id):
            if event.HasField("entry"):
                async with self._changed:
                    self._apply(event.entry)
                    self._changed.notify_all()
        async with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _apply(self, entry: ledger_pb2.Entry) -> None:
        self.step = max(self.step, entry.step)
        transition = entry.body.transition
        if entry.body.HasField("transition") and transition.to_state == task_pb2.TASK_STATE_RUNNING:
            self.starts.append(Start(monotonic(), entry.actor, entry.epoch))


@asynccontextmanager
async def submitted(client: Client, model: str) -> AsyncIterator[FollowedTask]:
    """Submits a task and follows it inside the block. Cancels it at the end of the block if it has not ended."""
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model)))
    followed = FollowedTask((await client.submit("measure", request=request)).task_id)
    following = asyncio.create_task(followed.follow(client))
    try:
        yield followed
    finally:
        if not followed.ended:
            await client.cancel(followed.task_id, "measured")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await following


TASKS_AT_ONCE: Final = 4
SHORT_MODEL: Final = "sim-hello"
LONG_MODEL: Final = "sim-steps-100000-list_files-100ms"
POLL_SECONDS: Final = 0.05
HOW: Final = (
    "A development stack on this machine with two workers, the model simulator and default settings (leases of 5 s). "
    "Submits: one after another, from sending the submit to receiving RUNNING. Takeovers: each run stops the worker of "
    f"some of {TASKS_AT_ONCE} tasks in the middle of their steps; the time is from the signal to receiving, through "
    "WatchTask, that another worker opened the task. One sample per task."
)
ToWorker = Callable[[ServiceProcess], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Takeovers:
    """Stops workers of the stack and measures the takeovers. `exits` are the seconds in which drained workers ended."""

    stack: Stack
    client: Client
    exits: list[float] = field(default_factory=list)

    async def run(self, stop: ToWorker, revive: ToWorker) -> list[float]:
        """Stops the owner of a task. Returns the seconds from the signal to the next start of each of its tasks."""
        await self._both_workers()
        async with AsyncExitStack() as opened:
            submits = (submitted(self.client, LONG_MODEL) for _ in range(TASKS_AT_ONCE))
            tasks = [await opened.enter_async_context(one) for one in submits]
            for task in tasks:
                await task.until(lambda task: bool(task.starts) and task.step >= 2)
            victim = self.stack.services[tasks[0].owner]
            lost = [task for task in tasks if task.owner == victim.name]
            known = [len(task.starts) for task in lost]
            signalled = monotonic()
            stopping = asyncio.create_task(stop(victim))
            starts = await asyncio.gather(*(task.next_start(count) for task, count in zip(lost, known, strict=True)))
            await stopping
            await revive(victim)
        assert all(start.owner != victim.name for start in starts), "the stopped worker took its task again"
        return [start.at - signalled for start in starts]

    async def drain(self, worker: ServiceProcess) -> None:
        """Drains the worker, and records the seconds until its process ended."""
        began = monotonic()
        await worker.drain()
        self.exits.append(monotonic() - began)

    async def _both_workers(self) -> None:
        """Waits until both workers have a session: the restarted one attached, and exactly once."""
        names = {worker.name for worker in self.stack.workers}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._live() != names:  # noqa: ASYNC110  another process makes the change
                await asyncio.sleep(POLL_SECONDS)

    async def _live(self) -> set[str]:
        listed = await self.client.admin.ListWorkers(admin.ListWorkersRequest(), timeout=PATIENCE_SECONDS)
        return {worker.worker_id for worker in listed.workers}


async def measure(options: Options) -> list[Section]:
    """Returns the latencies of submits, kills, freezes and drains."""
    section = Section("From submit or signal to running", HOW)
    options.tell("latency: starting the stack")
    async with (
        Stack(StackOptions(data_dir=options.folder / "latency")) as stack,
        Client(stack.gateway_address) as client,
    ):
        options.tell("latency: submits")
        submits = await _submits(client, options.choose(smoke=2, quick=40, full=120))
        section.add_latencies("submit to running, idle", submits, bound=at_most(200))
        takeovers = _Takeovers(stack, client)
        options.tell("latency: kill -9")
        killed = await _repeat(
            options.choose(smoke=1, quick=3, full=50), lambda: takeovers.run(_kill, ServiceProcess.restart)
        )
        section.add_latencies("kill -9 to running elsewhere", killed, bound=at_most(2000))
        options.tell("latency: freeze")
        frozen = await _repeat(options.choose(smoke=1, quick=2, full=50), lambda: takeovers.run(_freeze, _wake))
        section.add_latencies("frozen (SIGSTOP) to running elsewhere", frozen, bound=at_most(10_000))
        options.tell("latency: drain")
        drained = await _repeat(
            options.choose(smoke=1, quick=3, full=50), lambda: takeovers.run(takeovers.drain, ServiceProcess.restart)
        )
        section.add_latencies("drain (SIGTERM) to running elsewhere", drained)
        section.add_latencies("drain (SIGTERM) to the end of the process", takeovers.exits)
    return [section]


async def _submits(client: Client, count: int) -> list[float]:
    """Submits one task after the end of the one before, so that nothing else runs."""
    seconds = []
    for _ in range(count):
        began = monotonic()
        async with submitted(client, SHORT_MODEL) as task:
            seconds.append((await task.next_start(0)).at - began)
            await task.until(lambda task: task.ended)
    return seconds


async def _repeat(count: int, run: Callable[[], Awaitable[list[float]]]) -> list[float]:
    return [seconds for _ in range(count) for seconds in await run()]


async def _kill(worker: ServiceProcess) -> None:
    worker.kill()


async def _freeze(worker: ServiceProcess) -> None:
    worker.freeze()


async def _wake(worker: ServiceProcess) -> None:
    worker.wake()
