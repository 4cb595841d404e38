"""Live text: from the worker that holds a task to those who watch it, while somebody does."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, Self

from services.gateway.peers import Peers
from tenure.domain.epochs import describe_epoch
from tenure.domain.errors import TenureError
from tenure.domain.retry import RetryPolicy
from tenure.runtime.rpc_channel import TenureChannel, open_channel
from tenure.runtime.status import PeerFailed
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceStub

_log: Final = logging.getLogger(__name__)
CLOSE_SECONDS: Final = 1.0
REDIAL: Final = RetryPolicy(max_attempts=6, initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


class LiveText:
    """Knows where workers serve their text, and keeps one channel to each that somebody listens to."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._addresses: dict[str, str] = {}
        self._channels: dict[str, TenureChannel] = {}
        self._listeners: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def follow(self, task_id: str, worker_id: str, epoch: int, on_text: Callable[[live_pb2.Delta], None]) -> None:
        """Hands on the text of one claim until its worker ends it. Best effort: without it a watch is still whole."""
        for failures in range(1, REDIAL.max_attempts + 1):
            try:
                address = await self._address_of(worker_id)
                if not address:
                    return
                await self._listen(address, task_id, epoch, on_text)
            except (TenureError, PeerFailed) as error:
                facts = {"task": task_id, "epoch": describe_epoch(epoch), "worker": worker_id, "why": str(error)}
                _log.info("no live text", extra=facts)
                self._addresses.pop(worker_id, None)
            await asyncio.sleep(REDIAL.wait_seconds(failures, random.random()))

    async def _listen(self, address: str, task_id: str, epoch: int, on_text: Callable[[live_pb2.Delta], None]) -> None:
        channel = self._acquire(address)
        try:
            asked = worker.WatchLiveRequest(task_id=task_id, epoch=epoch)
            async for piece in WorkerServiceStub(channel).WatchLive(asked):
                on_text(piece.delta)
        finally:
            await self._give_back(address)

    async def _address_of(self, worker_id: str) -> str:
        if worker_id not in self._addresses:
            listed = await self._peers.coordinator.ListWorkers(coordinator.CoordinatorServiceListWorkersRequest())
            self._addresses = {one.worker_id: one.live_address for one in listed.workers}
        return self._addresses.get(worker_id, "")

    def _acquire(self, address: str) -> TenureChannel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        self._listeners[address] = self._listeners.get(address, 0) + 1
        return self._channels[address]

    async def _give_back(self, address: str) -> None:
        self._listeners[address] -= 1
        if not self._listeners[address]:
            del self._listeners[address]
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._channels.pop(address).close()
            except TimeoutError:
                _log.warning("a channel to a worker did not close in time", extra={"address": address})
