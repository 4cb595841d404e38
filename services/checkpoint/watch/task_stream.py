"""WatchEntries: streams a task's existing entries, then each new one, without gap or repeat, from whichever replica."""

from __future__ import annotations

from collections.abc import AsyncIterator

from services.checkpoint.reads import LedgerPosition, entries_after, position_of
from services.checkpoint.standby import LedgerReads
from services.checkpoint.watch.appended_entries import AppendedEntries
from services.checkpoint.watch.hub import Hub
from tenure.domain.errors import OutOfRange
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.server import draining
from tenure.runtime.store.postgres import pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2


class EntryWatch:
    """The streams of a process. They end once the hub is closed; clients resume at another replica by sequence."""

    def __init__(self, reads: LedgerReads, hub: Hub) -> None:
        self._ledger = reads
        self._hub = hub
        self._reads = metrics.cell("tenure_watch_reads_total")

    async def entries(self, tenant: str, task_id: str, after: int) -> AsyncIterator[pb.WatchEntriesResponse]:
        """Streams entries until the entry that closes the task. Raises NotFound, OutOfRange (CURSOR_EXPIRED),
        Unavailable.

        Holds one page while it is sent and, within bounds, the entries that this process committed meanwhile. A watcher
        that has all earlier entries gets those directly. The ledger is read for watchers that are behind, or when
        another replica committed.
        """
        with self._hub.watch_task(task_id) as watch:
            await self._position(tenant, task_id, after)
            watch.seen_sequence = after
            appended: list[AppendedEntries] | None = None
            while True:
                position, entries = await self._next(tenant, task_id, watch.seen_sequence, appended)
                watch.seen_sequence = entries[-1].sequence if entries else watch.seen_sequence
                complete = watch.seen_sequence == position.sequence
                closed = complete and position.ended
                if entries or closed:
                    yield pb.WatchEntriesResponse(entries=entries, closed=closed)
                if closed:
                    return
                appended = await watch.take() if complete else None
                self._refuse_when_draining()

    async def closing(self, tenant: str, task_id: str, after: int) -> AsyncIterator[pb.WatchEntriesResponse]:
        """Sends one response with `closed`, once the task has ended. Raises what `entries` raises.

        Reads the ledger at the beginning and when the task is reported as ended, whatever is committed in between.
        """
        with self._hub.watch_end(task_id) as ended:
            while not (await self._position(tenant, task_id, after)).ended:
                await ended.wait()
                ended.clear()
                self._refuse_when_draining()
        yield pb.WatchEntriesResponse(closed=True)

    async def queue(self) -> AsyncIterator[pb.WatchQueueResponse]:
        """Tells coordinators when to ask for offers and for pending endings, and which owners have an interrupting
        message; at the beginning, to ask for everything.
        """
        with self._hub.watch_queue() as watch:
            while True:
                events = await watch.take()
                self._refuse_when_draining()
                yield pb.WatchQueueResponse(
                    claimable=events.claimable,
                    cancel_task_ids=sorted(events.ending_task_ids),
                    interrupt_task_ids=sorted(events.interrupted_task_ids),
                    interrupts_lost=events.interrupts_lost,
                )

    async def _next(
        self, tenant: str, task_id: str, after: int, appended_entries: list[AppendedEntries] | None
    ) -> tuple[LedgerPosition, list[ledger_pb2.Entry]]:
        """Returns the end of the ledger and the entries after a sequence: the given appended entries, or else a
        page.
        """
        if appended_entries is None:
            self._reads.value += 1
            return await entries_after(self._ledger, tenant, task_id, after)
        position = LedgerPosition(appended_entries[-1].last, appended_entries[-1].closes)
        return position, [entry for appended in appended_entries for entry in appended.entries]

    async def _position(self, tenant: str, task_id: str, after: int) -> LedgerPosition:
        """Returns the end of the ledger. Raises NotFound, or OutOfRange for a sequence after it."""
        self._reads.value += 1
        async with pool_connection(self._ledger.primary) as connection:
            position = await position_of(connection, tenant, task_id)
        if after > position.sequence:
            raise OutOfRange(f"the ledger ends at {position.sequence}", reason="CURSOR_EXPIRED")
        return position

    def _refuse_when_draining(self) -> None:
        if self._hub.closed:
            raise draining()
