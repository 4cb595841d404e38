"""Laws of the way from one attachment to the next, on a coordinator that is there and does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio._call import StreamStreamCall
from grpc_health.v1 import health_pb2

from services.worker import session as session_module
from services.worker.health import SERVICE, AttachmentHealth
from services.worker.held_claims import HeldTasks
from services.worker.interrupts import TrustGate
from services.worker.session import WorkerIdentity, WorkerSession
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fairness import Slots
from tenure.domain.fencing import Claims
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import Duties
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.rpc.server import Health, RpcServer
from tenure.runtime.security.signing import Signer, write_key_pair
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1.coordinator_service_pb2_grpc import (
    CoordinatorServiceServicer,
)
from tenure.wire.common import duration
from tenure.wire.token import sign_task_claims
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

RENEW_SECONDS = 0.1
QUICK = RetryPolicy(initial_seconds=0.01, cap_seconds=0.05)


class Coordinator(CoordinatorServiceServicer):
    """`deaf`: reads, and answers nothing. `lazy`: answers Hello only. `hellos`: how often a worker said Hello.
    `events`: the begins and ends of streams, in order.
    """

    def __init__(self) -> None:
        self.deaf = self.lazy = False
        self.events: list[str] = []
        self.hellos = 0
        self.renewals = 0
        self.renew_seconds = RENEW_SECONDS
        self.context: Any = None

    async def Session(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # it writes by itself
        self.events.append("begin")
        self.context = context
        try:
            await self._serve(requests, context)
        finally:
            self.events.append("end")

    async def _serve(self, requests: Any, context: Any) -> None:
        async for request in requests:
            kind = request.WhichOneof("message")
            self.hellos += kind == "hello"
            if self.deaf:
                continue
            if kind == "hello":
                welcome = pb.Welcome(session_id="s", ttl=duration(5.0), renew_interval=duration(self.renew_seconds))
                await context.write(pb.SessionResponse(welcome=welcome))
            elif kind == "renew" and not self.lazy:
                self.renewals += 1
                renewed = pb.Renewed(renew_number=request.renew.renew_number)
                await context.write(pb.SessionResponse(renewed=renewed))


async def comes(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(session_module, "ATTACH_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(session_module, "CLOSE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(session_module, "REATTACH", QUICK)
    return Coordinator()  # type: ignore[abstract]  # only its session is called


@asynccontextmanager
async def working(coordinator: Coordinator, silence_seconds: float = 30.0) -> AsyncIterator[WorkerSession]:
    """A session with it, kept by a duty as in the worker."""
    server = RpcServer("127.0.0.1:0", grace_seconds=0.1)
    server.add("tenure.v1.CoordinatorService", coordinator)
    identity = WorkerIdentity("w", ("q",), ("agent",), "127.0.0.1:1", bytes(32))
    async with server, Duties(QUICK) as duties:
        held_tasks = HeldTasks()
        session = WorkerSession([server.address], identity, held_tasks, TrustGate(), lambda: Slots(1, 1, 1))
        duties.start("session", lambda: session.run(held_tasks.add), may_end=True, silence_seconds=silence_seconds)
        await comes(lambda: session.is_attached)
        yield session


async def test_a_silent_coordinator_is_attached_to_again(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """The break of a stream, then a Hello whose deadline passes: with Python 3.11.2 the second one was the end."""
    async with working(coordinator) as session:
        coordinator.deaf, before = True, coordinator.hellos
        caplog.clear()
        await comes(lambda: coordinator.hellos >= before + 3)
        assert not session.is_attached
        told = [record for record in caplog.records if record.message in {"detached", "could not attach"}]
        coordinator.deaf = False
        await comes(lambda: session.is_attached)
    reasons = [vars(record)["why"] for record in told]
    assert reasons[0].endswith("was not answered within 0.1 s")
    assert set(reasons[1:]) == {"Hello was not answered within 0.3 s"}
    assert len(reasons) >= 3


async def test_the_former_stream_ends_after_the_next_attachment(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator ends the session of a worker whose stream ends before it is attached again."""
    monkeypatch.setattr(session_module, "ATTACH_TIMEOUT_SECONDS", CALL_SECONDS)
    async with working(coordinator) as session:
        coordinator.lazy = True
        await comes(lambda: coordinator.hellos >= 3)
        coordinator.lazy = False
        await comes(lambda: session.is_attached)
        assert coordinator.events[:4] == ["begin", "begin", "end", "begin"]


async def test_a_channel_that_does_not_close_blocks_no_attachment(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with working(coordinator) as session:
        monkeypatch.setattr(TenureChannel, "close", never)
        coordinator.deaf = True
        await comes(lambda: coordinator.hellos >= 3)
        coordinator.deaf = False
        await comes(lambda: session.is_attached)


async def test_a_cancellation_by_grpc_is_not_the_end(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    attach = WorkerSession._attach
    cancelled: list[bool] = []

    async def cancel_once(self: WorkerSession, call: Any) -> Any:
        if not cancelled:
            cancelled.append(True)
            raise asyncio.CancelledError
        return await attach(self, call)

    monkeypatch.setattr(WorkerSession, "_attach", cancel_once)
    async with working(coordinator) as session:
        assert cancelled
        assert session.is_attached


async def test_worker_drains_although_its_stream_ends_first(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpcio fails the close of a stream that the coordinator has ended meanwhile."""
    failed: list[bool] = []
    close = StreamStreamCall.done_writing

    async def close_and_fail(self: Any) -> None:
        await close(self)
        failed.append(True)
        raise grpc.aio.InternalError('Failed "execute_batch"')

    async with working(coordinator) as session:
        monkeypatch.setattr(StreamStreamCall, "done_writing", close_and_fail)
        session.drain()
        await session.end_session()
    assert failed


async def test_an_attachment_that_hangs_is_noticed_and_made_anew(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = WorkerSession._attach
    hung: list[bool] = []

    async def hang_once(self: WorkerSession, call: Any) -> Any:
        if not hung:
            hung.append(True)
            await asyncio.Event().wait()
        return await attach(self, call)

    monkeypatch.setattr(WorkerSession, "_attach", hang_once)
    async with working(coordinator, silence_seconds=0.8) as session:
        assert hung
        assert session.is_attached


async def test_answered_renewals_are_progress(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """At intervals in which a busy machine answers, too."""
    monkeypatch.setattr(session_module, "ATTACH_TIMEOUT_SECONDS", CALL_SECONDS)
    coordinator.renew_seconds = 10 * RENEW_SECONDS
    async with working(coordinator, 4 * coordinator.renew_seconds) as session:
        await comes(lambda: coordinator.renewals >= 10)
        assert session.is_attached
        assert coordinator.hellos == 1


async def test_a_task_with_a_short_interval_makes_renewals_frequent(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.renew_seconds = 600.0
    write_key_pair(tmp_path / "signing.json", tmp_path / "verifying.json", "test-1")
    claims = Claims("tasks/t", "default", 7, "c", "w", installation=DEFAULT_INSTALLATION)
    token = sign_task_claims(Signer.load(tmp_path / "signing.json"), claims, datetime.now(UTC))
    grant = pb.Grant(task_id="t", claim_id="c", token=token, loop="agent", renew_interval=duration(0.05))
    async with working(coordinator):
        await comes(lambda: coordinator.renewals == 1)
        await coordinator.context.write(pb.SessionResponse(grant=grant))
        await comes(lambda: coordinator.renewals >= 5)  # without the task they would take 40 minutes


async def test_an_unattached_worker_is_not_serving() -> None:
    health, attached, patience_seconds = Health(), True, 0.6

    async def says(serving: bool) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
            while {each.status for each in (await health.List(None, None)).statuses.values()} != {wanted}:
                await asyncio.sleep(0.01)

    for service in ("", SERVICE):
        await health.set_serving(service, serving=True)
    async with Duties(QUICK) as duties:
        duties.start("attendance", AttachmentHealth(health, lambda: attached, patience_seconds).run)
        attached, left_at = False, asyncio.get_running_loop().time()
        await says(serving=False)
        left_seconds = asyncio.get_running_loop().time() - left_at
        assert left_seconds >= patience_seconds, "it may be on its way to another one"
        attached = True
        await says(serving=True)
