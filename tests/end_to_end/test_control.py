"""Control work through the gateway: functions of a backend's own, on workers whose settings name their modules."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from checker.verify import verify
from devstack import Stack
from devstack.child_process import ChildProcess
from tenure.cli.exit_codes import Exit
from tenure.domain.errors import WrongState
from tenure.serve import command_line
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_verify import recorded
from tests.support.patience import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[2]
SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
NO_SETTINGS: Mapping[str, str] = {}


class FunctionWorker(ChildProcess):
    """A worker with functions, and no model. It has no address that anybody knows: it is there once it listens."""

    async def serves(self) -> bool:
        return '"listening"' in self.log()


class Workers:
    """Workers of one test, on a queue of their own."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.queue = f"functions-{uuid.uuid4().hex[:12]}"
        self.started: list[FunctionWorker] = []

    async def start(self, settings: Mapping[str, str] = NO_SETTINGS) -> FunctionWorker:
        addresses = self.stack.addresses()
        environment = {
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'examples'}",
            "TENURE_WORKER_LOOPS": "control",
            "TENURE_WORKER_CONTROL_MODULES": "month_end,tests.support.control_functions,tests.support.model_functions",
            "TENURE_WORKER_QUEUES": self.queue,
            "MODEL_URL": self.stack.model_url,
            "TENURE_WORKER_COORDINATOR_ADDRESS": addresses["coordinator"],
            "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses["checkpoint"],
            "TENURE_WORKER_TOOLS_ADDRESS": addresses["tools"],
            **settings,
        }
        name = f"{self.queue}-{len(self.started) + 1}"
        command = command_line("worker")
        worker = FunctionWorker(name, command, "", environment, self.stack.layout.logs / f"{name}.log")
        self.started.append(worker)
        worker.start()
        await worker.wait_ready()
        return worker

    def given(self, **more: Any) -> str:
        """What the functions of these tests are given: files of this test's own."""
        files = {"trace": str(self.folder / "trace"), "gate": str(self.folder / "gate"), "file": self.queue}
        return json.dumps({**files, "numbers": [1, 2, 3], **more})

    async def has_made(self, *steps: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            path = self.folder / "trace"
            while not path.exists() or path.read_text().split() != list(steps):
                await asyncio.sleep(0.02)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()


@pytest.fixture
def workers(installation: Installation, tmp_path: Path) -> Iterator[Workers]:
    ours = Workers(installation.stack, tmp_path)
    yield ours
    for worker in ours.started:
        worker.kill()


async def submit(installation: Installation, workers: Workers, function: str, given: str) -> str:
    control = task_pb2.ControlWork(function=function, input_json=given)
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue=workers.queue, control=control))
    return (await installation.client.submit("", request=request)).task_id


def steps(entries: list[ledger_pb2.Entry]) -> list[str]:
    return [entry.body.control_step.name for entry in entries if entry.body.HasField("control_step")]


@pytest.mark.faults
async def test_a_killed_worker_is_replaced_and_effects_happen_once(
    installation: Installation, workers: Workers
) -> None:
    killed = await workers.start()
    task_id = await submit(installation, workers, "records", workers.given())
    await workers.has_made("total", "gate")
    killed.kill()
    await workers.start()
    await workers.has_made("total", "gate", "gate")
    workers.open_gate()
    task = await installation.ended(task_id)
    assert task.state == SUCCEEDED, task.message
    assert (task.claim_count, json.loads(task.result)["total"]) == (2, 6)
    entries = await installation.entries(task_id)
    check_whole(entries)
    assert steps(entries) == ["total", "gate"]
    assert sorted(installation.effects(workers.queue)) == ["keyed", "last", "total 6"]
    assert verify(await recorded(installation, task_id)) == []


@pytest.mark.faults
async def test_the_example_at_the_command_line(installation: Installation, workers: Workers) -> None:
    """First no worker has the function, then one does; a fork answers from the record."""
    address = installation.stack.gateway_address
    given = json.dumps({"month": "2026-10", "books": workers.queue})
    requests = ("submit", "--function", "month_end", "--input", given, "--queue", workers.queue)
    task_id = (await tenure(*requests, address=address)).out.strip()
    assert "and the agent or function month_end" in (await tenure("explain", task_id, address=address)).out
    await workers.start()
    watched = await tenure("watch", task_id, address=address)
    assert watched.code == Exit.OK, watched.out
    assert "step 1: add up" in watched.out
    assert '{"booked":true,"total":250}' in watched.out
    entries = await installation.entries(task_id)
    after_call = next(entry.sequence for entry in entries if entry.body.HasField("tool_outcome"))
    forked = (await tenure("fork", task_id, "--at", str(after_call), address=address)).out.split()[0]
    fork = await installation.ended(forked)
    assert fork.state == SUCCEEDED, fork.message
    assert installation.effects(workers.queue) == ["2026-10 250"]
    assert steps(await installation.entries(forked)) == ["add up", "tell"]


@pytest.mark.faults
async def test_a_function_asks_a_person_and_goes_on_with_the_answer(
    installation: Installation, workers: Workers
) -> None:
    await workers.start()
    task_id = await submit(installation, workers, "asking", workers.given(question="Which colour?"))
    task = await installation.in_state(task_id, "WAITING_USER")
    assert (task.owner, task.wait.question) == ("", "Which colour?")
    with pytest.raises(WrongState, match="NO_READER"):
        await installation.client.send(task_id, "is there anybody?")
    await installation.client.resume(task_id, task.wait.wait_id, reply="blue")
    ended = await installation.ended(task_id)
    assert "blue" in json.loads(ended.result)
    await workers.has_made("prepare")


async def test_a_control_task_without_a_function_is_refused(installation: Installation) -> None:
    address = installation.stack.gateway_address
    refused = await tenure("submit", "--function", "no spaces", address=address)
    assert refused.code == Exit.REFUSED
    assert "--function" in refused.err
    malformed = await tenure("submit", "--function", "month_end", "--input", "{", address=address)
    assert malformed.code == Exit.REFUSED
    assert "--input" in malformed.err
