"""Versions of agents with real workers: builds, a dead worker of the old build, and a ramp."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from devstack.child_process import ChildProcess
from tenure import AgentDetails, Client, NotFound, TaskState
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
REPOSITORY: Final = Path(__file__).parents[2]
PROGRAM: Final = """
import asyncio
from pathlib import Path
from tenure.agents import Work, Worker, function

BUILD, NAME, GATE = {build!r}, {name!r}, Path({gate!r})

@function(name=NAME)
async def closing(work: Work) -> str:
    async def wait() -> str:
        while not GATE.exists():
            await asyncio.sleep(0.02)
        return BUILD
    first = await work.step("first " + BUILD, lambda: BUILD)
    return first + " " + await work.step("wait", wait)

Worker([closing], build=BUILD).run()
"""


class BuildWorker(ChildProcess):
    """A worker of one build."""

    async def serves(self) -> bool:
        return '"attached"' in self.log()


class Builds:
    """Workers of one test, for a function with a name and a queue of its own."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.stack, self.folder = installation.stack, folder
        self.name = f"closing-{uuid.uuid4().hex[:8]}"
        self.started: list[BuildWorker] = []

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    async def start(self, build: str) -> BuildWorker:
        program = self.folder / f"{build}.py"
        program.write_text(PROGRAM.format(build=build, name=self.name, gate=str(self.gate)))
        addresses = self.stack.addresses()
        environment = {
            "TENURE_WORKER_QUEUES": self.name,
            "TENURE_WORKER_COORDINATOR_ADDRESS": addresses["coordinator"],
            "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses["checkpoint"],
            "TENURE_WORKER_TOOLS_ADDRESS": addresses["tools"],
            "TENURE_WORKER_SLOTS": "64",
            "PYTHONPATH": str(REPOSITORY),
            "PATH": os.environ["PATH"],
        }
        name = f"{self.name}-{build}-{len(self.started)}"
        worker = BuildWorker(
            name, [sys.executable, str(program)], "", environment, self.stack.layout.logs / f"{name}.log"
        )
        self.started.append(worker)
        worker.start()
        await worker.wait_ready()
        return worker

    async def has(self, client: Client, revision: int) -> AgentDetails:
        """Waits until a worker has registered so many revisions."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    details = await client.agent(self.name)
                    if details.agent.newest_revision >= revision:
                        return details
                except NotFound:
                    pass
                await asyncio.sleep(0.05)

    async def submit(self, client: Client, agent: str = "") -> Any:
        return await client.submit_function(agent or self.name, queue=self.name)


@pytest.fixture
async def builds(installation: Installation, tmp_path: Path) -> AsyncIterator[Builds]:
    made = Builds(installation, tmp_path)
    yield made
    for worker in made.started:
        worker.kill()


async def until(task: Any, state: TaskState) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await task.refresh()).state is not state:
            await asyncio.sleep(0.05)


@pytest.mark.faults
async def test_a_task_waits_for_its_build_and_goes_on_with_it(installation: Installation, builds: Builds) -> None:
    address = installation.stack.gateway_address
    async with Client(address) as client:
        old = await builds.start("b1")
        await builds.has(client, 1)
        task = await builds.submit(client)
        assert (task.info.agent, task.info.agent_revision) == (builds.name, 1)
        await until(task, TaskState.RUNNING)
        await builds.start("b2")
        details = await builds.has(client, 2)
        assert (details.agent.current_revision, details.agent.ramp_revision) == (1, None)
        old.kill()
        await until(task, TaskState.QUEUED)
        newer = await builds.submit(client, f"{builds.name}@2")
        await until(newer, TaskState.RUNNING)
        explained = await tenure("explain", task.id, address=address)
        assert f"pinned to {builds.name}@1, which needs the build b1: no attached worker has it" in explained.out
        assert f"the workers with the agent or function {builds.name} have: b2" in explained.out
        shown = {need.build: (need.open_tasks, need.only_here) for need in (await client.agent(builds.name)).builds}
        assert shown == {"b1": (1, 1), "b2": (1, 1)}
        await builds.start("b1")
        builds.gate.touch()
        assert await task.result() == "b1 b1"
        assert await newer.result() == "b2 b2"
        assert (await task.refresh()).attempt == 1
        assert [each.open_tasks for each in (await client.agent(builds.name)).revisions] == [0, 0]


AGENT: Final = """
name = "{name}"
model = "sim-hello"
system = "{system}"
tools = []

[limits]
max_steps = 9
"""


@pytest.mark.faults
async def test_an_agent_without_code_is_registered_from_a_file(installation: Installation, tmp_path: Path) -> None:
    address, name, file = installation.stack.gateway_address, f"greeter-{uuid.uuid4().hex[:8]}", tmp_path / "agent.toml"
    file.write_text(AGENT.format(name=name, system="Be kind."))
    registered = await tenure("agents", "register", str(file), address=address)
    assert registered.out.strip() == f"{name}@1 is registered", registered.err
    assert "has this content already" in (await tenure("agents", "register", str(file), address=address)).out
    async with Client(address) as client:
        task = await client.submit("Say hello", agent=name)
        assert (task.info.agent_revision, task.info.system, task.info.limits.max_steps) == (1, "Be kind.", 9)
        assert isinstance(await task.result(), str)
        second = await client.register_agent(name, model="sim-hello", system="Be brief.", tools=[])
        assert (second.created, second.revision.revision, second.agent.current_revision) == (True, 2, 1)
        assert (await client.agent(f"{name}@2")).revisions[0].definition is not None
        assert (await client.submit("Say hello", agent=f"{name}@1")).info.system == "Be kind."
    file.write_text("name = 'x'\nmodle = 'y'\n")
    refused = await tenure("agents", "register", str(file), address=address)
    assert "unknown key modle" in refused.err
