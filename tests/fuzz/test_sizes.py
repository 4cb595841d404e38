"""Sizes near the limits of others: etcd's requests, gRPC's messages, Postgres' parameters. What is accepted works.

A limit that a field has says nothing about many such fields together: a page of the largest tasks, a batch of claims
with the longest lists of tools, a ledger of the largest commits.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import Any, Final

import pytest

from tenure.domain.errors import InvalidRequest, SequenceConflict
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import ledger_pb2, schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.validators import common
from tenure.validators.rules import bounds
from tests.fuzz.calling import FUZZED, Code, call, check_answer
from tests.fuzz.methods import method_named
from tests.fuzz.world import Owner, World
from tests.support.patience import AGAIN, CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.faults,
]

COMMIT = method_named("checkpoint-CheckpointService.Commit")
COMMITS = method_named("checkpoint-CheckpointService.CommitStream")
SUBMIT = method_named("gateway-TaskService.SubmitTask")
SESSION = method_named("coordinator-CoordinatorService.Session")
OWN_LOOP: Final = "of-my-own"
"""The names of such a loop's tools are not compared with those of the tool service."""
MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_SYSTEM_BYTES: Final = bounds(task_pb2.AgentSpec, "system").max_bytes
MAX_LABELS: Final = bounds(task_pb2.TaskSpec, "labels").max_items
MAX_HOLDINGS: Final = bounds(coordinator_pb.Hello, "holdings").max_items
SCHEMA: Final = '{"type": "object", "description": "%s"}'


def _spec(**fields: Any) -> dict[str, Any]:
    return {"goal": "go", **fields}


BOUNDED: Final[dict[str, tuple[int, Any]]] = {
    "goal": (common.MAX_GOAL_BYTES, lambda size: _spec(goal="x" * size)),
    "system": (MAX_SYSTEM_BYTES, lambda size: _spec(agent=task_pb2.AgentSpec(system="x" * size))),
    "labels": (MAX_LABELS, lambda size: _spec(labels={f"key-{n}": "v" for n in range(size)})),
    "label": (200, lambda size: _spec(labels={"key": "\u20ac" * size})),
    "approve_tools": (
        bounds(task_pb2.AgentSpec, "approve_tools").max_items,
        lambda size: _spec(agent=task_pb2.AgentSpec(loop=OWN_LOOP, approve_tools=[f"t-{n:061d}" for n in range(size)])),
    ),
    "input_json": (
        common.MAX_CONTROL_JSON_BYTES,
        lambda size: _spec(control=task_pb2.ControlWork(function="f", input_json='"' + "x" * (size - 2) + '"')),
    ),
    "request_id": (128, lambda size: _spec(request_id=uuid.uuid4().hex + "\u20ac" * (size - 32))),
}
"""Fields of a submit with their limits, and a request with so much in the field."""


@pytest.mark.parametrize("name", BOUNDED)
async def test_a_field_is_accepted_up_to_its_limit_and_then_works(world: World, name: str) -> None:
    limit, spec = BOUNDED[name]
    queue = f"size-{uuid.uuid4().hex[:8]}"
    taken = [await _submitted(world, queue, spec(size)) for size in (limit - 1, limit)]
    with pytest.raises(InvalidRequest):
        await _submitted(world, queue, spec(limit + 1))
    loop = {"input_json": "control.f", "approve_tools": OWN_LOOP}.get(name, "messages")
    await _all_are_done(world, queue, taken, loops=[loop])


@pytest.mark.parametrize("names", [100, 255, 256, 257, 330, 2000, 15_000])
async def test_tasks_with_the_longest_tool_lists_are_granted(world: World, names: int) -> None:
    """As many as one batch of claims has, which is one request to etcd."""
    queue = f"tools-{names}"
    agent = task_pb2.AgentSpec(loop=OWN_LOOP, tools=task_pb2.ToolAllowlist(names=[f"t-{n:062d}" for n in range(names)]))
    if names > bounds(task_pb2.ToolAllowlist, "names").max_items:
        with pytest.raises(InvalidRequest):
            await _submitted(world, queue, _spec(agent=agent))
        return
    taken = [await _submitted(world, queue, _spec(agent=agent))]
    many = min(100, 40 * 2**20 // (65 * names))
    specs = [_spec(agent=agent) for _ in range(many - 1)] + [_spec()]
    taken += await asyncio.gather(*(_submitted(world, queue, spec) for spec in specs))
    await _all_are_done(world, queue, taken, loops=[OWN_LOOP, "messages"])


async def test_the_largest_tasks_and_schedules_can_be_listed(world: World) -> None:
    """A dozen of them is more than a message of gRPC holds, and a page may have 500."""
    queue = f"large-{uuid.uuid4().hex[:8]}"
    spec = _spec(
        goal="x" * common.MAX_GOAL_BYTES,
        agent=task_pb2.AgentSpec(system="y" * MAX_SYSTEM_BYTES),
        result_schema_json=SCHEMA % ("z" * 14_000),
        labels={f"key-{n}": "\u20ac" * 200 for n in range(MAX_LABELS)},
    )
    taken = await asyncio.gather(*(_submitted(world, queue, spec) for _ in range(12)))
    owner = await _granted(world, queue, len(taken))
    try:
        assert await _listed(world, queue) == set(taken)
        await _changes_are_seen(world, queue, set(taken))
    finally:
        await owner.break_off()
    await _schedules_are_listed(world, spec)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
async def test_the_largest_commits_can_be_read_again(world: World, beyond: int) -> None:
    """Six of them are more than a message of gRPC holds."""
    owner = await world.owned()
    for _ in range(6):
        request = _commit(owner, ledger_pb2.UserMessage(text=""))
        fill = common.MAX_COMMIT_BYTES + beyond - request.ByteSize()
        request.entries[0].body.user_message.text = "x" * fill
        while request.ByteSize() > common.MAX_COMMIT_BYTES + beyond:
            fill -= request.ByteSize() - common.MAX_COMMIT_BYTES - beyond
            request.entries[0].body.user_message.text = "x" * fill
        answer = await call(world.bare["checkpoint"], COMMIT, [request])
        check_answer(COMMIT, [request], answer)
        if answer.code is not Code.OK:
            assert beyond == 1, answer
            return
        owner.next_number, owner.known_sequence = owner.next_number + 1, answer.messages[0].sequence
    assert beyond < 1
    await _is_readable(world, owner.task_id, owner.known_sequence)
    await world.cancel(owner.task_id)
    await world.ends(owner.task_id)


async def test_many_long_words_from_others_do_not_lose_a_commit(world: World) -> None:
    """They come with the commit's answer, which is one message; too many of them make the owner open again."""
    owner = await world.owned()
    for _ in range(20):
        words = api.SendMessageRequest(task_id=owner.task_id, text="x" * common.MAX_GOAL_BYTES)
        await world.tasks.SendMessage(words, timeout=CALL_SECONDS)
    for _ in range(3):
        request = _commit(owner, ledger_pb2.UserMessage(text="mine"))
        try:
            answer = await world.ledger.Commit(request, timeout=CALL_SECONDS)
        except SequenceConflict:
            assert world.worker is not None
            header = await world.worker.open(owner.grant)
            owner.next_number, owner.known_sequence = header.next_commit_number, header.task.sequence
        else:
            await _is_readable(world, owner.task_id, answer.sequence)
            await world.cancel(owner.task_id)
            await world.ends(owner.task_id)
            return
    raise AssertionError("no commit was taken")


@pytest.mark.parametrize("size", [common.MAX_FRAME_BYTES - 1, common.MAX_FRAME_BYTES, common.MAX_FRAME_BYTES + 1])
async def test_a_frame_of_any_size_is_answered(world: World, size: int) -> None:
    """What is in it is refused one by one: the tokens are of no task."""
    frame = ledger_pb.CommitStreamRequest()
    for tag in range(20):
        tagged = frame.commits.add(tag=tag + 1)
        tagged.commit.commit_id, tagged.commit.traceparent = str(uuid.uuid4()), "x" * 100_000
    last = frame.commits[-1].commit
    while frame.ByteSize() != size:
        last.traceparent = "x" * (len(last.traceparent) + size - frame.ByteSize())
    answer = await call(world.bare["checkpoint"], COMMITS, [frame], seconds=CALL_SECONDS)
    check_answer(COMMITS, [frame], answer)
    if size <= common.MAX_FRAME_BYTES:
        assert answer.code is Code.OK, answer
        assert sum(len(one.results) for one in answer.messages) == len(frame.commits)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
async def test_a_request_at_grpcs_limit_is_refused_with_a_reason(world: World, beyond: int) -> None:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="x"))
    while (left := MESSAGE_BYTES + beyond - request.ByteSize()) > 0:
        request.spec.goal += "x" * max(1, left - 3)
    request.spec.goal = request.spec.goal[: len(request.spec.goal) + MESSAGE_BYTES + beyond - request.ByteSize()]
    answer = await call(world.bare["gateway"], SUBMIT, [request])
    check_answer(SUBMIT, [request], answer)
    assert answer.code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("count", [MAX_HOLDINGS, MAX_HOLDINGS + 1])
async def test_a_hello_with_the_most_holdings_is_answered(world: World, count: int) -> None:
    holdings = [coordinator_pb.Holding(task_id=str(uuid.uuid4()), claim_id=str(uuid.uuid4())) for _ in range(count)]
    hello = coordinator_pb.Hello(worker_id="fuzz-decoy", queues=["none"], holdings=holdings, session_secret=bytes(32))
    async with asyncio.timeout(PATIENCE_SECONDS):
        if count > MAX_HOLDINGS:
            sent = [coordinator_pb.SessionRequest(hello=hello)]
            answer = await call(world.bare["coordinator"], SESSION, sent, seconds=CALL_SECONDS)
            assert answer.code is Code.INVALID_ARGUMENT, answer
            return
        worker = ScriptedWorker(world.stack.services["coordinator"].address, world.ledger)
        worker.hello.CopyFrom(hello)
        await worker.attach()
        assert len(worker.lost) == count
        await worker.break_off()


async def _submitted(world: World, queue: str, spec: dict[str, Any]) -> str:
    fields = {"request_id": str(uuid.uuid4()), **spec}
    request = api.SubmitTaskRequest(request_id=fields.pop("request_id"), spec=task_pb2.TaskSpec(queue=queue, **fields))
    submit = partial(world.tasks.SubmitTask, request, timeout=CALL_SECONDS)
    return str((await retrying(submit, AGAIN)).task.task_id)  # only so many new schemas are checked at a time


async def _granted(world: World, queue: str, count: int, **hello: Any) -> ScriptedWorker:
    address = world.stack.services["coordinator"].address
    worker = ScriptedWorker(address, world.ledger, worker_id=f"w-{queue}", queues=[queue], free_slots=count, **hello)
    return await worker.attach()


async def _all_are_done(world: World, queue: str, task_ids: list[str], **hello: Any) -> None:
    """Each is listed, granted, opened and ended."""
    assert await _listed(world, queue) == set(task_ids)
    worker = await _granted(world, queue, len(task_ids), **hello)
    try:
        seen = set[str]()
        while seen != set(task_ids):
            grant = await worker.next_grant(PATIENCE_SECONDS / 2)
            seen.add(grant.task_id)
            await worker.succeed(grant)
    except TimeoutError:
        raise AssertionError(f"only {len(seen)} of {len(task_ids)} tasks were granted") from None
    finally:
        await worker.break_off()
    world.check_processes()


async def _listed(world: World, queue: str) -> set[str]:
    """By pages as large as they may be."""
    result, token = set[str](), ""
    while True:
        request = api.ListTasksRequest(filter=task_pb2.TaskFilter(queue=queue), page_size=500, page_token=token)
        page = await world.tasks.ListTasks(request, timeout=CALL_SECONDS)
        result |= {task.task_id for task in page.tasks}
        if not (token := page.next_page_token):
            return result


async def _changes_are_seen(world: World, queue: str, task_ids: set[str]) -> None:
    seen = set[str]()
    request = api.WatchTasksRequest(filter=task_pb2.TaskFilter(queue=queue))
    watching = world.tasks.WatchTasks(request, timeout=CALL_SECONDS)
    events = aiter(watching)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(events)).HasField("heartbeat")  # it watches from here on
        await asyncio.gather(*(world.cancel(task_id) for task_id in task_ids))
        async for event in events:
            if event.HasField("change"):
                seen.add(event.change.task_id)
            if seen >= task_ids:
                break
    watching.cancel()
    await asyncio.gather(*(world.ends(task_id) for task_id in task_ids))


async def _schedules_are_listed(world: World, spec: dict[str, Any]) -> None:
    async with open_channel(world.stack.services["gateway"].address, tenant=FUZZED) as channel:
        stub: Any = ScheduleServiceStub(channel)
        for number in range(12):
            request = schedule_service_pb2.CreateScheduleRequest(
                name=f"large-{number}", cron="0 7 * * *", spec=task_pb2.TaskSpec(**spec)
            )
            await stub.CreateSchedule(request, timeout=CALL_SECONDS)
        result, token = set[str](), ""
        while True:
            inner_request = schedule_service_pb2.ListSchedulesRequest(page_size=500, page_token=token)
            page = await stub.ListSchedules(inner_request, timeout=CALL_SECONDS)
            result |= {one.name for one in page.schedules}
            if not (token := page.next_page_token):
                break
    assert result >= {f"large-{number}" for number in range(12)}


def _commit(owner: Owner, words: ledger_pb2.UserMessage) -> ledger_pb.CommitRequest:
    entry = ledger_pb2.NewEntry(step=1, body=ledger_pb2.EntryBody(user_message=words))
    return ledger_pb.CommitRequest(
        token=owner.token,
        commit_id=str(uuid.uuid4()),
        commit_number=owner.next_number,
        known_sequence=owner.known_sequence,
        entries=[entry],
    )


async def _is_readable(world: World, task_id: str, sequence: int) -> None:
    """By pages, by watching and by its next owner."""
    after = 0
    while after < sequence:
        request = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after, page_size=1000)
        page = (await world.tasks.ListTaskEntries(request, timeout=CALL_SECONDS)).entries
        assert page, f"nothing after {after} of {sequence}"
        after = page[-1].sequence
    watching = world.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
    async for event in watching:
        if event.HasField("entry") and event.entry.sequence >= sequence:
            break
    watching.cancel()
    await world.tasks.ExplainTask(api.ExplainTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
