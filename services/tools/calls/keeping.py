"""Keeps content that is too large for the ledger: a write to the workspace for a claim, under the lock of its fence."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from services.tools.calls.accept import lock_fences, raise_fences
from services.tools.calls.accept_rules import admit
from services.tools.calls.call_log import RefusedCall, insert_refusals, log_refusals
from services.tools.calls.closing import FenceCloser
from services.tools.workspace.kept import ContentPart
from services.tools.workspace.requests import FileRequests
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import Claims
from tenure.domain.texts import KeptContent
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

METHOD: Final = "KeepContent"


class ContentKeeper:
    """Writes and reads kept content for claims."""

    def __init__(self, pool: Pool, closing: FenceCloser, files: FileRequests) -> None:
        self._pool, self._closing, self._files = pool, closing, files

    async def keep(self, claims: Claims, task_id: UUID, part: ContentPart) -> KeptContent | None:
        """Writes a part. Returns the content after the last one.

        The fence stays locked for the write: when a newer claim has raised it, nothing of an older one is written any
        more. Raises StaleEpoch, and WrongState as `FileRequests.keep`.
        """

        async def work(postgres: Connection) -> RefusedCall | KeptContent | None:
            current = (await lock_fences(postgres, {task_id: claims.tenant}))[task_id]
            fence = admit(current, claims.fence)
            if isinstance(fence, StaleEpoch):
                refusal = RefusedCall.of(METHOD, task_id, claims, fence)
                await insert_refusals(postgres, [refusal])
                return refusal
            if fence != current:
                await raise_fences(postgres, {task_id: fence})
            return await self._files.keep(claims.tenant, str(task_id), part)

        result = await in_transaction(self._pool, work)
        if isinstance(result, RefusedCall):
            log_refusals([result])
            raise StaleEpoch(presented=result.presented_epoch, current=result.current_epoch)
        return result

    async def read(self, claims: Claims, task_id: UUID, path: str, offset: int) -> bytes:
        """Returns a part of kept content; b"" at its end. Raises StaleEpoch, NotFound and WrongState."""
        await self._closing.check(claims, task_id)
        return await self._files.read_kept(claims.tenant, str(task_id), path, offset)
