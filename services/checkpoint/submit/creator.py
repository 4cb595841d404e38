"""The connection that creates tasks in batches, and what is created alone.

As with commits there is no time window: a single submit is never delayed, and batches grow with the load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS, prepare_connection
from services.checkpoint.submit.create import CreateResult, Submit, create_batch, create_task, in_creation
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.rpc.status import LOCK_TIMEOUT
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.settings import Secret
    from tenure.runtime.store.postgres import Pool
    from tenure.v1 import checkpoint_service_pb2 as pb
    from tenure.v1 import task_pb2

LOCK_TIMEOUT_SECONDS: Final = 0.25
"""A submit waits for another transaction that uses its request id or source; it must not delay the batches."""
LIMITS: Final = BatchLimits(max_items=64, full_reason="CREATE_QUEUE_FULL")


class LedgerCreator:
    """Creates tasks, many in one transaction. Close it at the end. The duty is `run`.

    Submits that may have to wait for others of their tenant, or that take a prepared id, are created alone, on a
    connection of the pool.
    """

    def __init__(
        self,
        dsn: str | Secret,
        pool: Pool,
        announce: Callable[[Announcement], None],
        defaults: TaskDefaults,
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
    ) -> None:
        self._postgres = DedicatedConnection(
            dsn,
            service="checkpoint-creates",
            schema=SCHEMA,
            options=PoolOptions(lock_timeout_seconds=LOCK_TIMEOUT_SECONDS, settings=in_session),
            prepare=prepare_connection,
        )
        self._pool = pool
        self._announce = announce
        self._defaults = defaults
        self._batcher: Batcher[Submit, CreateResult | None] = Batcher(
            "creates",
            self._write,
            key=lambda submit: (submit.tenant, submit.request.request_id),
            size=lambda submit: submit.request.ByteSize(),
            limits=LIMITS,
        )

    async def __aenter__(self) -> Self:
        await self._postgres.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._postgres.close()

    async def run(self) -> None:
        """Creates batches until it is cancelled. A duty."""
        await self._batcher.run()

    async def create(self, tenant: str, request: pb.CreateTaskRequest) -> task_pb2.Task:
        """Creates a task, or returns the one that an equal request created before. Raises as `create_task`."""
        submit, created = Submit(tenant, request), None
        if not request.prepared_task_id:
            try:
                created = await self._batcher.submit(submit)
            except Unavailable as error:
                if error.reason != LOCK_TIMEOUT:
                    raise
        if created is None:
            created = await create_task(self._pool, submit, self._defaults)
            self._announce(created.announcement)
        return created.task

    async def _write(self, batch: Sequence[Submit]) -> Sequence[CreateResult | TenureError | None]:
        try:
            results = await in_creation(lambda: self._create_together(batch))
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
            return [error for _ in batch]
        news = Announcement()
        for result in results:
            if isinstance(result, CreateResult):
                news.add(result.announcement)
        self._announce(news)
        return results

    async def _create_together(self, batch: Sequence[Submit]) -> list[CreateResult | TenureError | None]:
        async with self._postgres.transaction() as transaction:
            return await create_batch(transaction, batch, self._defaults)
