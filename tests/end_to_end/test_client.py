"""The public client on a whole installation: tasks, typed results, waits, lists and errors, in both forms of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel, field_validator

from tenure import (
    AlreadyExists,
    AssistantMessageEvent,
    BudgetExceeded,
    BudgetPolicy,
    Client,
    InvalidRequest,
    LiveTextEvent,
    NotFound,
    ResultMismatch,
    Source,
    SourceKind,
    SyncClient,
    SyncTask,
    Task,
    TaskCancelled,
    TaskChangeEvent,
    TaskFailed,
    TaskPolicy,
    TaskState,
    TaskTimedOut,
    TenureError,
    ToolOutcomeEvent,
    TransitionEvent,
    Unavailable,
    WaitKind,
    WrongState,
)
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
HELLO = "Hello! I am a simulated model. What shall we do?"


class Lines(BaseModel):
    lines: int


class ManyLines(BaseModel):
    lines: int

    @field_validator("lines")
    @classmethod
    def many(cls, lines: int) -> int:
        if lines < 2:
            raise ValueError("too few")
        return lines


@dataclass
class LinesRecord:
    lines: int
    comment: str | None = None


class LinesDict(TypedDict):
    lines: int


@pytest.fixture
def address(installation: Installation) -> str:
    return installation.stack.gateway_address


async def until_waiting(task: Task[Any]) -> TransitionEvent:
    """The transition into the wait, as soon as it is recorded."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in task.events():
            if isinstance(event, TransitionEvent) and event.wait is not None:
                return event
    raise AssertionError("the task ended without a wait")


async def test_a_task_is_submitted_followed_and_read(address: str) -> None:
    async with Client(address) as client:
        task = await client.submit("find out", model="sim-hello", tools=[], labels={"a": "b"}, max_steps=7, timeout=60)
        assert (task.state, task.info.tools, task.info.labels) == (TaskState.QUEUED, (), {"a": "b"})
        assert (task.info.limits.max_steps, task.info.limits.timeout_seconds) == (7, 60.0)
        events = [event async for event in task.events()]
        assert await task.result() == HELLO
        assert (task.state, task.info.ended, task.info.step) == (TaskState.SUCCEEDED, True, 1)
        recorded = [event for event in events if event.sequence is not None]
        assert [event.sequence for event in recorded] == list(range(1, len(recorded) + 1))
        assert recorded == [event async for event in task.entries()]
        assert recorded[3:] == [event async for event in task.events(after=3, live=False)]
        [answer] = [event for event in events if isinstance(event, AssistantMessageEvent)]
        live = "".join(event.text for event in events if isinstance(event, LiveTextEvent))
        assert (answer.text, HELLO.startswith(live)) == (HELLO, True)
        assert task.to_json()["state"] == "SUCCEEDED"


async def test_a_sync_client_does_the_same_in_a_running_loop(address: str) -> None:
    """As in a notebook, whose main thread has a loop already."""
    assert asyncio.get_running_loop().is_running()
    with SyncClient(address) as client:
        task = client.submit("find out", model="sim-hello", result=None)
        sequences = [event.sequence for event in task.events(live=False)]
        assert sequences == list(range(1, len(sequences) + 1))
        assert (task.result(), task.state) == (HELLO, TaskState.SUCCEEDED)
        assert isinstance(client.get(task.id), SyncTask)
        assert task.id in {each.id for each in client.tasks(state="SUCCEEDED", limit=20)}
        assert client.raw.tasks.GetTask(api.GetTaskRequest(task_id=task.id)).task.task_id == task.id
        watched = list(client.raw.tasks.WatchTask(api.WatchTaskRequest(task_id=task.id)))
        assert [message.entry.sequence for message in watched if message.HasField("entry")] == sequences


async def test_many_threads_use_one_sync_client(address: str) -> None:
    with SyncClient(address) as client:

        def work(number: int) -> tuple[str, str]:
            task = client.submit(f"goal {number}", model="sim-hello")
            return task.result(timeout=PATIENCE_SECONDS), task.info.goal

        done = await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(8)))
    assert done == [(HELLO, f"goal {number}") for number in range(8)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Lines, Lines(lines=1)),
        pytest.param(LinesRecord, LinesRecord(1), marks=pytest.mark.faults),
        pytest.param(LinesDict, {"lines": 1}, marks=pytest.mark.faults),
        pytest.param(Lines.model_json_schema(), {"lines": 1}, marks=pytest.mark.faults),
    ],
    ids=["pydantic", "dataclass", "TypedDict", "JSON Schema"],
)
async def test_a_result_has_the_type_that_was_asked_for(address: str, result: Any, expected: Any) -> None:
    """The agent's first two answers do not fit, so the schema is checked where it has to be: by the worker."""
    async with Client(address) as client:
        task = await client.submit("count", model="sim-e2e-shaped", result=result)
        assert await task.result() == expected
        assert task.info.result_data == {"lines": 1}
        kinds = [event.kind async for event in task.entries()]
        assert kinds.count("result_rejected") == 2
        assert await (await client.get(task.id, result=result)).result() == expected
        assert await (await client.get(task.id)).result() == '{"lines": 1}'


async def test_a_result_that_its_model_refuses_is_a_mismatch(address: str) -> None:
    """The schema of a model says less than its validators."""
    async with Client(address) as client:
        task = await client.submit("count", model="sim-e2e-shaped", result=ManyLines)
        with pytest.raises(ResultMismatch, match="too few") as mismatch:
            await task.result()
        assert isinstance(mismatch.value.__cause__, ValueError)
        with pytest.raises(TypeError, match="cannot be the type of a result"):
            await client.submit("count", result=set)


async def test_an_agent_reads_an_approval_and_a_denial(address: str) -> None:
    async with Client(address) as client:
        for verdict in ("approve", "deny"):
            task = await client.submit("go on", model="sim-approval")
            wait = (await until_waiting(task)).wait
            assert wait is not None
            assert (wait.kind, wait.question, wait.options) == (WaitKind.APPROVAL, "May I go on?", ("approve", "deny"))
            if verdict == "approve":
                await task.approve(wait, comment="well")
            else:
                await task.deny(wait, reason="well")
            result = await task.result()
            assert (f'"decision": "{verdict}"' in result, '"comment": "well"' in result) == (True, True), result
            with pytest.raises(WrongState) as over:
                await task.approve(wait)
            assert over.value.reason in {"WAIT_OVER", "WRONG_STATE"}
            assert "refresh" in over.value.hint


async def test_a_tool_call_runs_as_approved_and_only_once(installation: Installation, address: str) -> None:
    file, approved = uuid.uuid4().hex, ["append_record_unsafe"]
    async with Client(address) as client:
        task = await client.submit(file, model="sim-e2e-leave", approve_tools=approved)
        first = await until_waiting(task)
        assert first.wait is not None
        assert (first.wait.kind, first.wait.arguments["line"]) == (WaitKind.TOOL_APPROVAL, "first")
        await task.approve(first.wait, arguments={**first.wait.arguments, "line": "edited"}, request_id="mine")
        await task.approve(first.wait, arguments={**first.wait.arguments, "line": "edited"}, request_id="mine")
        with pytest.raises(AlreadyExists):
            await task.deny(first.wait, request_id="mine")
        async for event in task.events(after=first.sequence or 0):
            if isinstance(event, TransitionEvent) and event.wait is not None and event.wait != first.wait:
                await task.deny(event.wait)
        assert await task.result() == "That was it."
    assert installation.effects(file) == ["edited"]


async def test_a_question_and_an_event_are_answered(address: str) -> None:
    async with Client(address) as client:
        asked = await client.submit("x", model="sim-question")
        wait = (await until_waiting(asked)).wait
        assert wait is not None
        with pytest.raises(InvalidRequest, match="has no option 'approve'") as refused:
            await asked.approve(wait)
        assert "task.answer" in refused.value.hint
        await asked.answer(wait, "blue")
        assert "blue" in await asked.result()
        name = f"event-{uuid.uuid4().hex}"
        waiting = await client.submit(name, model="sim-event")
        wait = (await until_waiting(waiting)).wait
        assert wait is not None
        assert (wait.kind, wait.correlation_id) == (WaitKind.EVENT, name)
        assert await client.signal(name, {"n": 7}) == waiting.id
        assert '"n": 7' in json.dumps(json.loads((await outcomes(waiting))[0]))
        assert await client.signal(f"{name}-later", 1) == ""


async def outcomes(task: Task[Any]) -> list[str]:
    await task.wait(timeout=PATIENCE_SECONDS)
    return [event.content async for event in task.entries() if isinstance(event, ToolOutcomeEvent)]


async def test_a_task_at_its_cap_gets_more_budget(address: str) -> None:
    async with Client(address) as client:
        policy = TaskPolicy(on_budget=BudgetPolicy.ASK)
        task = await client.submit("x", model="sim-e2e-priced", max_cost=0.31, policy=policy)
        assert task.info.limits.max_cost_usd == Decimal("0.31")
        wait = (await until_waiting(task)).wait
        assert wait is not None
        assert wait.budget_need is not None
        assert (wait.kind, wait.budget_need.limit) == (WaitKind.BUDGET, "MONEY_LIMIT")
        with pytest.raises(TenureError, match="too small") as small:
            await task.approve(wait, extra_cost="0.01")
        assert "needs" in small.value.hint
        await task.approve(wait, extra_cost=1)
        assert await task.result() == "That was it."
        assert task.info.budget.max_cost_usd == Decimal("1.31")
        assert Decimal("0.25") < task.info.cost_usd < Decimal("0.4")


async def test_each_ending_has_its_error(address: str) -> None:
    async with Client(address) as client:
        failing = await client.submit("x", model="sim-no-such-scenario")
        with pytest.raises(TaskFailed) as failed:
            await failing.result()
        assert (failed.value.reason, failed.value.state) == ("MODEL_REJECTED", TaskState.FAILED)
        assert failed.value.details in str(failed.value)
        assert "the name of the model" in failed.value.hint
        with pytest.raises(BudgetExceeded) as spent:
            await (await client.submit("x", model="sim-e2e-priced", max_cost=0.31)).result()
        assert (spent.value.reason, spent.value.task.result[:8]) == ("MONEY_LIMIT", "It is wo")
        late = await client.submit("x", model="sim-e2e-slow-answer", timeout=timedelta(seconds=1))
        with pytest.raises(TaskTimedOut):
            await late.result()
        stopped = await client.submit("x", model="sim-e2e-slow-answer")
        with pytest.raises(TimeoutError):
            await stopped.result(timeout=0.2)
        await stopped.cancel(reason="enough")
        with pytest.raises(TaskCancelled):
            await stopped.result()


async def test_each_refusal_says_what_to_do(address: str) -> None:
    async with Client(address) as client:
        nobody = str(uuid.uuid4())
        with pytest.raises(NotFound, match="To do: check the id and the tenant"):
            await client.get(nobody)
        refusals: list[tuple[str, Callable[[], Any]]] = [
            ("tools", lambda: client.submit("x", tools=["read_fil"])),
            ("tools", lambda: client.submit("x", tools="read_file")),
            ("max_cost", lambda: client.submit("x", max_cost=-1)),
            ("max_steps", lambda: client.submit("x", max_steps=-1)),
            ("timeout", lambda: client.submit("x", timeout=30 * 3600)),
            ("start_at", lambda: client.submit("x", start_at=datetime(2026, 1, 1))),  # noqa: DTZ001  it is refused
            ("priority", lambda: client.submit("x", priority="urgent")),
            ("goal", lambda: client.submit("")),
            ("result", lambda: client.submit("x", result={"type": "objekt"})),
            ("labels", lambda: client.submit("x", labels={"": "x"})),
            ("input", lambda: client.submit_function("x", {1, 2})),
        ]
        for argument, submit in refusals:
            with pytest.raises(InvalidRequest) as refused:
                await submit()
            assert refused.value.field.split("[")[0] == argument, refused.value
            assert refused.value.hint
        with pytest.raises(InvalidRequest, match="state: must be one of QUEUED"):
            await anext(client.tasks(state="done"))
        request_id = uuid.uuid4().hex
        first = await client.submit("x", model="sim-hello", request_id=request_id)
        assert (await client.submit("x", model="sim-hello", request_id=request_id)).id == first.id
        with pytest.raises(AlreadyExists, match="use a new request_id"):
            await client.submit("y", model="sim-hello", request_id=request_id)
        await first.wait()
        with pytest.raises(WrongState):
            await first.send("more")
    for wrong in ("http://x:1", "a b", "x:y"):
        with pytest.raises(InvalidRequest, match="must be host:port"):
            Client(wrong)
    with pytest.raises(InvalidRequest, match="by TLS only"):
        Client("10.0.0.1:8470", api_key="tnr_x")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen, so it refuses, and no other process gets the port
        nowhere = Client(f"127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(Unavailable, match=f"no gateway answers at 127.0.0.1:{bound.getsockname()[1]}: start it"):
            await nowhere.get(nobody)
        await nowhere.close()


async def test_tasks_are_listed_whole_and_by_pages(address: str) -> None:
    run = {"run": uuid.uuid4().hex}
    async with Client(address) as client:
        source = Source(SourceKind.CONVERSATION, run["run"])
        ids = [(await client.submit("x", queue="none", labels=run, source=source)).id for _ in range(5)][::-1]
        assert [task.id async for task in client.tasks(labels=run, state=["QUEUED", TaskState.RUNNING])] == ids
        assert [task.id async for task in client.tasks(source=source, limit=2)] == ids[:2]
        first = await client.tasks_page(labels=run, page_size=3)
        second = await client.tasks_page(labels=run, page_size=3, page_token=first.next_page_token)
        assert [task.task_id for page in (first, second) for task in page.tasks] == ids
        assert (bool(first.next_page_token), second.next_page_token) == (True, "")
        for task_id in ids:
            await (await client.get(task_id)).cancel()
        assert [task.id async for task in client.tasks(labels=run, state="queued")] == []


async def test_changes_of_all_tasks_resume_behind_a_cursor(address: str) -> None:
    run = {"run": uuid.uuid4().hex}
    async with Client(address) as client:
        changes = client.changes(labels=run)
        assert (await anext(changes)).kind == "heartbeat"
        task = await client.submit("x", model="sim-hello", labels=run)
        events = [event async for event in until_ended(changes)]
        assert [event.state for event in events] == [TaskState.QUEUED, TaskState.RUNNING, TaskState.SUCCEEDED]
        assert {event.task_id for event in events} == {task.id}
        later = client.changes(labels=run, after=events[0].cursor)
        assert [event.sequence async for event in until_ended(later)] == [event.sequence for event in events[1:]]


async def until_ended(changes: Any) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in changes:
            if isinstance(event, TaskChangeEvent):
                yield event
                if event.task.ended and event.state is TaskState.SUCCEEDED:
                    await changes.aclose()
                    return


async def test_files_tools_and_an_explanation(address: str, tmp_path: Any) -> None:
    async with Client(address) as client:
        task = await client.submit("a note", model="sim-one-tool")
        await task.wait()
        assert [(file.path, file.size_bytes) async for file in task.files()] == [("note.txt", 6)]
        assert await task.read_file("note.txt") == b"a note"
        assert await task.download_file("note.txt", tmp_path / "note") == 6
        assert (tmp_path / "note").read_bytes() == b"a note"
        with pytest.raises(NotFound, match="lists the files"):
            await task.read_file("absent.txt")
        assert any("SUCCEEDED" in line for line in await task.explain())
        assert {"read_file", "write_file"} <= {tool.name for tool in await client.tools()}


async def test_a_client_of_another_event_loop_says_so(address: str) -> None:
    async with Client(address) as client:
        with pytest.raises(RuntimeError, match="use SyncClient"):
            await asyncio.to_thread(lambda: asyncio.run(client.get("x")))
    with pytest.raises(RuntimeError, match="is closed"):
        await client.get("x")


async def test_a_closed_sync_client_ends_its_calls(address: str) -> None:
    """A thread that watches a task does not outlive the client."""
    client = SyncClient(address)
    task = client.submit("x", model="sim-e2e-slow-answer")
    calls = [asyncio.create_task(asyncio.to_thread(call)) for call in (lambda: list(task.events()), task.result)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(client._calls._running) < len(calls):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(client.close)
        for call in calls:
            with pytest.raises(Unavailable, match="closed during the call"):
                await call
    async with Client(address) as other:
        await (await other.get(task.id)).cancel()


def test_both_clients_have_the_same_methods() -> None:
    for one, other in ((Client, SyncClient), (Task, SyncTask)):
        public = {name for name in vars(one) if not name.startswith("_")}
        assert public == {name for name in vars(other) if not name.startswith("_")}
        assert all(inspect.getdoc(getattr(one, name)) for name in public)
