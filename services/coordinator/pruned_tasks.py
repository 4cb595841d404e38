"""Makes the tool service forget pruned tasks, with a token of each task's last grant.

The coordinator stores nothing: the ledger lists an unfinished task again, for any replica.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from services.coordinator.claims.issuing import Issuer
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.tools_client import ToolsClient
from tenure.domain.errors import TenureError
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress, rest
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_FAILED_PAUSE_SECONDS: Final = 5.0
_AT_ONCE: Final = 16


class PrunedTasks:
    """Works in every replica: the ledger gives each task to one replica. The duty is `run`.

    The ledger or the tool service may be of an older version without these methods.
    """

    def __init__(self, ledger: LedgerClient, tools: ToolsClient, issuer: Issuer, holder: str) -> None:
        self._ledger, self._tools, self._issuer, self._holder = ledger, tools, issuer, holder

    async def run(self) -> None:
        """Works once a second. A duty."""
        while True:
            try:
                while await self._forget_some() == _AT_ONCE:
                    pass
            except (TenureError, PeerFailed) as error:
                _log.warning("pruned tasks could not be listed", extra={"error": error})
                await rest(_FAILED_PAUSE_SECONDS)
            await rest(_POLL_SECONDS * random.uniform(0.8, 1.2))

    async def _forget_some(self) -> int:
        """Handles some pruned tasks.

        Returns their number, or 0 if none was forgotten; the ledger lists those again later.
        """
        note_progress()
        prunings = await self._ledger.list_prunings(_AT_ONCE)
        if not prunings:
            return 0
        await failpoint("coordinator.before_forget")
        answers = await asyncio.gather(*map(self._forget, prunings))
        forgotten = [one.task_id for one, done in zip(prunings, answers, strict=True) if done]
        await failpoint("coordinator.after_forget")
        if forgotten:
            await self._ledger.note_forgotten(forgotten)
        return len(prunings) if forgotten else 0

    async def _forget(self, pruning: pb.ListPruningsResponse.Pruning) -> bool:
        with as_tenant(pruning.tenant):
            token = self._issuer.issue_again(
                pruning.task_id, pruning.tenant, pruning.epoch, pruning.claim_id, self._holder
            )
            try:
                await self._tools.forget(token)
            except (TenureError, PeerFailed) as error:
                _log.warning(
                    "the tool service did not forget a pruned task", extra={"task": pruning.task_id, "error": error}
                )
                return False
        return True
