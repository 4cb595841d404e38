"""The refusals of the services behind the gateway, with real certificates: who records them, and what a flood costs."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import pytest_asyncio

from devstack import Stack
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Role, spiffe_id
from tenure.domain.audit import verify_chain
from tenure.domain.errors import InvalidRequest, PermissionDenied, TenureError
from tenure.domain.fencing import Audience, Claims
from tenure.runtime.security.audit import FLUSH_SECONDS
from tenure.runtime.security.signing import Signer
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2 as checkpoint_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2, token_pb2
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.audit_service_pb2_grpc import AuditServiceStub
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.v1.worker_service_pb2 import WatchLiveRequest
from tenure.v1.worker_service_pb2_grpc import WorkerServiceStub
from tenure.wire.audit import chained_from_wire
from tenure.wire.token import sign_claims, sign_task_claims
from tests.security.access_table import authority_of, issued, tenure_channel
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

STRANGER: Final = spiffe_id(DEFAULT_INSTALLATION, Role.WORKER, "stranger")
FLOOD: Final = 1000
A_FRAME: Final = 100
LEAVE: Final = checkpoint_pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")
pytestmark = pytest.mark.asyncio(loop_scope="package")


def token_of(stack: Stack, holder: str) -> token_pb2.FencingToken:
    """A well-signed token of a claim of this holder."""
    claims = Claims(
        f"tasks/{uuid.uuid4()}", "default", 1 << 41, str(uuid.uuid4()), holder, installation=DEFAULT_INSTALLATION
    )
    return sign_task_claims(Signer.load(stack.layout.signing_key), claims, datetime.now(UTC))


async def refusal_of(call: Any) -> str:
    with pytest.raises(TenureError) as refused:
        await call
    return refused.value.reason


@pytest_asyncio.fixture(loop_scope="package")
async def channel(stack: Stack, tmp_path: Path) -> AsyncIterator[Any]:
    """Returns a channel to a process of the stack, with the certificate of a stranger of a role."""
    async with AsyncExitStack() as opened:

        async def connect(process: str, role: Role = Role.WORKER) -> Any:
            tls = issued(tmp_path, authority_of(stack), role, stack.layout.certificates / "ca.pem")
            return await opened.enter_async_context(tenure_channel(stack.services[process], tls))

        yield connect


def operator(stack: Stack) -> Client:
    certificates = stack.layout.certificates
    tls = ClientTls(certificates / "ca.pem", certificates / "operator.pem", certificates / "operator.key.pem")
    return Client(stack.gateway_address, tls=tls)


async def denied(stack: Stack, reasons: set[tuple[str, str]], subject: str = STRANGER) -> list[pb.AuditRecord]:
    """The refusals of this subject, when all of these methods and reasons are recorded."""
    request = pb.ListAuditRecordsRequest(subject=subject, decision=pb.AUDIT_DECISION_DENIED)
    async with operator(stack) as client, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = [
                one async for one in client.items(client.audit.ListAuditRecords, request, lambda page: page.records)
            ]
            if reasons <= {(one.method, one.reason) for one in found}:
                return found
            await asyncio.sleep(0.1)


def commit_of(token: Any) -> checkpoint_pb.CommitRequest:
    return checkpoint_pb.CommitRequest(token=token, commit_id=str(uuid.uuid4()), commit_number=1, transition=LEAVE)


def frame_of(commits: list[checkpoint_pb.CommitRequest]) -> checkpoint_pb.CommitStreamRequest:
    tagged = [checkpoint_pb.TaggedCommit(tag=tag, commit=commit) for tag, commit in enumerate(commits, 1)]
    return checkpoint_pb.CommitStreamRequest(commits=tagged)


async def test_the_ledger_records_its_refusals(stack: Stack, channel: Any) -> None:
    ledger = CheckpointServiceStub(await channel("checkpoint"))
    foreign, forged = token_of(stack, "worker-1"), token_of(stack, "stranger")
    forged.signature = bytes(len(forged.signature))
    claims = Claims("tasks/t-1", "default", 1 << 41, "c", "stranger", installation=DEFAULT_INSTALLATION)
    lease = sign_claims(
        Signer.load(stack.layout.signing_key), replace(claims, audiences=(Audience.LEASE,)), datetime.now(UTC)
    )
    assert await refusal_of(ledger.Commit(commit_of(foreign))) == "OTHER_HOLDER"
    assert await refusal_of(ledger.Commit(commit_of(forged))) == "INVALID_TOKEN"
    assert await refusal_of(ledger.Open(checkpoint_pb.OpenRequest(token=lease)).read()) == "WRONG_AUDIENCE"
    assert await refusal_of(ledger.ListRunning(checkpoint_pb.ListRunningRequest())) == "METHOD_NOT_ALLOWED"
    expected = {
        ("CheckpointService/Commit", "OTHER_HOLDER"),
        ("CheckpointService/Commit", "INVALID_TOKEN"),
        ("CheckpointService/Open", "WRONG_AUDIENCE"),
        ("CheckpointService/ListRunning", "METHOD_NOT_ALLOWED"),
    }
    found = {(one.method, one.reason): one for one in await denied(stack, expected)}
    assert found["CheckpointService/Commit", "OTHER_HOLDER"].target.startswith("holder=worker-1 ")
    assert found["CheckpointService/Open", "WRONG_AUDIENCE"].target.startswith("resource=tasks/t-1 holder=stranger")
    for one in (found[key] for key in expected):
        assert one.recorder == spiffe_id(DEFAULT_INSTALLATION, Role.CHECKPOINT, "checkpoint")
        assert one.peer.startswith(("ipv4:127.0.0.1:", "ipv6:"))


async def test_refusals_inside_a_commit_stream_are_recorded(stack: Stack, channel: Any) -> None:
    call: Any = CheckpointServiceStub(await channel("checkpoint")).CommitStream(timeout=CALL_SECONDS)
    await call.write(frame_of([commit_of(token_of(stack, "worker-1"))]))
    (result,) = (await call.read()).results
    assert result.refusal.reason == "OTHER_HOLDER"
    call.cancel()
    expected = ("CheckpointService/CommitStream", "OTHER_HOLDER")
    found = {(one.method, one.reason): one for one in await denied(stack, {expected})}
    assert found[expected].target.startswith("holder=worker-1 ")
    assert "commit_number=1" in found[expected].target


async def test_a_coordinator_records_its_refusals(stack: Stack, channel: Any) -> None:
    coordinator = CoordinatorServiceStub(await channel("coordinator"))
    hello = coordinator_pb.Hello(worker_id="worker-1", free_slots=1, session_secret=bytes(32))
    session: Any = coordinator.Session(iter([coordinator_pb.SessionRequest(hello=hello)]), timeout=CALL_SECONDS)
    assert await refusal_of(session.read()) == "OTHER_HOLDER"
    drain = admin_pb.DrainWorkerRequest(worker_id="worker-1")
    assert await refusal_of(coordinator.DrainWorker(drain)) == "METHOD_NOT_ALLOWED"
    expected = {
        ("CoordinatorService/Session", "OTHER_HOLDER"),
        ("CoordinatorService/DrainWorker", "METHOD_NOT_ALLOWED"),
    }
    found = {(one.method, one.reason): one for one in await denied(stack, expected)}
    assert {found[key].recorder for key in expected} == {
        spiffe_id(DEFAULT_INSTALLATION, Role.COORDINATOR, "coordinator")
    }
    assert found["CoordinatorService/Session", "OTHER_HOLDER"].target == "holder=worker-1"
    assert found["CoordinatorService/DrainWorker", "METHOD_NOT_ALLOWED"].target == "worker_id=worker-1"


async def test_tools_and_workers_log_their_refusals(stack: Stack, channel: Any) -> None:
    """They call no ledger that they could write to: each sampled refusal is a line of their logs."""
    tools = ToolServiceStub(await channel("tools"))
    execute = tools_pb.ExecuteRequest(token=token_of(stack, "worker-1"), call_id="1.0", tool="x", arguments_json="{}")
    assert await refusal_of(tools.Execute(execute).read()) == "OTHER_HOLDER"
    call: Any = tools.ExecuteStream(timeout=CALL_SECONDS)
    await call.write(tools_pb.ExecuteStreamRequest(calls=[tools_pb.TaggedExecute(tag=1, call=execute)]))
    (event,) = (await call.read()).events
    assert event.refusal.reason == "OTHER_HOLDER"
    call.cancel()
    live = WorkerServiceStub(await channel("worker-1")).WatchLive(WatchLiveRequest(task_id=str(uuid.uuid4())))
    assert await refusal_of(live.read()) == "METHOD_NOT_ALLOWED"
    expected = {
        "tools": {("ToolService/Execute", "OTHER_HOLDER"), ("ToolService/ExecuteStream", "OTHER_HOLDER")},
        "worker-1": {("WorkerService/WatchLive", "METHOD_NOT_ALLOWED")},
    }
    for name, refusals in expected.items():
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not refusals <= logged_refusals(stack, name):
                await asyncio.sleep(0.1)


def logged_refusals(stack: Stack, name: str) -> set[tuple[str, str]]:
    lines = (json.loads(line) for line in stack.services[name].log().splitlines() if line.startswith("{"))
    return {(one["method"], one["reason"]) for one in lines if one.get("caller") == STRANGER}


def record(**fields: Any) -> pb.AppendAuditRecordsRequest:
    usual: dict[str, Any] = {"record_id": str(uuid.uuid4()), "method": "CoordinatorService/Session", "count": 1}
    one = pb.AuditRecord(**{**usual, "subject": "user/x", "decision": pb.AUDIT_DECISION_DENIED, **fields})
    return pb.AppendAuditRecordsRequest(records=[one])


async def test_a_coordinator_appends_refusals_in_its_own_name(stack: Stack, channel: Any) -> None:
    log = AuditServiceStub(await channel("checkpoint", Role.COORDINATOR))
    with pytest.raises(PermissionDenied, match="a coordinator records refused calls only"):
        await log.AppendAuditRecords(record(decision=pb.AUDIT_DECISION_ALLOWED))
    with pytest.raises(InvalidRequest, match="recorder"):
        await log.AppendAuditRecords(record(recorder=spiffe_id(DEFAULT_INSTALLATION, Role.GATEWAY, "gateway")))
    await log.AppendAuditRecords(record())
    (one,) = await denied(stack, {("CoordinatorService/Session", "")}, subject="user/x")
    assert one.recorder == spiffe_id(DEFAULT_INSTALLATION, Role.COORDINATOR, "stranger")
    for role in (Role.WORKER, Role.TOOLS, Role.OPERATOR):
        other = AuditServiceStub(await channel("checkpoint", role))
        assert await refusal_of(other.AppendAuditRecords(record())) == "METHOD_NOT_ALLOWED"


async def counts_of(stack: Stack, method: str) -> list[int]:
    """The counts of a method's refusals of the stranger, read from the table: no service needs to run."""
    statement = b"select count from ledger.audit_records where method = %s and subject = %s order by number"
    async with await psycopg.AsyncConnection.connect(stack.postgres_dsn) as owner:
        return [count for (count,) in await (await owner.execute(statement, (method, STRANGER))).fetchall()]


@pytest.mark.faults
async def test_a_flood_is_sampled_and_counted_to_the_last(stack: Stack, channel: Any) -> None:
    """Two records at least: the first refusal, and all others, which the end of the service writes."""
    method = "CheckpointService/CommitStream"
    before, began = sum(await counts_of(stack, method)), time.monotonic()
    call: Any = CheckpointServiceStub(await channel("checkpoint")).CommitStream(timeout=PATIENCE_SECONDS)
    token = token_of(stack, "worker-1")
    for _ in range(FLOOD // A_FRAME):
        await call.write(frame_of([commit_of(token) for _ in range(A_FRAME)]))
        answered = 0
        while answered < A_FRAME:
            answered += len((await call.read()).results)
    call.cancel()
    process = stack.services["checkpoint"]
    try:
        assert await process.drain() == 0
        counts = await counts_of(stack, method)
        assert sum(counts) - before == FLOOD
        assert len(counts) <= 5 + (time.monotonic() - began) / FLUSH_SECONDS
    finally:
        process.start()
        await process.wait_ready()


async def test_a_coordinator_that_ends_writes_its_last_refusals(stack: Stack, channel: Any) -> None:
    method, calls = "CoordinatorService/ListWorkers", 20
    coordinator = CoordinatorServiceStub(await channel("coordinator"))
    for _ in range(calls):
        await refusal_of(coordinator.ListWorkers(admin_pb.ListWorkersRequest()))
    process = stack.services["coordinator"]
    try:
        assert await process.drain() == 0
        assert sum(await counts_of(stack, method)) == calls
    finally:
        process.start()
        await process.wait_ready()


async def test_the_chain_holds_records_of_all_recorders(stack: Stack) -> None:
    async with operator(stack) as client:
        request = pb.ListAuditRecordsRequest(oldest_first=True)
        records = [
            chained_from_wire(one)
            async for one in client.items(client.audit.ListAuditRecords, request, lambda page: page.records)
        ]

        async def each() -> AsyncIterator[Any]:
            for one in records:
                yield one

        assert (await verify_chain(each())).number == len(records) > 0
