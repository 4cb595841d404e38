"""A whole installation as a backend sees it: through the gateway only, with its parts as processes to be broken.

install.submit("sim-hello") → task_id        install.until(task_id, "tool_intent")        install.ended(task_id)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from devstack import Stack
from devstack.service_process import ServiceProcess
from tenure.client import Client
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import state_name
from tests.support.patience import PATIENCE_SECONDS
from tests.support.written_lines import whole_records


@dataclass(slots=True)
class Installation:
    """A running stack and a client of its gateway."""

    stack: Stack
    client: Client

    async def submit(self, model: str, goal: str = "find out", **fields: object) -> str:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(**fields))  # type: ignore[arg-type]  # any of its fields
        request.spec.agent.model = model
        return (await self.client.submit(goal, request=request)).task_id

    async def until(
        self, task_id: str, kind: str, matches: Callable[[ledger_pb2.Entry], bool] = lambda _entry: True
    ) -> ledger_pb2.Entry:
        """The first entry of a kind that matches, as soon as it is committed."""
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(self.client.watch(task_id)) as events:
            async for event in events:
                if event.HasField("entry") and event.entry.body.WhichOneof("body") == kind and matches(event.entry):
                    return event.entry
        raise AssertionError(f"the task ended without a {kind} that matches")

    async def speaking(self, task_id: str) -> None:
        """Waits until the model has begun to answer."""
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(self.client.watch(task_id, live=True)) as events:
            async for event in events:
                if event.HasField("delta"):
                    return
        raise AssertionError("the task ended without live text")

    async def ended(self, task_id: str) -> task_pb2.Task:
        return await self.client.wait(task_id, PATIENCE_SECONDS)

    async def entries(self, task_id: str) -> list[ledger_pb2.Entry]:
        return [entry async for entry in self.client.entries(task_id)]

    async def in_state(self, task_id: str, state: str) -> task_pb2.Task:
        """The task once it stands there; its own transition entry is the named thing to wait for."""
        await self.until(task_id, "transition", lambda e: state_name(e.body.transition.to_state) == state)
        return await self.client.get(task_id)

    async def undo_of(self, task_id: str) -> str:
        """The undo of the task, once the ledger has created it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                plan = await self.client.plan_undo(api.PlanUndoRequest(task_id=task_id))
                if found := {effect.undo_task_id for effect in plan.effects} - {""}:
                    return found.pop()
                await asyncio.sleep(0.05)

    async def died(self, service: ServiceProcess) -> None:
        """Waits until a process is gone."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while service.exit_code is None:
                await asyncio.sleep(0.02)

    def owner(self, task: task_pb2.Task) -> ServiceProcess:
        return self.stack.services[task.owner]

    def effects(self, file: str) -> list[str]:
        """Lines that append_record wrote to the outside."""
        path = self.stack.layout.records / DEFAULT_TENANT / f"{file}.jsonl"
        return [record["line"] for record in whole_records(path)]

    def model_calls(self, task_id: str) -> list[dict[str, Any]]:
        """What the model was asked for this task, from the simulator's own log."""
        return [
            call
            for call in whole_records(self.stack.layout.model_log)
            if (call.get("attempt") or "").startswith(f"{task_id}/")
        ]


def answers(entries: list[ledger_pb2.Entry]) -> list[int]:
    """The steps whose model answer was committed, in order."""
    return [entry.step for entry in entries if entry.body.HasField("assistant_message")]


def check_whole(entries: list[ledger_pb2.Entry]) -> None:
    """What holds of every ledger: no gap, no step twice, every intent answered once, epochs only grow."""
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    assert answers(entries) == sorted(set(answers(entries)))
    epochs = [entry.epoch for entry in entries if entry.epoch]
    assert epochs == sorted(epochs)
    intents = [entry.body.tool_intent.call_id for entry in entries if entry.body.HasField("tool_intent")]
    outcomes = [entry.body.tool_outcome.call_id for entry in entries if entry.body.HasField("tool_outcome")]
    assert len(set(intents)) == len(intents)
    assert sorted(outcomes) == sorted(intents)
