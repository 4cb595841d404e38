"""The client's calls that prune ended tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import admin_service_pb2 as pb
from tenure.wire.times import timestamp

if TYPE_CHECKING:  # these exist for type checkers only
    from datetime import datetime

    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub

_MOST: Final = 500


class PruneCalls:
    """A part of Client, which has the stub and the patience."""

    admin: AdminServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def prune(self, task_id: str, reason: str, *, dry_run: bool = False) -> None:
        """One ended task goes for good; its bills stay. Repeatable. Raises NotFound, WrongState."""
        asked = pb.PruneTasksRequest(task_id=task_id, reason=reason, dry_run=dry_run)
        await self._patiently(self.admin.PruneTasks, asked)

    async def prune_before(
        self, ended_before: datetime, reason: str, *, dry_run: bool = False
    ) -> AsyncGenerator[list[str]]:
        """Those that ended before a moment, some at a time; with `dry_run` the first 500 that would go."""
        asked = pb.PruneTasksRequest(ended_before=timestamp(ended_before), reason=reason, dry_run=dry_run, limit=_MOST)
        more = True
        while more:
            told: pb.PruneTasksResponse = await self._patiently(self.admin.PruneTasks, asked)
            yield list(told.task_ids)
            more = told.more and not dry_run
