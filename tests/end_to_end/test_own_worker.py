"""The worker of `examples/`: a loop of one's own on the generated stubs alone is as durable as ours."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devstack import Stack
from devstack.child_process import ChildProcess
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.end_to_end.installation import Installation, check_whole
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = [f"line {number}" for number in range(1, 5)]


class OwnWorker(ChildProcess):
    """It has no address. It is ready once it says so."""

    async def serves(self) -> bool:
        return "attached" in self.log()

    async def says(self, *words: str) -> str:
        """Waits for one of these in its log, and returns it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (said := [one for one in words if one in self.log()]):
                await asyncio.sleep(0.02)
        return said[0]


@asynccontextmanager
async def own_workers(stack: Stack, queue: str) -> AsyncIterator[dict[str, OwnWorker]]:
    """Two of them, by the names they give themselves."""
    addresses = stack.addresses()
    workers: dict[str, OwnWorker] = {}
    for name in ("own-1", "own-2"):
        places = [f"--{kind}s={addresses[kind]}" for kind in ("coordinator", "checkpoint")]
        command = [sys.executable, str(EXAMPLES / "own_worker.py"), f"--id={name}-{queue}", f"--queue={queue}", *places]
        command.append(f"--tools={addresses['tools']}")
        worker = OwnWorker(f"{name}-{queue}", command, "", {}, stack.layout.logs / f"{name}-{queue}.log")
        workers[worker.name] = worker
        worker.start()
    try:
        for worker in workers.values():
            await worker.wait_ready()
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()


@pytest.fixture
def queue() -> str:
    return f"own-{uuid.uuid4().hex[:8]}"


async def submit(install: Installation, queue: str, file: str, delay_ms: int) -> str:
    goal = json.dumps({"file": file, "lines": LINES, "delay_ms": delay_ms})
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue=queue))
    request.spec.agent.loop = "my-loop"
    return (await install.client.submit(goal, request=request)).task_id


def made(entries: list[ledger_pb2.Entry]) -> list[str]:
    """The calls that were announced, in order."""
    return [entry.body.tool_intent.call_id for entry in entries if entry.body.HasField("tool_intent")]


async def check_written(install: Installation, task_id: str, file: str, *, takeovers: int) -> None:
    """Succeeded; every step once, every effect once, though the calls are UNSAFE."""
    task = await install.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    assert (task.result, task.claim_count) == ("4 lines are written.", takeovers + 1)
    entries = await install.entries(task_id)
    check_whole(entries)
    assert made(entries) == ["1.0", "2.0", "3.0", "4.0"]
    assert install.effects(file) == LINES


async def in_second_call(install: Installation, task_id: str, workers: dict[str, OwnWorker]) -> OwnWorker:
    """The owner, in the middle of its second step: the intent is committed, the tool service runs the call."""
    await install.until(task_id, "tool_intent", lambda entry: entry.step == 2)
    request = admin_pb.ListCallsRequest(task_id=task_id, call_ids=["2.0"])
    async with open_channel(install.stack.services["tools"].address) as channel, asyncio.timeout(PATIENCE_SECONDS):
        while not (await ToolServiceStub(channel).ListCalls(request, timeout=CALL_SECONDS)).calls:
            await asyncio.sleep(0.02)
    return workers[(await install.client.get(task_id)).owner]


async def refused_holders(install: Installation, task_id: str) -> set[str]:
    """Whose commits the ledger refused; it writes them down a moment later."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (refused := (await install.client.refusals(task_id)).ledger):
            await asyncio.sleep(0.05)
    return {write.holder for write in refused}


async def test_another_one_resumes_when_it_is_killed_after_the_intent(installation: Installation, queue: str) -> None:
    file = uuid.uuid4().hex
    async with own_workers(installation.stack, queue) as workers:
        task_id = await submit(installation, queue, file, delay_ms=800)
        (await in_second_call(installation, task_id, workers)).kill()
        await check_written(installation, task_id, file, takeovers=1)


@pytest.mark.faults
async def test_a_frozen_own_worker_is_refused_as_stale(installation: Installation, queue: str) -> None:
    file = uuid.uuid4().hex
    async with own_workers(installation.stack, queue) as workers:
        task_id = await submit(installation, queue, file, delay_ms=800)
        frozen = await in_second_call(installation, task_id, workers)
        frozen.freeze()
        await installation.until(
            task_id, "transition", lambda entry: entry.body.transition.reason == "OPENED" and entry.actor != frozen.name
        )
        frozen.wake()  # to find the outcome of its call and to commit it; seldom, to hear of its lost claim before that
        refused, lost = f"{task_id} dropped: STALE_EPOCH", f"{task_id} dropped: SESSION_LOST"
        if await frozen.says(refused, lost) == refused:
            assert await refused_holders(installation, task_id) == {frozen.name}
        await check_written(installation, task_id, file, takeovers=1)
        later, other = await submit(installation, queue, "later-" + file, delay_ms=0), "later-" + file
        await check_written(installation, later, other, takeovers=0)
    assert frozen.log().count(f"{task_id} left") <= 1


@pytest.mark.faults
async def test_a_drained_one_gives_its_task_back(installation: Installation, queue: str) -> None:
    file = uuid.uuid4().hex
    async with own_workers(installation.stack, queue) as workers:
        task_id = await submit(installation, queue, file, delay_ms=800)
        drained = await in_second_call(installation, task_id, workers)
        assert await drained.drain() == 0
        await check_written(installation, task_id, file, takeovers=1)


def test_it_needs_nothing_of_tenure_but_the_generated_stubs() -> None:
    for name in ("own_worker.py", "own_session.py"):
        nodes = list(ast.walk(ast.parse((EXAMPLES / name).read_text())))
        modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        ours = {module for module in modules if module.split(".")[0] in {"tenure", "services"}}
        assert all(module.startswith("tenure.v1") for module in ours)
