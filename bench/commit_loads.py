"""Two loads of commits: a closed loop, whose writers wait for each answer, and random arrivals, which do not wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from bench.held_tasks import HeldTask
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2

BODY_BYTES: Final = 5000
Commit = Callable[[pb.CommitRequest], Awaitable[pb.CommitResponse]]


@dataclass(slots=True)
class Run:
    """The result of one load: its duration, and the latency of each commit, in seconds."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def fact() -> ledger_pb2.NewEntry:
    """Returns an entry of 5 KB that does not compress."""
    text = random.randbytes(BODY_BYTES // 2).hex()
    return ledger_pb2.NewEntry(step=1, body=ledger_pb2.EntryBody(user_message=ledger_pb2.UserMessage(text=text)))


async def closed_loop(commit: Commit, tasks: Sequence[HeldTask], seconds: float) -> Run:
    """Runs one writer for each task, with one commit in flight and no pause: batches are fuller than in production."""
    run, began = Run(), perf_counter()

    async def write(task: HeldTask) -> None:
        entries = [fact()]
        while (sent := perf_counter()) - began < seconds:
            task.acknowledged(await commit(task.commit(entries)))
            run.latencies.append(perf_counter() - sent)

    await asyncio.gather(*(write(task) for task in tasks))
    run.seconds = perf_counter() - began
    return run


async def random_arrivals(commit: Commit, tasks: Sequence[HeldTask], per_second: float, seconds: float) -> Run:
    """Runs Poisson arrivals. A latency counts from the moment at which the commit was due, also if it was sent late."""
    run, entries = Run(), [fact()]
    free: asyncio.Queue[HeldTask] = asyncio.Queue()
    for task in tasks:
        free.put_nowait(task)

    async def write(due: float) -> None:
        task = await free.get()
        task.acknowledged(await commit(task.commit(entries)))
        run.latencies.append(perf_counter() - due)
        free.put_nowait(task)

    began = due = perf_counter()
    async with asyncio.TaskGroup() as writers:
        while (due := due + random.expovariate(per_second)) - began < seconds:
            await asyncio.sleep(max(0.0, due - perf_counter()))  # also when late, so that the writers run
            writers.create_task(write(due))
    run.seconds = perf_counter() - began
    return run
