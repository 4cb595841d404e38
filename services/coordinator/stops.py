"""Gives the tool service the ledger's stops, in case that a gateway died between the two, or the tool service was away.

A tool service that no coordinator reaches keeps to the stops that it has.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from services.coordinator.ledger_client import LedgerClient
from services.coordinator.tools_client import ToolsClient
from tenure.domain.errors import TenureError
from tenure.domain.stops import keeps_unknown
from tenure.runtime.process import rest
from tenure.runtime.rpc.status import PeerFailed

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.5
_AGAIN_AFTER: Final = 20
"""After so many polls it gives unchanged stops again: the tool service may have been restored."""


class StopPush:
    """Works in every replica, because the tool service compares epochs. The duty is `run`."""

    def __init__(self, ledger: LedgerClient, tools: ToolsClient) -> None:
        self._ledger, self._tools = ledger, tools
        self._fails = False
        self._pushed, self._since = -1, 0

    async def run(self) -> None:
        """Works twice a second. A duty."""
        while True:
            try:
                await self.push()
                self._fails = False
            except (TenureError, PeerFailed) as error:
                if not self._fails:
                    _log.warning("the tool service did not take the ledger's stops", extra={"error": error})
                self._fails = True
            await rest(_POLL_SECONDS * random.uniform(0.8, 1.2))

    async def push(self) -> None:
        """Gives the stops once. Raises what the ledger and the tool service raise."""
        stops, self._since = await self._ledger.list_stops(), self._since + 1
        if stops.epoch == self._pushed and self._since < _AGAIN_AFTER:
            return
        kept = await self._tools.set_stops(stops)
        if keeps_unknown(kept, stops):
            await self._tools.set_stops(stops := await self._ledger.list_stops(kept))
        self._pushed, self._since = stops.epoch, 0
