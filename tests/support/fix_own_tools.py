"""Own tools in real workers, with their effects counted in a file."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checker.collect import collect_tasks
from checker.verify import verify
from devstack.service_process import ServiceProcess
from tenure.client import Client
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, InDoubtPolicy, TaskPolicy, TaskSpec
from tenure.domain.tools import EffectClass
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.written_lines import whole_lines

MODULE = "tests.support.own_tool_functions"
REPEATABLE = [effect.value for effect in EffectClass if effect.may_run_again]


class Letters:
    """Tasks of one test, with the file of their effects and the gate before them."""

    def __init__(self, bench: WorkerBench, folder: Path) -> None:
        self.bench = bench
        self.trace, self.gate = folder / "trace", folder / "gate"

    async def worker(self, failpoints: str = "", **settings: str) -> ServiceProcess:
        return await self.bench.start_worker(failpoints=failpoints, loops="control", control_modules=MODULE, **settings)

    async def submit(
        self,
        effects: list[str],
        *,
        how: str = "",
        function: str = "writing",
        policy: TaskPolicy | None = None,
        **tool: Any,
    ) -> str:
        arguments = {"trace": str(self.trace), "gate": str(self.gate), "line": "", "how": how}
        given = {"effects": effects, "arguments": arguments, "tool": tool}
        spec = TaskSpec(
            goal="",
            agent=AgentSpec(loop="control"),
            policy=policy or TaskPolicy(on_in_doubt=InDoubtPolicy.TELL_MODEL),
            queue=self.bench.queue,
            control=ControlWork(function, json.dumps(given)),
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    def open_gate(self) -> None:
        self.gate.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in whole_lines(self.trace)]

    def counts(self) -> Counter[str]:
        """Returns how often each effect happened, and how often it began."""
        return Counter(line[0] for line in self.lines())

    def keys(self, effect: str) -> set[str]:
        return {line[2] for line in self.lines() if line[0].endswith(effect)}

    async def began(self, *effects: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(self.counts()[f"began-{effect}"] < times for effect in effects):
                await asyncio.sleep(0.02)

    async def result(self, task_id: str) -> list[str]:
        """Returns the result of a task that SUCCEEDED. Its history breaks no invariant."""
        task = await self.bench.ended(task_id)
        assert state_name(task.state) == TaskState.SUCCEEDED, task.message
        async with Client(self.bench.stack.gateway_address) as auditor:
            assert verify(await collect_tasks(auditor, [task_id])) == []
        decoded: list[str] = json.loads(task.result)
        return decoded


@pytest.fixture
def letters(bench: WorkerBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Letters:
    add = bench.stack.add_worker
    monkeypatch.setattr(bench.stack, "add_worker", lambda more: add({**more, "PYTHONPATH": str(REPOSITORY)}))
    return Letters(bench, tmp_path)
