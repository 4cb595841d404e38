"""Tasks that wait for a word on calls in doubt although the tools know by now what became of them.

A runner that was taken for dead may wake up and record what it did: nobody tells the ledger, so the tools are asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import TenureError
from tenure.domain.in_doubt import nothing_in_doubt
from tenure.runtime.process import note_progress, rest
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc_status import PeerFailed
from tenure.wire.tool import calls_in_doubt_to_domain

if TYPE_CHECKING:
    from services.coordinator.ledger_client import LedgerClient
    from services.coordinator.tools_client import ToolsClient
    from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_FAILED_PAUSE_SECONDS: Final = 5.0
_AT_ONCE: Final = 32


class InDoubtWaits:
    """The duty `run`, in every replica: the ledger gives each wait to one of them. Ledger and tools may be of an older
    version that knows none of this.
    """

    def __init__(self, ledger: LedgerClient, tools: ToolsClient) -> None:
        self._ledger, self._tools = ledger, tools

    async def run(self) -> None:
        """Duty."""
        while True:
            try:
                while await self._see_to_some() == _AT_ONCE:
                    pass
            except (TenureError, PeerFailed) as error:
                _log.warning("waits for words on calls in doubt could not be seen to", extra={"error": error})
                await rest(_FAILED_PAUSE_SECONDS)
            await rest(_POLL_SECONDS * random.uniform(0.8, 1.2))

    async def _see_to_some(self) -> int:
        """How many were told of. What the tools do not say now is asked again after a while."""
        note_progress()
        waits = await self._ledger.list_doubt_waits(_AT_ONCE)
        answers = await asyncio.gather(*map(self._is_settled, waits))
        settled = [one for one, is_settled in zip(waits, answers, strict=True) if is_settled]
        if settled:
            for task_id in await self._ledger.requeue_settled(settled):
                _log.info("nothing of this task is in doubt any more", extra={"task": task_id})
        return len(waits)

    async def _is_settled(self, wait: pb.ListDoubtWaitsResponse.DoubtWait) -> bool:
        waited_for = calls_in_doubt_to_domain(wait.calls)
        with as_tenant(wait.tenant):
            try:
                statuses = await self._tools.look(wait.task_id, [call.call_id for call in waited_for])
            except (TenureError, PeerFailed) as error:
                _log.warning("the tools do not say whether calls are in doubt", extra={"error": error})
                return False
        return nothing_in_doubt(waited_for, statuses)
