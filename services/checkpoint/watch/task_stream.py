"""WatchEntries: the old entries, then each new one, without gap or repeat, whatever replica commits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.queries import ledger_connection
from services.checkpoint.reads import LedgerPosition, entries_after, position_of
from tenure.domain.errors import OutOfRange
from tenure.runtime import metrics
from tenure.runtime.rpc_server import draining
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.checkpoint.watch.appended_entries import AppendedEntries
    from services.checkpoint.watch.hub import Hub
    from tenure.runtime.postgres import Pool
    from tenure.v1 import ledger_pb2


class EntryWatch:
    """The streams of a process. Once the hub is closed they end: another replica goes on after the last sequence."""

    def __init__(self, pool: Pool, hub: Hub) -> None:
        self._pool = pool
        self._hub = hub
        self._reads = metrics.cell("tenure_watch_reads_total")

    async def entries(self, tenant: str, task_id: str, after: int) -> AsyncIterator[pb.WatchEntriesResponse]:
        """Ends after the entry that closes the task. Raises NotFound, OutOfRange (CURSOR_EXPIRED), Unavailable.

        Holds a page while it is being sent, and within bounds what was committed here meanwhile. Whoever has all so far
        is handed what this process commits; the ledger is read for those who are behind, or when others committed.
        """
        with self._hub.watch_task(task_id) as watch:
            await self._place(tenant, task_id, after)
            watch.seen_sequence = after
            appended: list[AppendedEntries] | None = None
            while True:
                place, entries = await self._next(tenant, task_id, watch.seen_sequence, appended)
                watch.seen_sequence = entries[-1].sequence if entries else watch.seen_sequence
                complete = watch.seen_sequence == place.sequence
                closed = complete and place.ended
                if entries or closed:
                    yield pb.WatchEntriesResponse(entries=entries, closed=closed)
                if closed:
                    return
                appended = await watch.take() if complete else None
                self._refuse_when_draining()

    async def closing(self, tenant: str, task_id: str, after: int) -> AsyncIterator[pb.WatchEntriesResponse]:
        """The answer that says closed, once the task has ended. Raises what `entries` raises.

        Asks the ledger at the beginning and when the task is said to have ended, whatever is committed in between.
        """
        with self._hub.watch_end(task_id) as ended:
            while not (await self._place(tenant, task_id, after)).ended:
                await ended.wait()
                ended.clear()
                self._refuse_when_draining()
        yield pb.WatchEntriesResponse(closed=True)

    async def queue(self) -> AsyncIterator[pb.WatchQueueResponse]:
        """Hints until the server stops; the first comes at once."""
        with self._hub.watch_queue() as watch:
            while True:
                claimable, ending = await watch.take()
                self._refuse_when_draining()
                yield pb.WatchQueueResponse(claimable=claimable, cancel_task_ids=ending)

    async def _next(
        self, tenant: str, task_id: str, after: int, appended_entries: list[AppendedEntries] | None
    ) -> tuple[LedgerPosition, list[ledger_pb2.Entry]]:
        """Where the ledger ends, and what comes after a sequence: what we were handed, else a page."""
        if appended_entries is None:
            self._reads.value += 1
            return await entries_after(self._pool, tenant, task_id, after)
        place = LedgerPosition(appended_entries[-1].last, appended_entries[-1].closes)
        return place, [entry for appended in appended_entries for entry in appended.entries]

    async def _place(self, tenant: str, task_id: str, after: int) -> LedgerPosition:
        """Raises NotFound, OutOfRange for a cursor beyond the end."""
        self._reads.value += 1
        async with ledger_connection(self._pool) as connection:
            place = await position_of(connection, tenant, task_id)
        if after > place.sequence:
            raise OutOfRange(f"the ledger ends at {place.sequence}", reason="CURSOR_EXPIRED")
        return place

    def _refuse_when_draining(self) -> None:
        if self._hub.closed:
            raise draining()
