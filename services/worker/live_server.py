"""Serves WorkerService: the live text of this worker's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.live_text import TextPiece
from tenure.domain.errors import NotFound
from tenure.runtime.request_context import current_tenant
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as pb
from tenure.v1 import worker_service_pb2_grpc as grpc_pb

COALESCE_SECONDS: Final = 0.05
"""The time in which pieces are gathered: a message for each would cost more than the model's stream itself."""


class LiveServicer(grpc_pb.WorkerServiceServicer):
    """Reads the held tasks; the tasks' loops do not depend on it. `proof`: shows gateways whose text it is."""

    def __init__(self, held_tasks: HeldTasks, proof: bytes) -> None:
        self._held_tasks, self._proof = held_tasks, proof

    async def WatchLive(self, request: pb.WatchLiveRequest, _context: Any) -> AsyncIterator[pb.WatchLiveResponse]:
        """See the proto. A slow reader delays only itself: it receives the missed text in one piece."""
        held_task = self._held_tasks.get(request.task_id)
        if held_task is None or (held_task.claims.tenant, held_task.claims.epoch) != (current_tenant(), request.epoch):
            raise NotFound(f"this worker does not hold task {request.task_id} under epoch {request.epoch}")
        cursor = held_task.live.cursor()
        yield pb.WatchLiveResponse(holder_proof=self._proof)
        while True:
            closed = held_task.live.closed
            if held_task.live.take_completion(cursor):  # of an answer before the newest call
                yield pb.WatchLiveResponse(answer_complete=True)
            for piece in held_task.live.since(cursor):
                yield pb.WatchLiveResponse(delta=_delta(held_task, piece))
            if held_task.live.take_completion(cursor):
                yield pb.WatchLiveResponse(answer_complete=True)
            if closed:
                return
            await held_task.live.wait_changed(cursor)
            await asyncio.sleep(COALESCE_SECONDS)


def _delta(held_task: HeldTask, piece: TextPiece) -> live_pb2.Delta:
    return live_pb2.Delta(
        epoch=held_task.claims.epoch,
        step=piece.step,
        attempt_number=piece.attempt_number,
        block=piece.block,
        offset=piece.offset,
        text=piece.text,
    )
