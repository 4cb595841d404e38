"""What is live: workers and claims, read from etcd for people."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.times import duration, timestamp

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldClaim, HeldSession, LeaseStore

_MOST_CLAIMS: Final = 10_000
_LEASES_AT_ONCE: Final = 16


async def list_workers(store: LeaseStore) -> list[pb.Worker]:
    """Live sessions of workers, by worker_id. Raises Unavailable."""
    sessions = await store.sessions.list_all()
    counts = Counter(claim.record.session_id for claim in (await store.claims.list_all()).values())
    drains = await store.drains.list_all()
    workers = [
        worker_to_wire(session, counts[session.session_id], draining=session.session_id in drains)
        for session in sessions
        if not session.record.own
    ]
    return sorted(workers, key=lambda worker: (worker.worker_id, worker.session_id))


async def list_claims(store: LeaseStore, task_id: str) -> list[pb.Claim]:
    """Live claims with what is left of their leases, by task_id. Raises Unavailable."""
    found = await (store.claims.find_many([task_id]) if task_id else store.claims.list_all())
    claims = [found[each] for each in sorted(found)[:_MOST_CLAIMS]]
    left = await _remaining(store, {claim.lease for claim in claims})
    return [_claim(claim, left[claim.lease]) for claim in claims]


async def _remaining(store: LeaseStore, leases: set[int]) -> dict[int, int]:
    left: dict[int, int] = {}
    at_once = asyncio.Semaphore(_LEASES_AT_ONCE)

    async def ask(lease: int) -> None:
        async with at_once:
            left[lease] = await store.sessions.remaining_seconds(lease)

    await asyncio.gather(*map(ask, leases))
    return left


def worker_to_wire(session: HeldSession, claim_count: int, *, draining: bool) -> pb.Worker:
    """A session as people see it."""
    record = session.record
    return pb.Worker(
        worker_id=record.worker_id,
        session_id=session.session_id,
        live_address=record.live_address,
        coordinator_id=record.coordinator_id,
        claim_count=claim_count,
        queues=record.queues,
        start_time=timestamp(datetime.fromtimestamp(record.started_at, UTC)),
        draining=draining,
        loops=record.loops,
        priorities=record.priorities,
    )


def _claim(claim: HeldClaim, remaining_seconds: int) -> pb.Claim:
    record = claim.record
    return pb.Claim(
        task_id=claim.task_id,
        claim_id=record.claim_id,
        epoch=claim.epoch,
        worker_id=record.worker_id,
        session_id=record.session_id,
        reason=record.reason,
        previous_epoch=record.previous_epoch,
        remaining=duration(remaining_seconds),
    )
