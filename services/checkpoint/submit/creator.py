"""The batches that create tasks, and what is created alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from services.checkpoint.ledger_batches import LedgerBatches
from services.checkpoint.queries import SESSION_SETTINGS
from services.checkpoint.submit.create import CreateResult, Submit, create_batch, create_task, in_creation
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import TenureError
from tenure.runtime.settings import Secret
from tenure.runtime.store.batching import BatchLimits
from tenure.runtime.store.postgres import Pool
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2

LIMITS: Final = BatchLimits(max_items=64, full_reason="CREATE_QUEUE_FULL")


class LedgerCreator(LedgerBatches[Submit, CreateResult | None]):
    """Creates tasks, many in one transaction.

    Submits that may have to wait for others of their tenant, for another transaction that uses their request id or
    source, or that take a prepared id, are created alone, on a connection of the pool.
    """

    def __init__(
        self,
        dsn: str | Secret,
        pool: Pool,
        announce: Callable[[Announcement], None],
        defaults: TaskDefaults,
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
    ) -> None:
        super().__init__(
            "creates",
            dsn,
            pool,
            announce,
            in_session,
            key=lambda submit: (submit.tenant, submit.request.request_id),
            size=lambda submit: submit.request.ByteSize(),
            limits=LIMITS,
        )
        self._defaults = defaults

    async def create(self, tenant: str, request: pb.CreateTaskRequest) -> task_pb2.Task:
        """Creates a task, or returns the one that an equal request created before. Raises as `create_task`."""
        submit = Submit(tenant, request)
        created = None if request.prepared_task_id else await self._submit(submit)
        if created is None:
            created = await self._alone(submit)
        return created.task

    async def _alone(self, item: Submit) -> CreateResult:
        created = await create_task(self._pool, item, self._defaults)
        self._announce(created.announcement)
        return created

    async def _together(self, batch: Sequence[Submit]) -> Sequence[CreateResult | TenureError | None]:
        results = await in_creation(lambda: self._create(batch))
        news = Announcement()
        for result in results:
            if isinstance(result, CreateResult):
                news.add(result.announcement)
        self._announce(news)
        return results

    async def _create(self, batch: Sequence[Submit]) -> list[CreateResult | TenureError | None]:
        async with self._postgres.transaction() as transaction:
            return await create_batch(transaction, batch, self._defaults)
