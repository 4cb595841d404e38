"""The same steps and the same faults on Tenure."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.data_path import DataPath, HeldTask
from bench.peers.faults import QUIET_SECONDS, Outcome
from bench.peers.program import EngineFailedError
from bench.peers.programs.agent import EFFECTS, FAULT_STEP, STEPS, result_text
from bench.peers.results import TENURE, TITLES, Making, Sample
from bench.peers.stores import wal_bytes
from bench.processes import CpuMeter
from bench.steps import NullAgents, null_agents
from devstack import Stack, StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.stores import ensure_database
from tenure.client import Client
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

SCENARIO: Final = "ten-effects"
RECORD: Final = "effects"
PATIENCE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.005
_ACTIONS: Final = {"freeze": "freeze", "kill": "kill9"}


@dataclass(frozen=True, slots=True)
class TenureEngine:
    """Tenure, with its ledger in a database of the common Postgres. `name`: the scene, TENURE or TENURE_STEP."""

    postgres: PostgresProcess
    name: str

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @asynccontextmanager
    async def running(self, folder: Path, at_once: int) -> AsyncIterator[RunningTenure]:
        """Yields the services of the data path, with this process as the worker."""
        path = DataPath(folder / "data", "checkpoint", "tools", postgres=self.postgres, database=folder.name)
        async with path, null_agents(path) as agents:
            agent = replace(agents.agent, answer_text=lambda _step: result_text())
            with FileIO(folder / EFFECTS, "ab") as effects:
                yield RunningTenure(self.name, replace(agents, agent=agent), self.postgres, at_once, effects)

    async def run_fault(self, folder: Path, fault: str) -> Outcome:
        """Freezes or kills the worker of a task just before it calls a tool. Raises EngineFailedError."""
        await ensure_database(self.postgres.dsn(), folder.name)
        scenario = folder / f"{SCENARIO}.yaml"
        scenario.write_text(json.dumps(_turns()))  # JSON is YAML
        options = StackOptions(
            data_dir=folder / "data",
            workers=1,
            postgres_dsn=self.postgres.dsn(folder.name),
            scenario_files=(scenario,),
            environment={"worker-1": {"TENURE_FAILPOINTS": _failpoints(folder, fault)}},
        )
        async with Stack(options) as stack, Client(stack.gateway_address) as client:
            try:
                return await _Fault(stack, client, folder).run(fault)
            finally:
                for worker in stack.workers:
                    if worker.exit_code is None:
                        worker.kill()


@dataclass(frozen=True, slots=True)
class RunningTenure:
    """Tenure as it runs in a round of one scene. `effects`: the file of the effects that this process makes."""

    scene: str
    agents: NullAgents
    postgres: PostgresProcess
    at_once: int
    effects: FileIO

    async def run(self, count: int) -> Sample:
        """Runs tasks; the rate counts from their submit to the last one's end, as it does for the peers."""
        meter = CpuMeter(self.agents.path.pids(), own="worker")
        written = wal_bytes(self.postgres)
        meter.start()
        began = perf_counter()
        tasks = await self.agents.maker.held(count)
        making = Making(count, perf_counter() - began, sum(meter.used_seconds().values()))
        latencies = await self._steps(deque(tasks))
        seconds = perf_counter() - began
        cpu = meter.used_seconds()
        written = wal_bytes(self.postgres) - written
        return Sample(self.at_once, count * STEPS, seconds, latencies, cpu, written, making)

    async def _steps(self, waiting: deque[HeldTask]) -> list[float]:
        """Runs the steps of all tasks. Returns the seconds of each step."""
        latencies: list[float] = []

        async def work() -> None:
            while waiting:
                task = waiting.popleft()
                if self.scene == TENURE:
                    await self.agents.agent.begin(task)
                latencies.extend([await self._step(task, last=number == STEPS) for number in range(1, STEPS + 1)])

        await asyncio.gather(*(work() for _ in range(self.at_once)))
        return latencies

    def _step(self, task: HeldTask, *, last: bool) -> Awaitable[float]:
        if self.scene == TENURE:
            return self.agents.agent.step(task, last=last)
        return self.agents.agent.recorded_step(task, lambda: self._effect(task), last=last)

    def _effect(self, task: HeldTask) -> str:
        """Makes the effect that a peer's program makes: a line in a file."""
        self.effects.write(f"{task.task_id} {task.step} {time.monotonic()}\n".encode())
        return result_text()


@dataclass(frozen=True, slots=True)
class _Fault:
    """One fault. Times are those of the machine's clock, because the worker says the moment by a file."""

    stack: Stack
    client: Client
    folder: Path

    async def run(self, fault: str) -> Outcome:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=f"sim-{SCENARIO}")))
        task_id = (await self.client.submit("Make ten effects.", request=request)).task_id
        self.stack.add_worker()
        await _poll("the second worker to attach", self._both_attached)
        (self.folder / "go").touch()
        victim = self.folder / "victim"
        await _poll(f"the first worker to come to step {FAULT_STEP}", _exists(victim))
        stopped_at, before = victim.stat().st_mtime, len(self._effects())
        await _poll("the next effect elsewhere", self._has(before + 1))
        takeover_seconds = time.time() - stopped_at
        await _poll("the last effect", self._has(STEPS))
        if fault == "freeze":
            self.stack.services["worker-1"].wake()
            await _poll("the tool service to refuse the woken worker", self._is_refused(task_id))
            await asyncio.sleep(QUIET_SECONDS)
        return Outcome(repeated=len(self._effects()) - STEPS, takeover_seconds=takeover_seconds)

    async def _both_attached(self) -> bool:
        listed = await self.client.admin.ListWorkers(admin.ListWorkersRequest(), timeout=PATIENCE_SECONDS)
        return len(listed.workers) == 2

    def _has(self, count: int) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return len(self._effects()) >= count

        return holds

    def _is_refused(self, task_id: str) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return bool((await self.client.refusals(task_id)).tools)

        return holds

    def _effects(self) -> list[str]:
        files = self.stack.layout.records.glob(f"*/{RECORD}.jsonl")
        return [line for file in files for line in file.read_text().splitlines()]


def _turns() -> list[dict[str, Any]]:
    """Returns the scenario: each answer calls an UNSAFE tool, which is never repeated unasked."""
    turns: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        call = {"name": "append_record_unsafe", "arguments": {"file": RECORD, "line": f"step {step}"}}
        turns.append({"text": "The next one.", "calls": [call]})
    return [*turns, {"text": "Done."}]


def _failpoints(folder: Path, fault: str) -> str:
    """Returns the first worker's: at the step it waits for the second worker, says the moment, and stops itself."""
    actions = (f"wait({folder / 'go'})", f"touch({folder / 'victim'})", _ACTIONS[fault])
    terms = "->".join(f"{FAULT_STEP}#{action}" for action in actions)
    return f"worker.after_intent={terms};worker.ignore_trust_window"


def _exists(file: Path) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return await asyncio.to_thread(file.exists)

    return holds


async def _poll(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await holds():  # noqa: ASYNC110  another process makes the change
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise EngineFailedError(f"The bench waited {PATIENCE_SECONDS:g} s for {what}, which did not happen.") from None
