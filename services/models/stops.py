"""Follows the ledger's stops: a covered call that was not sent is not sent any more; one that was sent goes on.

The ledger grants no reservation of a covered task, so this concerns calls that were reserved before: those that wait
for a rate limit, those whose worker was slow, and those that an endpoint refused, before another request. Such a call
ends as INTERRUPTED, and the task learns of the stop when it reserves the next attempt. A runner that cannot reach the
ledger keeps to the stops that it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Never

from tenure.domain.errors import TenureError
from tenure.domain.stops import StopsInForce, Subject
from tenure.runtime.process import rest
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.stops import in_force_of, stop_to_wire

_log: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 0.25
TIMEOUT_SECONDS: Final = 5.0


class LedgerStops:
    """The stops in force as this process knows them. The duty is `run`; it calls `on_change` after each change."""

    def __init__(self, checkpoint: TenureChannel, reader: str) -> None:
        self._stub: Any = CheckpointServiceStub(checkpoint)
        self._reader = reader
        self._in_force = StopsInForce(0)
        self._fails = False
        self.on_change: Callable[[], None] = lambda: None

    def covers(self, subject: Subject) -> bool:
        """Whether no model call of the task is sent."""
        return bool(self._in_force.stops) and self._in_force.of_task(subject) is not None

    async def run(self) -> Never:
        """Follows the stops, as a duty. Each question also says which epoch this process keeps to."""
        while True:
            if not await self.try_once():
                await rest(POLL_SECONDS)

    async def try_once(self) -> bool:
        """Asks once. Returns whether the stops have changed, which the next question confirms."""
        try:
            has_changed = await self.read()
        except (TenureError, PeerFailed) as error:
            if not self._fails:
                _log.warning("cannot read the ledger's stops", extra={"why": str(error)})
            self._fails = True
            return False
        self._fails = False
        return has_changed

    async def read(self) -> bool:
        """Asks once. Returns whether the stops have changed."""
        known = self._in_force
        applied = map(stop_to_wire, known.stops)  # an older ledger, restored, takes those that it lacks
        request = admin_pb.ListStopsRequest(reader=self._reader, applied_epoch=known.epoch, applied=applied)
        listed = in_force_of(await self._stub.ListStops(request, timeout=TIMEOUT_SECONDS))
        if listed.epoch == self._in_force.epoch:
            return False
        self._in_force = listed
        self.on_change()
        return True
