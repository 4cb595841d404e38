"""Serves WatchLeases: every change after a revision, in order, or an error that asks the caller to list again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, TypeAlias

from services.coordinator.generation import Generation
from services.coordinator.lease_store import LeaseStore
from services.coordinator.lease_store.events import LeaseChange
from services.coordinator.leases.messages import to_message
from tenure.domain.errors import LimitReached, OutOfRange, TenureError
from tenure.domain.fencing import compose_epoch, split_epoch
from tenure.runtime.rpc.server import draining
from tenure.v1 import lease_service_pb2 as pb

_Changes: TypeAlias = "asyncio.Queue[list[LeaseChange] | TenureError]"

_MAX_PER_TENANT: Final = 64
_MOST: Final = 1024
_WAITING: Final = 8
"""Unsent answers for a slow reader. Beyond it etcd is not read, until its compaction ends the watch."""
HEARTBEAT_SECONDS: Final = 5.0


class LeaseWatch:
    """The watches of this replica."""

    def __init__(self, store: LeaseStore, generation: Generation, stopping: asyncio.Event) -> None:
        self._store, self._generation, self._stopping = store, generation, stopping
        self._open: Counter[str] = Counter()

    async def watch(self, tenant: str, prefix: str, after_revision: int) -> AsyncGenerator[pb.WatchLeasesResponse]:
        """Yields changes and heartbeats without end.

        Raises OutOfRange (CURSOR_EXPIRED), LimitReached and Unavailable.
        """
        with self._counted(tenant):
            generation = self._generation.current()
            revision = await self._start(generation, after_revision)
            changes: _Changes = asyncio.Queue(_WAITING)
            reading = asyncio.create_task(self._read(tenant, prefix, revision + 1, changes))
            try:
                yield pb.WatchLeasesResponse(revision=compose_epoch(generation, revision))
                while True:
                    answer = await self._next(generation, revision, changes)
                    revision = split_epoch(answer.revision)[1]
                    yield answer
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _next(self, generation: int, revision: int, changes: _Changes) -> pb.WatchLeasesResponse:
        """Returns the next changes, or a heartbeat."""
        stopping, getting = asyncio.create_task(self._stopping.wait()), asyncio.create_task(changes.get())
        try:
            await asyncio.wait((stopping, getting), timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                raise draining()
            if self._generation.current() != generation:
                raise _expired("etcd was restored or replaced in the meantime")
            if not getting.done():
                return pb.WatchLeasesResponse(revision=compose_epoch(generation, revision))
            item = getting.result()
        finally:
            stopping.cancel()
            getting.cancel()
        if isinstance(item, TenureError):
            raise item
        events = [_event(generation, change) for change in item]
        return pb.WatchLeasesResponse(events=events, revision=compose_epoch(generation, item[-1].revision))

    async def _read(self, tenant: str, prefix: str, start: int, changes: _Changes) -> None:
        """Puts changes into the queue, and at the end the error that ended the watch."""
        try:
            async with aclosing(self._store.watch_leases(tenant, prefix, start)) as lease_changes:
                async for each in lease_changes:
                    if each:
                        await changes.put(each)
        except TenureError as error:
            await changes.put(error)
        else:
            await changes.put(_expired("etcd no longer has the history after it"))

    async def _start(self, generation: int, after_revision: int) -> int:
        """Returns etcd's revision after which the watch begins."""
        now = (await self._store.generation.read()).revision
        if not after_revision:
            return now
        asked_generation, revision = split_epoch(after_revision)
        if asked_generation != generation or revision > now:
            raise _expired("it belongs to another generation of etcd")
        return revision

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        if self._open[tenant] >= _MAX_PER_TENANT or self._open.total() >= _MOST:
            raise LimitReached(
                "this replica has too many lease watches; try again later",
                reason="TOO_MANY_WATCHES",
                retry_after_seconds=1.0,
                metadata={"subject": f"tenant:{tenant}"},
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            self._open += Counter()  # drops tenants without watches


def _event(generation: int, change: LeaseChange) -> pb.LeaseEvent:
    revision, lease = compose_epoch(generation, change.revision), to_message(change.lease)
    if change.held:
        return pb.LeaseEvent(revision=revision, held=lease)
    return pb.LeaseEvent(revision=revision, ended=lease)


def _expired(why: str) -> OutOfRange:
    return OutOfRange(f"leases cannot be watched from this revision: {why}; list them again", reason="CURSOR_EXPIRED")
