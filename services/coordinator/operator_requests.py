"""Carries out operators' requests: lists of workers and claims, transfer of a task, drain of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.lease_store import HeldClaim, HeldSession, LeaseStore
from services.coordinator.lease_store.session_keys import DrainRecord
from services.coordinator.pools import WorkerPools
from services.coordinator.sessions.lease_end import lease_end
from services.coordinator.sessions.session import WorkedClaim
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.access import certificate_name
from tenure.domain.errors import NotFound, PermissionDenied, WrongState
from tenure.domain.pools import OUTSIDE_POOL, SETTING, WorkerPool
from tenure.domain.states import Reason
from tenure.runtime.failpoints import failpoint
from tenure.runtime.request_context import current_tenant
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.validators.admin_service import MAX_WORKERS_A_PAGE
from tenure.wire.common import duration, timestamp

# Lists of live workers and claims, read from etcd.

_MAX_CLAIMS: Final = 10_000
_LEASES_AT_ONCE: Final = 16
_WORKERS_PAGE_BYTES: Final = 2_000_000


async def list_workers(
    store: LeaseStore, pools: WorkerPools, request: admin_pb.ListWorkersRequest
) -> admin_pb.ListWorkersResponse:
    """Returns a page of the live sessions of workers, by worker id. Raises Unavailable.

    The token is the position of the last session. A page ends before the most bytes, because the queues, loops and
    tenants of a worker have no common limit; it always has a worker.
    """
    sessions = [held for held in await store.sessions.list_all() if not held.record.own]
    counts = Counter(claim.record.session_id for claim in (await store.claims.list_all()).values())
    drains = await store.drains.list_all()
    after = _read_token(request.page_token)
    rest = sorted((held for held in sessions if _position(held) > after), key=_position)
    page, size_bytes = list[admin_pb.Worker](), 0
    for held in rest[: request.page_size or MAX_WORKERS_A_PAGE]:
        worker = worker_to_wire(held, counts[held.session_id], pools, draining=held.session_id in drains)
        size_bytes += worker.ByteSize()
        if page and size_bytes > _WORKERS_PAGE_BYTES:
            break
        page.append(worker)
    token = " ".join(_position(rest[len(page) - 1])) if len(page) < len(rest) else ""
    return admin_pb.ListWorkersResponse(workers=page, next_page_token=token)


def _position(held: HeldSession) -> tuple[str, str]:
    return held.record.worker_id, held.session_id


def _read_token(token: str) -> tuple[str, str]:
    """Returns the position after which the page begins. The checks of the request know the form of a token."""
    worker_id, _, session_id = token.partition(" ")
    return worker_id, session_id


async def list_claims(store: LeaseStore, task_id: str) -> list[admin_pb.Claim]:
    """Returns the live claims with the remaining seconds of their leases, sorted by task id. Raises Unavailable."""
    held_claims = await (store.claims.find_many([task_id]) if task_id else store.claims.list_all())
    claims = [held_claims[each] for each in sorted(held_claims)[:_MAX_CLAIMS]]
    remaining = await _remaining(store, {claim.lease for claim in claims})
    return [_claim(claim, remaining[claim.lease]) for claim in claims]


def list_renewals(sessions: Sessions, task_id: str) -> dict[str, admin_pb.Renewals]:
    """Returns the renewals of the claims at this replica, by claim id."""
    claims = (claim for session in sessions for claim in session.claims.values())
    counted = (claim for claim in claims if claim.renewals is not None and task_id in {"", claim.held.task_id})
    return {claim.held.record.claim_id: _renewals(claim) for claim in islice(counted, _MAX_CLAIMS)}


def _renewals(claim: WorkedClaim) -> admin_pb.Renewals:
    renewals = claim.renewals
    assert renewals is not None, "its claim was renewed"
    return admin_pb.Renewals(
        first_time=timestamp(datetime.fromtimestamp(renewals.first_at, UTC)),
        last_time=timestamp(datetime.fromtimestamp(renewals.last_at, UTC)),
        count=renewals.count,
        model_call_waits=claim.progress.reported.model_call_waits,
    )


async def _remaining(store: LeaseStore, leases: set[int]) -> dict[int, int]:
    remaining: dict[int, int] = {}
    at_once = asyncio.Semaphore(_LEASES_AT_ONCE)

    async def read_one(lease: int) -> None:
        async with at_once:
            remaining[lease] = await store.sessions.remaining_seconds(lease)

    await asyncio.gather(*map(read_one, leases))
    return remaining


def worker_to_wire(session: HeldSession, claim_count: int, pools: WorkerPools, *, draining: bool) -> admin_pb.Worker:
    """Returns a session as the API shows it. A session without a pool is about to end: it takes no more tasks."""
    record = session.record
    pool = _pool(session, pools)
    return admin_pb.Worker(
        worker_id=record.worker_id,
        session_id=session.session_id,
        live_address=record.live_address,
        coordinator_id=record.coordinator_id,
        claim_count=claim_count,
        queues=record.queues,
        start_time=timestamp(datetime.fromtimestamp(record.started_at, UTC)),
        draining=draining or pool is None,
        loops=record.loops,
        priorities=record.priorities,
        pool="" if pool is None else pool.name,
        tenants=[] if pool is None else sorted(pool.tenants or ()),
        build=record.build,
    )


def _pool(session: HeldSession, pools: WorkerPools) -> WorkerPool | None:
    try:
        return pools.pool_of(certificate_name(session.record.identity))
    except PermissionDenied:
        return None


def _claim(claim: HeldClaim, remaining_seconds: int) -> admin_pb.Claim:
    record = claim.record
    return admin_pb.Claim(
        task_id=claim.task_id,
        claim_id=record.claim_id,
        epoch=claim.epoch,
        worker_id=record.worker_id,
        session_id=record.session_id,
        reason=record.reason,
        previous_epoch=record.previous_epoch,
        remaining=duration(remaining_seconds),
    )


_log: Final = logging.getLogger(__name__)
WORKER_NOT_FOUND: Final = "WORKER_NOT_FOUND"


class OperatorRequests:
    """Accepts a request for any worker, at any replica: writes are conditional and reach other replicas
    through etcd.
    """

    def __init__(self, store: LeaseStore, sessions: Sessions, lost_claims: LostClaims, pools: WorkerPools) -> None:
        self._store = store
        self._pools = pools
        self._sessions = sessions
        self._lost_claims = lost_claims

    async def transfer(self, request: admin_pb.TransferTaskRequest) -> bool:
        """Transfers a task. Returns whether it was taken from its owner now.

        Raises NotFound, WrongState (OUTSIDE_POOL) and Unavailable.
        """
        if request.to_worker_id:
            self._check_pool(request.to_worker_id, await self._live(request.to_worker_id))
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
            worked.progress.reported.call if worked is not None else None,
            actor=request.actor,
            to_worker_id=request.to_worker_id,
            lease_end=None if session is None else lease_end(session, held.record.claim_id),
        )
        return await self._lost_claims.transfer(held, lost)

    async def drain(self, request: admin_pb.DrainWorkerRequest) -> list[admin_pb.Worker]:
        """Marks every session of the worker as draining. Other replicas notify their sessions. Raises NotFound."""
        record = DrainRecord(actor=request.actor, reason=request.reason)
        live = await self._live(request.worker_id)
        await failpoint("coordinator.before_drain")
        marked = [held for held in live if await self._store.drains.put(held, record)]
        await failpoint("coordinator.after_drain")
        if not marked:
            raise NotFound(f"the sessions of worker {request.worker_id} have ended", reason=WORKER_NOT_FOUND)
        _log.info("a worker is marked to drain", extra={"worker": request.worker_id, "why": record.message})
        return [worker_to_wire(held, 0, self._pools, draining=True) for held in marked]

    def is_draining(self, session_id: str, record: DrainRecord) -> None:
        """Notifies the worker of a marked session that is attached here."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.request_drain(record.message)

    async def remind(self) -> None:
        """Notifies the attached workers whose mark the key watch has missed. Raises Unavailable."""
        for session_id, record in (await self._store.drains.list_all()).items():
            self.is_draining(session_id, record)

    def _check_pool(self, worker_id: str, sessions: Iterable[HeldSession]) -> None:
        tenant = current_tenant()
        pools = [pool for held in sessions if (pool := _pool(held, self._pools)) is not None]
        if not any(pool.takes_tenant(tenant) for pool in pools):
            raise WrongState(
                f"the pool of worker {worker_id} does not take tasks of the tenant {tenant}: name another worker, or "
                f"add the tenant to the pool in the file of {SETTING}",
                reason=OUTSIDE_POOL,
            )

    async def _live(self, worker_id: str) -> list[HeldSession]:
        sessions = await self._store.sessions.list_all()
        live_sessions = [held for held in sessions if held.record.worker_id == worker_id and not held.record.own]
        if not live_sessions:
            raise NotFound(f"no worker {worker_id} has a live session", reason=WORKER_NOT_FOUND)
        return live_sessions
