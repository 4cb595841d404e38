"""Short tasks at a steady rate, whatever becomes of those before: the load of `rolling` and `hour`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from bench.scale_ledger import LedgerView
from tenure.client import Client
from tenure.domain.errors import TenureError
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

NAME: Final = "bench-steady"
POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ShortTask:
    """A task of so many turns. A turn is a model call of `model_seconds` and an effect after `tool_seconds`."""

    turns: int
    model_seconds: float
    tool_seconds: float

    def scenario_file(self, folder: Path) -> Path:
        """Writes the scenario and returns its file."""
        folder.mkdir(parents=True)
        path = folder / f"{NAME}.yaml"
        arguments = {"file": "{{goal}}", "line": "turn {{turn}}", "delay_ms": int(self.tool_seconds * 1000)}
        turn = {
            "text": "Turn {{turn}}.",
            "latency_ms": int(self.model_seconds * 1000),
            "calls": [{"name": "append_record", "arguments": arguments}],
        }
        path.write_text(yaml.safe_dump([*[turn] * self.turns, {"text": "Done."}]))
        return path


def prices_variable(folder: Path) -> dict[str, str]:
    """Writes a price of the model, and returns the variable for the checkpoint service. Without one an alert fires."""
    path = folder / "prices.toml"
    path.write_text(f"[models.sim-{NAME}]\ninput = 1\noutput = 1\n")
    return {"TENURE_CHECKPOINT_PRICES_FILE": str(path)}


@dataclass(slots=True)
class OpenLoad:
    """Submits tasks until it is cancelled. The client repeats a request to another replica; `failed` are its errors.

    `submits`: for each acknowledged submit, when it began and the seconds that it took.
    """

    client: Client
    per_second: float
    task_ids: list[str] = field(default_factory=list)
    submits: list[tuple[float, float]] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Submits one task after another at the rate, each in an asyncio task of its own."""
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._submit(number))
                number += 1
                await asyncio.sleep(max(0.0, began + number / self.per_second - loop.time()))

    async def _submit(self, number: int) -> None:
        began, clock = time.time(), time.monotonic()
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=f"sim-{NAME}")))
        try:
            task = await self.client.submit(f"steady-{number}", request=request)
        except TenureError as error:
            self.failed[error.reason] += 1
            return
        self.task_ids.append(task.task_id)
        self.submits.append((began, time.monotonic() - clock))


async def ends_of(view: LedgerView, task_ids: list[str], patience_seconds: float) -> Counter[TaskState | None]:
    """Waits until all tasks have ended. Returns how many are in which state; None: the ledger does not have them."""
    ends_at = time.monotonic() + patience_seconds
    while True:
        tasks = await view.tasks(task_ids)
        states = Counter(tasks[task_id][0] if task_id in tasks else None for task_id in task_ids)
        if set(states) <= TERMINAL or time.monotonic() > ends_at:
            return states
        await asyncio.sleep(POLL_SECONDS)
