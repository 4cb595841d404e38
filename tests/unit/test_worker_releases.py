"""A fault that is not the task's does not count against it: the worker releases it, and no crash is counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import StatusCode

from services.coordinator.sessions.session import Timing
from services.worker import claim_ledger, tool_step
from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.interrupts import TrustGate
from services.worker.live_server import LiveServicer
from services.worker.own_calls import OwnRuns
from services.worker.supervisor import CrashBackoff, Supervisor
from tenure.domain.compaction import Window
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import NotFound, TryLater, Unauthenticated, Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.fold import ResumePoint
from tenure.domain.retry import RetryPolicy
from tenure.domain.task import TaskPolicy
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.signing import UNKNOWN_KEY
from tenure.v1 import token_pb2
from tenure.v1 import worker_service_pb2 as worker_pb
from tests.support.patience import PATIENCE_SECONDS


class Raises:
    """A service that answers everything with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            raise self._error

        return call


class Open:
    async def wait_open(self) -> None:
        """The trust window is open."""


def holding() -> HeldTask:
    return HeldTask(Claims("tasks/t1", "default", 7, "c1", "w1"), token_pb2.FencingToken(), "messages")


async def test_absent_tools_release_the_task_before_it_looks_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_step, "PATIENCE_SECONDS", 0.3)
    held = holding()
    parts = cast("Any", SimpleNamespace(trust=Open(), tools=Raises(Unavailable("no tools"))))
    window = Window(72 * 1024, 8 * 1024)
    ledger = cast("Any", SimpleNamespace(point=ResumePoint(), call_trace=lambda _call_id: ""))
    step = tool_step.ToolStep(parts, held, ledger, TaskPolicy(), window)
    with pytest.raises(TryLater):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await step.run(1, [ToolIntent("1.0", "id", "t", "{}")])
    assert held.progress.tool_signs == 0


def test_patience_with_tools_is_shorter_than_with_workers() -> None:
    assert Timing().progress_timeout_seconds >= tool_step.PATIENCE_SECONDS + 30


def opening_raises(error: Exception) -> Any:
    """A client of the ledger whose Open fails."""
    return SimpleNamespace(open=lambda *_: Raises(error))


async def test_unknown_key_is_not_a_crash() -> None:
    released: list[str] = []
    held_tasks, held = HeldTasks(), holding()
    parts = cast(
        "Any", SimpleNamespace(own_runs=OwnRuns(TrustGate()), ledger=opening_raises(Unauthenticated("an unknown key")))
    )
    async with Supervisor(
        parts, held_tasks, CrashBackoff(), lambda _, reason, _why: released.append(reason), 1
    ) as supervisor:
        supervisor.take(held)
        assert held.work is not None
        await held.work
    assert released == ["WORKER_HALTED"]


@pytest.mark.parametrize(("opened", "expected"), [(0, ["k2"]), (7, [])])
async def test_a_foreign_key_stops_a_worker_without_a_task(opened: int, expected: list[str]) -> None:
    """Not one whose tasks run: the services of its installation only do not have the newest key yet."""
    foreign: list[str] = []
    held_tasks, held = HeldTasks(), holding()
    running = HeldTask(Claims("tasks/t2", "default", 7, "c2", "w1"), token_pb2.FencingToken(), "messages")
    running.progress.sequence = opened
    held_tasks.add(running)
    error = Unauthenticated("an unknown key", reason="INVALID_TOKEN", metadata={UNKNOWN_KEY: "k2"})
    parts = cast("Any", SimpleNamespace(own_runs=OwnRuns(TrustGate()), ledger=opening_raises(error)))
    async with Supervisor(parts, held_tasks, CrashBackoff(), lambda *_: None, 1, foreign.append) as supervisor:
        supervisor.take(held)
        assert held.work is not None
        await held.work
    assert foreign == expected


ENDINGS = [
    (ValueError("a bug"), 1),
    (Unavailable("no ledger"), 0),
    (PeerFailed(StatusCode.INTERNAL, "its bug"), 0),
]


@pytest.mark.parametrize(("error", "resting"), ENDINGS)
async def test_only_a_crash_causes_a_backoff(error: Exception, resting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_ledger, "TRIES", RetryPolicy(max_attempts=1, initial_seconds=0.0))
    held_tasks, held, crash_backoff = HeldTasks(), holding(), CrashBackoff()
    parts = cast("Any", SimpleNamespace(own_runs=OwnRuns(TrustGate()), ledger=opening_raises(error)))
    async with Supervisor(parts, held_tasks, crash_backoff, lambda *_: None, 1) as supervisor:
        supervisor.take(held)
        assert held.work is not None
        await held.work
    assert crash_backoff.count() == resting


async def test_lost_claim_is_not_a_crash() -> None:
    held_tasks, held, crash_backoff = HeldTasks(), holding(), CrashBackoff()
    parts = cast(
        "Any", SimpleNamespace(own_runs=OwnRuns(TrustGate()), ledger=opening_raises(ValueError("never reached")))
    )
    async with Supervisor(parts, held_tasks, crash_backoff, lambda *_: None, 1) as supervisor:
        supervisor.take(held)
        held.drop()
        assert held.work is not None
        await asyncio.wait([held.work])
    assert crash_backoff.count() == 0


async def test_live_text_is_not_readable_by_another_tenant() -> None:
    held_tasks, held = HeldTasks(), holding()
    held_tasks.add(held)
    held.live.close()
    watch = LiveServicer(held_tasks, b"proof").WatchLive
    request = worker_pb.WatchLiveRequest(task_id="t1", epoch=7)
    assert [piece async for piece in watch(request, None)] == [worker_pb.WatchLiveResponse(holder_proof=b"proof")]
    with as_tenant("another"), pytest.raises(NotFound):
        await anext(aiter(watch(request, None)))
