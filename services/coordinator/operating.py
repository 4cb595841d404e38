"""What operators do through the coordinator: take a task from its owner, and tell a worker to drain."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from services.coordinator.lease_store.drain_marks import DrainRecord
from services.coordinator.listings import worker_to_wire
from services.coordinator.losses import LostClaim
from tenure.domain.errors import NotFound
from tenure.domain.states import Reason
from tenure.runtime.failpoint import failpoint
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import coordinator_service_pb2 as pb

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldSession, LeaseStore
    from services.coordinator.losses import Losses
    from services.coordinator.sessions import Sessions

_log: Final = logging.getLogger(__name__)
WORKER_NOT_FOUND: Final = "WORKER_NOT_FOUND"


class Operating:
    """Any replica may be asked about any worker: what it does is conditional, and told to the others through etcd."""

    def __init__(self, store: LeaseStore, sessions: Sessions, losses: Losses) -> None:
        self._store = store
        self._sessions = sessions
        self._losses = losses

    async def transfer(self, request: pb.CoordinatorServiceTransferTaskRequest) -> bool:
        """Whether it was taken from its owner now. Raises NotFound, Unavailable."""
        if request.to_worker_id:
            await self._live(request.to_worker_id)
        held = (await self._store.claims.find_many([request.task_id])).get(request.task_id)
        if held is None or held.epoch != request.epoch or held.record.tenant != current_tenant():
            return False
        session = self._sessions.last_known(held.record.session_id)
        worked = session.claims.get(held.record.claim_id) if session is not None else None
        lost = LostClaim(
            held.task_id,
            held.record.claim_id,
            Reason.OPERATOR_TRANSFER,
            request.reason,
            worked.progress.heard.call if worked is not None else None,
            actor=request.actor,
            to_worker_id=request.to_worker_id,
        )
        return await self._losses.take_for_operator(held, lost)

    async def drain(self, request: pb.CoordinatorServiceDrainWorkerRequest) -> list[pb.Worker]:
        """Marks every session of the worker; those that are attached elsewhere are told there. Raises NotFound."""
        record = DrainRecord(actor=request.actor, reason=request.reason)
        live = await self._live(request.worker_id)
        await failpoint("coordinator.before_drain")
        marked = [held for held in live if await self._store.drains.put(held, record)]
        await failpoint("coordinator.after_drain")
        if not marked:
            raise NotFound(f"the worker {request.worker_id} has gone", reason=WORKER_NOT_FOUND)
        _log.info("a worker is to drain", extra={"worker": request.worker_id, "why": record.message})
        return [worker_to_wire(held, 0, draining=True) for held in marked]

    def told_to_drain(self, session_id: str, record: DrainRecord) -> None:
        """There is a mark: if the session is attached here, its worker is told."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.ask_drain(record.message)

    async def remind(self) -> None:
        """Tells the workers attached here whose mark the watch has missed. Raises Unavailable."""
        for session_id, record in (await self._store.drains.list_all()).items():
            self.told_to_drain(session_id, record)

    async def _live(self, worker_id: str) -> list[HeldSession]:
        sessions = await self._store.sessions.list_all()
        found = [held for held in sessions if held.record.worker_id == worker_id and not held.record.own]
        if not found:
            raise NotFound(f"there is no worker {worker_id}", reason=WORKER_NOT_FOUND)
        return found
