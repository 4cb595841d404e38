"""`tenure tasks replay` that does not come to its end: the new task must not stay in a queue without workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import click
import pytest

from devstack.data_dir import hold_folder, write_addresses
from tenure.cli import replay
from tenure.cli.context import Context
from tenure.cli.output import make_console
from tenure.domain.errors import WrongState
from tenure.v1 import task_pb2
from tenure.v1.task_service_pb2 import SubmitTaskRequest


class Gateway:
    """Takes a task that never ends. `cancelled`: the reasons of its cancels."""

    def __init__(self, *, has_ended: bool = False) -> None:
        self.waits, self.cancelled, self._has_ended = asyncio.Event(), list[str](), has_ended

    async def submit(self, _goal: str, *, request: SubmitTaskRequest) -> task_pb2.Task:
        assert request.spec.queue
        return task_pb2.Task(task_id="t")

    async def wait(self, _task_id: str) -> task_pb2.Task:
        self.waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def cancel(self, task_id: str, reason: str) -> None:
        assert task_id == "t"
        self.cancelled.append(reason)
        if self._has_ended:
            raise WrongState("the task has ended")


def replaying(gateway: Gateway, tmp_path: Path) -> asyncio.Task[Any]:
    context = Context("127.0.0.1:1", None, as_json=False, data_dir=tmp_path, console=make_console(), environment={})
    request = SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="x", queue="replay-1"))
    return asyncio.create_task(replay.replay_in_task(context, cast("Any", gateway), request, []))


@pytest.mark.parametrize("has_ended", [False, True])
async def test_ctrl_c_cancels_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_ended: bool) -> None:
    @asynccontextmanager
    async def worker(_environment: Mapping[str, str], _program: Path | None) -> AsyncIterator[asyncio.Task[str]]:
        running = asyncio.create_task(asyncio.sleep(3600, "log"))
        yield running
        running.cancel()

    monkeypatch.setattr(replay, "replay_worker", worker)
    gateway = Gateway(has_ended=has_ended)
    task = replaying(gateway, tmp_path)
    await gateway.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gateway.cancelled == ["the replay was interrupted"]


async def test_a_worker_that_ends_too_early_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the end of its log, also if the task ended at the same moment."""

    @asynccontextmanager
    async def worker(_environment: Mapping[str, str], _program: Path | None) -> AsyncIterator[asyncio.Task[str]]:
        yield asyncio.create_task(asyncio.sleep(0, "no key of the model"))

    monkeypatch.setattr(replay, "replay_worker", worker)
    gateway = Gateway(has_ended=True)
    with pytest.raises(click.ClickException, match="no key of the model"):
        await replaying(gateway, tmp_path)
    assert gateway.cancelled == ["the worker of the replay has ended"]


async def test_a_long_line_of_the_log_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the log is what a person needs, however long its lines are."""
    program = "import sys; sys.stderr.write('x' * 300_000 + '\\nno key of the model\\n')"
    monkeypatch.setattr(replay, "command_line", lambda _name: [sys.executable, "-c", program])
    async with replay.replay_worker({}) as died:
        log = await died
    assert log.endswith("x\nno key of the model")
    assert len(log) <= 32 * 1024


@pytest.mark.parametrize(("address", "is_own"), [("127.0.0.1:1", True), ("127.0.0.1:2", True), ("gateway:8470", False)])
def test_a_replay_runs_where_its_task_is_submitted(tmp_path: Path, address: str, is_own: bool) -> None:
    """Its worker went to the stack of the folder also when the task went to another gateway, and never got it."""
    context = Context(address, "t", True, tmp_path, make_console(), {"TENURE_WORKER_TOOLS_ADDRESS": "given"})
    with hold_folder(tmp_path):
        write_addresses(tmp_path, {"gateway": "127.0.0.1:1,127.0.0.1:2", "coordinator": "own", "tools": "own"})
        environment = replay.worker_environment(context, "queue")
    assert environment.get("TENURE_WORKER_COORDINATOR_ADDRESS") == ("own" if is_own else None)
    assert environment["TENURE_WORKER_TOOLS_ADDRESS"] == "given"
