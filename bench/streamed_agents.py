"""Agents whose streamed answers clients watch, while their workers are killed, frozen and drained."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import yaml

from devstack.child_process import ChildProcess
from tenure.client import Client
from tenure.sdk.live_text import LiveTextFilter
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

STEPS: Final = 4
ANSWER_CHARACTERS: Final = 2000
PIECES: Final = 50
FAULTS: Final = ("kill", "freeze", "drain")
FROZEN_SECONDS: Final = 9.0
"""Longer than the lease of 5 s: the task goes on elsewhere before the frozen worker wakes."""


def write_scenario(folder: Path, answer_seconds: float, *, calls_tool: bool = True) -> Path:
    """Writes a model that streams answers of `answer_seconds`, each but the last with a tool call if `calls_tool`."""
    path = folder / "streamed.yaml"
    answer = {"text": "." * ANSWER_CHARACTERS, "deltas": PIECES, "latency_ms": int(answer_seconds * 1000)}
    turns = [{**answer, "calls": [{"name": "list_files", "arguments": {}}], "repeat": STEPS - 1}] if calls_tool else []
    path.write_text(yaml.safe_dump([*turns, answer]))
    return path


@dataclass(slots=True)
class WatchedText:
    """The text that the watcher of one task received. `replaced`: texts of which a part was shown and then began again.

    `holes`: texts with a part that never came. `pauses`: the seconds without a piece around each takeover in a text.
    """

    replaced: int = 0
    holes: int = 0
    pauses: list[float] = field(default_factory=list)
    _text: LiveTextFilter = field(default_factory=LiveTextFilter)
    _shown_at: float | None = None
    _was_taken_over: bool = False

    def see(self, message: api.WatchTaskResponse) -> None:
        """Takes the next message of the stream."""
        if message.HasField("delta"):
            self._piece(message)
        elif message.HasField("entry"):
            self._text.entry(message.entry)
            self._entry(message.entry)

    def _piece(self, message: api.WatchTaskResponse) -> None:
        piece = self._text.event(message.delta)
        if piece is None:
            return
        self.replaced += piece.replaces
        self.holes += piece.skipped
        self._goes_on()
        self._shown_at = monotonic()

    def _entry(self, entry: ledger_pb2.Entry) -> None:
        kind = entry.body.WhichOneof("body")
        if kind == "assistant_message":
            self._goes_on()
            self._shown_at = None
        elif kind == "transition" and self._shown_at is not None:
            self._was_taken_over |= entry.body.transition.to_state == task_pb2.TASK_STATE_RUNNING

    def _goes_on(self) -> None:
        if self._was_taken_over and self._shown_at is not None:
            self.pauses.append(monotonic() - self._shown_at)
        self._was_taken_over = False


@dataclass(slots=True)
class StreamedAgents:
    """Runs so many tasks at once, one after the other in each place, and watches their texts."""

    client: Client
    model: str
    task_ids: list[str] = field(default_factory=list)
    watched: list[WatchedText] = field(default_factory=list)

    async def run(self, at_once: int, seconds: float) -> None:
        """Begins no task after `seconds`, and returns when all have ended."""
        until = monotonic() + seconds
        async with asyncio.TaskGroup() as places:
            for number in range(at_once):
                places.create_task(self._place(until, number / at_once))

    async def _place(self, until: float, delay: float) -> None:
        await asyncio.sleep(delay)  # so that the steps of the agents are spread over the time of an answer
        while monotonic() < until:
            request = api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model=self.model))
            task_id = (await self.client.submit("stream", request=request)).task_id
            self.task_ids.append(task_id)
            watched = WatchedText()
            self.watched.append(watched)
            async for message in self.client.watch(task_id, live=True):
                watched.see(message)


@dataclass(slots=True)
class WorkerFaults:
    """Stops random workers, one at a time, and brings each back. `seed`: the same faults in each run."""

    workers: Sequence[ChildProcess]
    pause_seconds: float
    seed: int = 19
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def summary(self) -> str:
        """The numbers of faults by kind."""
        return ", ".join(f"{self.counts[fault]} x {fault}" for fault in FAULTS)

    @asynccontextmanager
    async def running(self, seconds: float) -> AsyncIterator[None]:
        """Stops workers inside the block, for at most so long, and has brought all back at its end."""
        stopping = asyncio.create_task(self._run(monotonic() + seconds), name="faults")
        try:
            yield
            await stopping
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    async def _run(self, until: float) -> None:
        chance = random.Random(self.seed)
        while True:
            for fault in chance.sample(FAULTS, len(FAULTS)):
                await asyncio.sleep(chance.uniform(0.5, 1.5) * self.pause_seconds)
                if monotonic() > until:
                    return
                worker = chance.choice(self.workers)
                self.counts[fault] += 1
                await self._stop(worker, fault)

    async def _stop(self, worker: ChildProcess, fault: str) -> None:
        stopping = asyncio.create_task(_FAULTS[fault](worker), name=fault)
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise


async def _kill(worker: ChildProcess) -> None:
    worker.kill()
    await worker.restart()


async def _freeze(worker: ChildProcess) -> None:
    worker.freeze()
    await asyncio.sleep(FROZEN_SECONDS)
    worker.wake()


async def _drain(worker: ChildProcess) -> None:
    await worker.drain()
    await worker.restart()


_FAULTS: Final = {"kill": _kill, "freeze": _freeze, "drain": _drain}
