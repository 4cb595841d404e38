"""WorkerService: the live text of this worker's tasks, for whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from services.worker.holdings import Holding, Holdings
from services.worker.live_text import Piece
from tenure.domain.errors import NotFound
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as pb
from tenure.v1 import worker_service_pb2_grpc as grpc_pb

COALESCE_SECONDS: Final = 0.05
"""So long pieces are gathered: a message each would cost more than the model's stream itself."""


class LiveServicer(grpc_pb.WorkerServiceServicer):
    """Reads the holdings; the tasks' loops do not know of it."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    async def WatchLive(self, request: pb.WatchLiveRequest, _context: Any) -> AsyncIterator[pb.WatchLiveResponse]:
        """See the proto. A slow reader holds up only itself: what it missed comes in one piece."""
        holding = self._holdings.get(request.task_id)
        if holding is None or (holding.claims.tenant, holding.claims.epoch) != (current_tenant(), request.epoch):
            raise NotFound(f"this worker does not hold task {request.task_id} under that epoch")
        cursor = holding.live.cursor()
        while True:
            closed = holding.live.closed
            for piece in holding.live.since(cursor):
                yield pb.WatchLiveResponse(delta=_delta(holding, piece))
            if closed:
                return
            await holding.live.wait_changed(cursor)
            await asyncio.sleep(COALESCE_SECONDS)


def _delta(holding: Holding, piece: Piece) -> live_pb2.Delta:
    return live_pb2.Delta(
        epoch=holding.claims.epoch,
        step=piece.step,
        attempt_number=piece.attempt_number,
        block=piece.block,
        offset=piece.offset,
        text=piece.text,
    )
