"""Tracks the claims that workers receive: opens each grant as it comes, and keeps its owner.

async with Owners(fleet) as owners:
    await owners.add(replica, slots=6)
    await owners.of(await fleet.submit_many(6))        # each task has been opened by a worker
    await owners.check_one_owner_each()                # of all that ever opened it, one may still write
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.domain.entries import ToolIntent
from tenure.domain.errors import Fenced, TryLater, WrongState
from tenure.v1 import task_pb2
from tenure.wire.ledger import new_entry
from tests.support.fix_coordinator import epoch_of
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.v1 import coordinator_service_pb2 as pb
    from tests.support.fix_coordinator import Fleet
    from tests.support.scripted_worker import ScriptedWorker
    from tests.support.service_process import ServiceProcess

RUNNING = task_pb2.TASK_STATE_RUNNING


@dataclass(slots=True)
class Owned:
    """A grant that was opened, and by whom."""

    worker: ScriptedWorker
    grant: pb.Grant
    commits: int = 0

    @property
    def epoch(self) -> int:
        return epoch_of(self.grant.token)


class Owners:
    """Workers that open whatever they are granted, and do nothing more by themselves."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._opening: list[asyncio.Task[None]] = []
        self._opened = asyncio.Condition()
        self.by_task: dict[str, list[Owned]] = {}
        self.workers: list[ScriptedWorker] = []
        self._calls = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._opening:
            task.cancel()
        for result in await asyncio.gather(*self._opening, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def add(self, replica: ServiceProcess, *, slots: int, worker_id: str = "") -> ScriptedWorker:
        """Another worker, attached to this replica."""
        return self.take_in(await self._fleet.worker(replica, slots=slots, worker_id=worker_id))

    def take_in(self, worker: ScriptedWorker) -> ScriptedWorker:
        """Open what it is granted from now on."""
        self.workers.append(worker)
        self._opening.append(asyncio.create_task(self._open_all(worker)))
        return worker

    async def of(self, task_ids: Iterable[str], *, times: int = 1) -> None:
        """Returns once each of the tasks has been opened so many times."""
        wanted = set(task_ids)
        async with asyncio.timeout(2 * PATIENCE_SECONDS), self._opened:
            await self._opened.wait_for(lambda: all(len(self.by_task.get(each, ())) >= times for each in wanted))

    def newest(self, task_id: str) -> Owned:
        """Returns the owner that opened it last."""
        return self.by_task[task_id][-1]

    async def settled(self, replica: ServiceProcess) -> None:
        """Returns once etcd's claims are those of the newest owners, all of them."""
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            while True:
                claims = {claim.task_id: claim.epoch for claim in await self._fleet.claims(replica)}
                if claims == {task_id: owned[-1].epoch for task_id, owned in self.by_task.items()}:
                    return
                await asyncio.sleep(0.1)

    async def check_one_owner_each(self) -> None:
        """Epochs grew with every opening, and of all that ever opened a task only the newest may still write."""
        for task_id, owned in self.by_task.items():
            epochs = [each.epoch for each in owned]
            assert epochs == sorted(set(epochs)), f"{task_id} was opened under {epochs}"
            assert (await self._fleet.task(task_id)).state == RUNNING
            for each in owned[:-1]:
                assert not await self.may_write(each), f"{each.epoch} still writes to {task_id}"
            assert await self.may_write(owned[-1])

    async def may_write(self, owned: Owned) -> bool:
        """Whether the ledger takes a commit under this grant."""
        try:
            intent = ToolIntent(f"1.{next(self._calls)}", "x", "y", "{}")
            await owned.worker.commit(owned.grant, owned.commits + 1, entries=[new_entry(1, intent)])
        except Fenced:
            return False
        owned.commits += 1
        return True

    async def _open_all(self, worker: ScriptedWorker) -> None:
        while True:
            grant = await worker.next_grant(within_seconds=3600)
            try:
                await worker.open(grant)
            except (Fenced, WrongState, TryLater):
                continue  # lost before it was opened: no worker owns it by this grant
            async with self._opened:
                self.by_task.setdefault(grant.task_id, []).append(Owned(worker, grant))
                self._opened.notify_all()


async def health_becomes(replica: ServiceProcess, *, serving: bool, within_seconds: float = PATIENCE_SECONDS) -> None:
    """Returns once the replica says so itself."""
    wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(within_seconds), grpc.aio.insecure_channel(replica.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="tenure.v1.CoordinatorService")
        async for answer in stub.Watch(request, timeout=2 * within_seconds):
            if answer.status == wanted:
                return
