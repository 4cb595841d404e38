"""Live text is found again when its worker serves it elsewhere, or only in a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace
from typing import Any

from services.gateway.watch import LiveTextRelay
from tenure.domain.errors import NotFound, Unavailable
from tenure.runtime.rpc_server import RpcServer
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from tests.support.patience import PATIENCE_SECONDS


class Speaker(WorkerServiceServicer):
    """A worker's text, after some refusals: a watch may come before the worker knows of its claim."""

    def __init__(self, refusals: int = 0) -> None:
        self._refusals = refusals

    async def WatchLive(
        self, request: worker.WatchLiveRequest, _context: Any
    ) -> AsyncIterator[worker.WatchLiveResponse]:
        if self._refusals:
            self._refusals -= 1
            raise NotFound("not here yet")
        yield worker.WatchLiveResponse(delta=live_pb2.Delta(epoch=request.epoch, text="words"))
        await asyncio.Event().wait()


class Coordinator:
    """Tells where the worker is: each of the answers once, then the last of them again and again."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.request_count = 0

    async def ListWorkers(self, _request: Any) -> coordinator.CoordinatorServiceListWorkersResponse:
        self.request_count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        worker = coordinator.Worker(worker_id="worker-1", live_address=answer)
        return coordinator.CoordinatorServiceListWorkersResponse(workers=[worker])


async def serve(stack: AsyncExitStack, speaker: Speaker) -> str:
    server = RpcServer("127.0.0.1:0", grace_seconds=0.1)
    server.add("tenure.v1.WorkerService", add_WorkerServiceServicer_to_server, speaker)
    await stack.enter_async_context(server)
    return server.address


async def first_text(known: Coordinator) -> str:
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(delta: live_pb2.Delta) -> None:
        if not heard.done():
            heard.set_result(delta.text)

    peers: Any = SimpleNamespace(coordinator=known)
    async with asyncio.timeout(PATIENCE_SECONDS), LiveTextRelay(peers) as live:
        following = asyncio.create_task(live.follow("t", "worker-1", 7, hear))
        try:
            return await heard
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def test_a_worker_gone_from_its_address_is_looked_up_again(unused_tcp_port: int) -> None:
    async with AsyncExitStack() as stack:
        known = Coordinator(f"127.0.0.1:{unused_tcp_port}", await serve(stack, Speaker()))
        assert await first_text(known) == "words"
        assert known.request_count == 2


async def test_a_worker_that_does_not_hold_the_task_yet_is_asked_again() -> None:
    async with AsyncExitStack() as stack:
        assert await first_text(Coordinator(await serve(stack, Speaker(refusals=2)))) == "words"


async def test_a_coordinator_that_is_away_is_asked_again() -> None:
    async with AsyncExitStack() as stack:
        away = Unavailable("restarts")
        assert await first_text(Coordinator(away, away, await serve(stack, Speaker()))) == "words"


async def test_a_worker_that_serves_no_text_is_not_listened_to() -> None:
    known = Coordinator("")
    peers: Any = SimpleNamespace(coordinator=known)
    async with asyncio.timeout(PATIENCE_SECONDS), LiveTextRelay(peers) as live:
        await live.follow("t", "worker-1", 7, lambda _: None)
    assert known.request_count == 1
