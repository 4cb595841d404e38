"""A watched task that comes to wait for a person says how it is answered."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from tenure.cli.context import Context
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.domain.errors import Unavailable
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.patience import CALL_SECONDS

TASK = "01a2025d-5126-7000-8000-000000000000"


class Waiting:
    """A client of a task whose last entry is its wait."""

    def __init__(self) -> None:
        self.task = task_pb2.Task(task_id=TASK, state=task_pb2.TASK_STATE_WAITING_USER)
        self.task.wait.wait_id, self.task.wait.kind = "w8", task_pb2.WAIT_KIND_APPROVAL
        self.task.wait.options.extend(["approve", "deny"])

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[api.WatchTaskResponse]:
        event = api.WatchTaskResponse()
        event.entry.body.transition.to_state = task_pb2.TASK_STATE_WAITING_USER
        event.entry.body.transition.wait.CopyFrom(self.task.wait)
        yield event

    async def get(self, _task_id: str) -> task_pb2.Task:
        return self.task


async def test_a_watched_wait_prints_the_answering_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(file=io.StringIO(), width=120)
    context = Context("127.0.0.1:1", "default", False, Path(), console, {})
    await watch_task(context, cast("Client", Waiting()), TASK, live=False)
    shown = cast("io.StringIO", console.file).getvalue() + capsys.readouterr().out
    assert "tenure resume 01a2025d-5126 --wait w8 --approve" in shown


class Away:
    """The stub of a gateway that breaks a stream, is away for one attempt, and serves again unless it is gone."""

    def __init__(self, *, gone: bool) -> None:
        self._gone, self._attempts = gone, 0

    async def GetTask(self, request: api.GetTaskRequest) -> api.GetTaskResponse:
        return api.GetTaskResponse(task=task_pb2.Task(task_id=request.task_id, state=task_pb2.TASK_STATE_CANCELLED))

    async def WatchTask(self, _request: Any) -> AsyncIterator[api.WatchTaskResponse]:
        self._attempts += 1
        if self._attempts > 1 and (self._gone or self._attempts == 2):
            raise Unavailable("connection refused")
        yield api.WatchTaskResponse(heartbeat=api.Heartbeat())
        if self._attempts == 1:
            raise Unavailable("the stream broke")


def watching(*, gone: bool) -> tuple[Context, Client, io.StringIO]:
    client, shown = Client("127.0.0.1:1"), io.StringIO()
    client.tasks = cast("Any", Away(gone=gone))
    return Context("127.0.0.1:1", "default", False, Path(), Console(file=shown, width=120), {}), client, shown


async def test_a_watch_says_that_the_gateway_is_away() -> None:
    """It was silent for a minute."""
    context, client, shown = watching(gone=False)
    await watch_task(context, client, TASK)
    assert shown.getvalue().count("no gateway answers at 127.0.0.1:1; trying again for a minute") == 1


async def test_a_watch_that_gives_up_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tenure.client.reconnect.RECONNECT_SECONDS", 0.0)
    context, client, _shown = watching(gone=True)
    with pytest.raises(Unavailable):
        await watch_task(context, client, TASK)
    assert "the task continues. Watch it again: tenure watch 01a2025d-5126" in capsys.readouterr().err


class Queued:
    """A client of a task that no worker takes until it is asked why."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[api.WatchTaskResponse]:
        event = api.WatchTaskResponse()
        event.entry.body.transition.to_state = task_pb2.TASK_STATE_QUEUED
        event.entry.record_time.FromSeconds(1_800_000_000)
        yield event
        async with asyncio.timeout(CALL_SECONDS):
            await self.asked.wait()

    async def explain(self, _task_id: str) -> api.ExplainTaskResponse:
        self.asked.set()
        lines = ("QUEUED for 6 s", "No worker serves queue default and nosuch", "Its deadline …", "It needs: a worker")
        return api.ExplainTaskResponse(lines=lines)

    async def get(self, _task_id: str) -> task_pb2.Task:
        return task_pb2.Task(task_id=TASK, state=task_pb2.TASK_STATE_CANCELLED)


async def test_a_task_that_stays_queued_shows_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an agent without a worker it printed `queued`, and nothing more for a day."""
    monkeypatch.setattr(sys.modules[watch_task.__module__], "LONG_QUEUED_SECONDS", 0.01)
    console = Console(file=io.StringIO(), width=120)
    context = Context("127.0.0.1:1", "default", False, Path(), console, {})
    await watch_task(context, cast("Client", Queued()), TASK, live=False)
    shown = cast("io.StringIO", console.file).getvalue()
    assert "No worker serves queue default and nosuch\n  It needs: a worker" in shown
    assert "deadline" not in shown


class Unsent:
    """A client of a task whose model call gives no text, until the watch has shown it."""

    def __init__(self, shown: io.StringIO) -> None:
        self._shown = shown

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[api.WatchTaskResponse]:
        running, asked = api.WatchTaskResponse(), api.WatchTaskResponse()
        running.entry.body.transition.to_state = task_pb2.TASK_STATE_RUNNING
        asked.entry.step, asked.entry.record_time.seconds = 5, 1_700_000_000
        asked.entry.body.model_attempt.model, asked.entry.body.model_attempt.outlives_worker = "m", True
        yield running
        yield asked
        async with asyncio.timeout(CALL_SECONDS):
            while "Step 5 · m" not in self._shown.getvalue():
                await asyncio.sleep(0.01)

    async def get(self, _task_id: str) -> task_pb2.Task:
        return task_pb2.Task(task_id=TASK, state=task_pb2.TASK_STATE_CANCELLED)


async def test_long_call_without_text_names_explain() -> None:
    shown = io.StringIO()
    context = Context("127.0.0.1:1", "default", False, Path(), Console(file=shown, force_terminal=True, width=120), {})
    await watch_task(context, cast("Client", Unsent(shown)), TASK)
    assert "Step 5 · m; tenure explain 01a2025d-5126 says why" in shown.getvalue()


class Parent:
    """A client of a task with sub-agents: one waits for a person already, and the budget of another becomes short."""

    def __init__(self, shown: io.StringIO) -> None:
        self._shown = shown

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[api.WatchTaskResponse]:
        for _time in range(2):
            event = api.WatchTaskResponse()
            event.entry.body.tool_intent.call_id, event.entry.body.tool_intent.tool = "1.0", "spawn_sub_agents"
            yield event
        async with asyncio.timeout(CALL_SECONDS):
            while "budget warning" not in self._shown.getvalue():
                await asyncio.sleep(0.01)

    async def watch_tasks(self, wanted: task_pb2.TaskFilter) -> AsyncIterator[api.WatchTasksResponse]:
        assert wanted.root_task_id == TASK
        yield api.WatchTasksResponse(heartbeat=api.WatchTasksHeartbeat())
        changes: tuple[tuple[str, task_pb2.TaskState.ValueType, str], ...] = (
            (TASK, task_pb2.TASK_STATE_WAITING_USER, "of the root itself"),
            (f"c{TASK[1:]}", task_pb2.TASK_STATE_RUNNING, "OPENED"),
            (f"c{TASK[1:]}", task_pb2.TASK_STATE_RUNNING, "BUDGET_WARNING"),
        )
        for task_id, state, reason in changes:
            yield api.WatchTasksResponse(change=task_pb2.TaskChange(task_id=task_id, state=state, reason=reason))

    async def list_tasks(self, wanted: task_pb2.TaskFilter) -> AsyncIterator[task_pb2.Task]:
        assert list(wanted.states) == [task_pb2.TASK_STATE_WAITING_USER]
        yield task_pb2.Task(task_id=f"b{TASK[1:]}", state=task_pb2.TASK_STATE_WAITING_USER, reason="APPROVAL")

    async def get(self, _task_id: str) -> task_pb2.Task:
        return task_pb2.Task(task_id=TASK, state=task_pb2.TASK_STATE_CANCELLED)


async def test_the_watch_of_a_root_says_what_its_sub_agents_need() -> None:
    shown = io.StringIO()
    context = Context("127.0.0.1:1", "default", False, Path(), Console(file=shown, width=120), {})
    await watch_task(context, cast("Client", Parent(shown)), TASK, live=False)
    (waits, warns) = [line.split() for line in shown.getvalue().splitlines() if "sub-agent" in line]
    assert waits[:4] == ["sub-agent", "b1a2025d-5126", "WAITING_USER", "APPROVAL"]
    assert warns[:5] == ["sub-agent", "c1a2025d-5126", "RUNNING", "budget", "warning:"]
