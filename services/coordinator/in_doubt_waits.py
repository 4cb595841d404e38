"""Ends waits for resolutions that are no longer needed, because the tool service knows the calls' outcomes by now.

A runner that was declared dead may wake up and record the outcome. It does not notify the ledger, so this module polls
the tool service.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from services.coordinator.ledger_client import LedgerClient
from services.coordinator.tools_client import ToolsClient
from tenure.domain.errors import TenureError
from tenure.domain.in_doubt import nothing_in_doubt
from tenure.runtime.process import note_progress, rest
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.tool import calls_in_doubt_to_domain

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_FAILED_PAUSE_SECONDS: Final = 5.0
_AT_ONCE: Final = 32


class InDoubtWaits:
    """Polls in every replica: the ledger gives each wait to one replica. The duty is `run`.

    The ledger or the tool service may be of an older version without these methods.
    """

    def __init__(self, ledger: LedgerClient, tools: ToolsClient) -> None:
        self._ledger, self._tools = ledger, tools

    async def run(self) -> None:
        """Polls once a second. A duty."""
        while True:
            try:
                while await self._check_some() == _AT_ONCE:
                    pass
            except (TenureError, PeerFailed) as error:
                _log.warning("waits for resolutions of calls in doubt could not be checked", extra={"error": error})
                await rest(_FAILED_PAUSE_SECONDS)
            await rest(_POLL_SECONDS * random.uniform(0.8, 1.2))

    async def _check_some(self) -> int:
        """Checks some waits and returns their number. The ledger lists an unsettled one again after a while."""
        note_progress()
        waits = await self._ledger.list_doubt_waits(_AT_ONCE)
        answers = await asyncio.gather(*map(self._is_settled, waits))
        settled = [one for one, is_settled in zip(waits, answers, strict=True) if is_settled]
        if settled:
            for task_id in await self._ledger.requeue_settled(settled):
                _log.info("no call of the task is in doubt any more", extra={"task": task_id})
        return len(waits)

    async def _is_settled(self, wait: pb.ListDoubtWaitsResponse.DoubtWait) -> bool:
        waited_for = calls_in_doubt_to_domain(wait.calls)
        with as_tenant(wait.tenant):
            try:
                statuses = await self._tools.look(wait.task_id, [call.call_id for call in waited_for])
            except (TenureError, PeerFailed) as error:
                _log.warning("the tool service did not answer whether calls are in doubt", extra={"error": error})
                return False
        return nothing_in_doubt(waited_for, statuses)
