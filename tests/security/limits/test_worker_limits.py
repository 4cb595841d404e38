"""Limits of the calls between processes: one identity of a worker cannot take the ledger or the tools from another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from devstack import Stack
from tenure.domain.access import Role
from tenure.domain.errors import LimitReached
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.security.access_table import authority_of, issued, tenure_channel
from tests.security.limits.conftest import WORKER_STREAMS
from tests.security.processes.test_audit_of_services import commit_of, frame_of, token_of
from tests.support.grpc_limits import STREAM_ENDED_DURING_WRITE
from tests.support.noisy_tenants import Tenants
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

A_FRAME: Final = 100
TASKS: Final = 8
pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def ledger(stack: Stack, tmp_path: Path) -> AsyncIterator[Any]:
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    async with tenure_channel(stack.services["checkpoint"], tls) as channel:
        yield CheckpointServiceStub(channel)


async def commit_stream(stack: Stack, ledger: Any) -> Any:
    """A stream whose first commit has its result."""
    call = ledger.CommitStream(timeout=PATIENCE_SECONDS)
    await call.write(frame_of([commit_of(token_of(stack, "stranger"))]))
    await call.read()
    return call


async def refusal_of_stream(begin: Callable[[], Awaitable[Any]]) -> LimitReached:
    """The refusal of a stream, of the first try whose status grpc.aio does not lose."""
    while True:
        try:
            await begin()
        except LimitReached as refused:
            return refused
        except PeerFailed as lost:
            if STREAM_ENDED_DURING_WRITE not in str(lost):
                raise
        else:
            pytest.fail("the stream was not refused")


async def flood(stack: Stack, call: Any, reasons: Counter[str]) -> None:
    """Sends frame after frame, and counts the reasons of the refusals."""
    token = token_of(stack, "stranger")
    while True:
        await call.write(frame_of([commit_of(token) for _ in range(A_FRAME)]))
        answered = 0
        while answered < A_FRAME:
            results = (await call.read()).results
            answered += len(results)
            reasons.update(result.refusal.reason for result in results)


@pytest.mark.faults
async def test_a_flooding_worker_is_limited_and_others_work(both: Tenants, stack: Stack, ledger: Any) -> None:
    """The other worker repeats what its own limit refuses, until all its tasks are done."""
    reasons = Counter[str]()
    streams = [await commit_stream(stack, ledger) for _ in range(WORKER_STREAMS)]
    floods = [asyncio.create_task(flood(stack, call, reasons)) for call in streams]
    try:
        async with both.neighbour() as client:
            request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-hello")))
            tasks = [await client.submit("go on", request=request) for _ in range(TASKS)]
            ended = [await client.wait(task.task_id, PATIENCE_SECONDS) for task in tasks]
        assert {task.state for task in ended} == {task_pb2.TASK_STATE_SUCCEEDED}
        assert not any(task.done() for task in floods), "it flooded until the end"
    finally:
        for task in floods:
            task.cancel()
        await asyncio.wait(floods)
        for call in streams:
            call.cancel()
    assert reasons["REQUESTS_IN_FLIGHT"] > A_FRAME
    assert "COMMIT_QUEUE_FULL" not in reasons


async def test_a_refusal_in_a_frame_has_a_retry_time(stack: Stack, ledger: Any) -> None:
    call = ledger.CommitStream(timeout=CALL_SECONDS)
    await call.write(frame_of([commit_of(token_of(stack, "stranger")) for _ in range(2)]))
    results = list((await call.read()).results)
    while len(results) < 2:
        results += (await call.read()).results
    call.cancel()
    refusal = next(one.refusal for one in results if one.refusal.reason == "REQUESTS_IN_FLIGHT")
    assert refusal.code == 8  # RESOURCE_EXHAUSTED
    assert float(refusal.metadata["tenure-retry-after-seconds"]) > 0
    assert "the worker spiffe://tenure/worker/stranger has reached its limit" in refusal.message


async def test_open_streams_of_an_identity_are_limited(stack: Stack, ledger: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:  # streams of another test may end a moment later
            try:
                streams = [await commit_stream(stack, ledger) for _ in range(WORKER_STREAMS)]
                break
            except LimitReached:
                await asyncio.sleep(0.1)
    refusal = await refusal_of_stream(lambda: commit_stream(stack, ledger))
    assert refusal.reason == "OPEN_STREAMS"
    assert refusal.retry_after_seconds
    for call in streams:
        call.cancel()


async def test_tool_calls_in_flight_of_an_identity_are_limited(stack: Stack, tmp_path: Path) -> None:
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    execute = tools_pb.ExecuteRequest(token=token_of(stack, "stranger"), call_id="1.0", tool="x", arguments_json="{}")
    frame = tools_pb.ExecuteStreamRequest(
        calls=[tools_pb.TaggedExecute(tag=tag, call=execute) for tag in range(1, A_FRAME + 1)]
    )
    async with tenure_channel(stack.services["tools"], tls) as channel:
        call: Any = ToolServiceStub(channel).ExecuteStream(timeout=PATIENCE_SECONDS)
        await call.write(frame)
        reasons, ended = Counter[str](), set[int]()
        while len(ended) < A_FRAME:
            for event in (await call.read()).events:
                if event.HasField("refusal"):
                    reasons[event.refusal.reason] += 1
                if event.WhichOneof("event") in {"refusal", "outcome"}:
                    ended.add(event.tag)
        call.cancel()
    assert reasons["REQUESTS_IN_FLIGHT"] == A_FRAME - 2


@pytest.mark.faults
async def test_connections_of_an_identity_are_limited(stack: Stack, tmp_path: Path) -> None:
    """At the coordinator, where each session costs a lease in etcd. Other workers stay attached."""
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    async with AsyncExitStack() as opened:

        async def attach(worker_id: str) -> Any:
            channel = await opened.enter_async_context(tenure_channel(stack.services["coordinator"], tls))
            session: Any = CoordinatorServiceStub(channel).Session(timeout=PATIENCE_SECONDS)
            opened.callback(session.cancel)
            hello = coordinator_pb.Hello(worker_id=worker_id, queues=["none"], free_slots=0, session_secret=bytes(32))
            await session.write(coordinator_pb.SessionRequest(hello=hello))
            return await session.read()

        for number in range(2):
            assert (await attach(f"stranger-{number}")).HasField("welcome")
        assert (await refusal_of_stream(lambda: attach("stranger-2"))).reason == "CONNECTIONS"
