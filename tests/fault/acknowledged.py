"""Clients that write all the time and remember what was acknowledged: whatever breaks, exactly that is in the ledger.

async with acknowledged_writes(bench) as writes:
    break_something()
    await writes.go_on()                    # every client was acknowledged again since
assert await writes.in_the_ledger() == writes.acknowledged
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tenure.domain import entries as facts
from tenure.domain.errors import TryLater
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tests.support.fix_worker import WorkerBench
from tests.support.patience import PATIENCE_SECONDS

CLIENTS = 4
CALL_SECONDS = 8.0
TEXT = "x" * 4000
"""Large enough to want new pages of Postgres soon."""


@dataclass
class Writes:
    """`acknowledged` and `refusals` so far; any other error than "try later" ends the test."""

    bench: WorkerBench
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def go_on(self) -> float:
        """Waits until each client was acknowledged again; the seconds it took."""
        began, before = time.monotonic(), {task_id: len(texts) for task_id, texts in self.acknowledged.items()}
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(
                lambda: all(len(texts) > before[task_id] for task_id, texts in self.acknowledged.items())
            )
        return time.monotonic() - began

    async def refused(self, *reasons: str) -> str:
        """Waits until a writer was refused for one of these reasons."""
        before = self.refusals.copy()

        def matching() -> list[str]:
            return [reason for reason in reasons if self.refusals[reason] > before[reason]]

        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(matching)
        return matching()[0]

    async def in_the_ledger(self) -> dict[str, list[str]]:
        """What was written, by task, in order."""
        return {
            task_id: [body.text[:36] for body in await self.bench.bodies(task_id, facts.UserMessage)]
            for task_id in self.acknowledged
        }

    async def write(self, task_id: str, stopping: asyncio.Event) -> None:
        """One client: each message is sent again until it is acknowledged."""
        while not stopping.is_set():
            text = str(uuid.uuid4())
            request = pb.AppendForeignRequest(task_id=task_id, request_id=text, actor="test")
            request.user_message.CopyFrom(ledger_pb2.UserMessage(text=text + TEXT))
            while not await self._sent(request):
                await asyncio.sleep(0.1)
            self.acknowledged[task_id].append(text)
            async with self._changed:
                self._changed.notify_all()

    async def _sent(self, request: pb.AppendForeignRequest) -> bool:
        try:
            await self.bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)
        except TryLater as refusal:
            self.refusals[refusal.reason] += 1
            async with self._changed:
                self._changed.notify_all()
            return False
        return True


@asynccontextmanager
async def acknowledged_writes(bench: WorkerBench) -> AsyncIterator[Writes]:
    """The clients, each with a task of its own that no worker takes. At the end the last writes are acknowledged."""
    queue, bench.queue = bench.queue, "nobody"
    writes, stopping = Writes(bench), asyncio.Event()
    for _ in range(CLIENTS):
        writes.acknowledged[await bench.submit("sim-hello")] = []
    bench.queue = queue
    async with asyncio.TaskGroup() as clients:
        for task_id in writes.acknowledged:
            clients.create_task(writes.write(task_id, stopping))
        await writes.go_on()
        yield writes
        stopping.set()
