"""What becomes of offers and claims when a replica of the ledger has a bug or is of another version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc

from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.claims.granting import ClaimGranter
from services.coordinator.lease_store import HeldClaim
from services.coordinator.lease_store.claim_keys import ClaimResult, NewClaim
from services.coordinator.sessions.session_attach import Sessions
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.test_coordinator_session import TIMING, session

BUG = PeerFailed(grpc.StatusCode.INTERNAL, "internal error")


class Etcd:
    """Makes every claim, and remembers the deleted ones."""

    def __init__(self) -> None:
        self.claims, self.deleted, self.changed = self, list[str](), asyncio.Event()

    async def claim_many(self, wanted: Sequence[NewClaim]) -> list[ClaimResult]:
        return [ClaimResult(each, HeldClaim(each.task_id, each.record, 200, 7)) for each in wanted]

    async def delete(self, held: HeldClaim) -> bool:
        self.deleted.append(held.task_id)
        self.changed.set()
        return True


class Ledger:
    """Has a bug in its first answer to each request, and one task after that."""

    def __init__(self) -> None:
        self.lists = 0

    async def list_claimable(self, *_: Any, without_suspects: bool) -> list[pb.Offer]:
        assert not without_suspects
        self.lists += 1
        if self.lists == 1:
            raise BUG
        return [pb.Offer(task_id="t1", tenant="default")] if self.lists == 2 else []

    async def register(self, _claims: Sequence[HeldClaim]) -> set[str]:
        raise BUG


async def test_a_bug_of_the_ledger_leaves_no_claim() -> None:
    """The claim stayed in etcd, and held its task up until the reconciliation found it."""
    etcd, ledger, sessions, worker = Etcd(), Ledger(), Sessions(), session()
    worker.timing = replace(TIMING, renew_interval_seconds=1000.0)
    worker.renewed(asyncio.get_running_loop().time())
    sessions.attach(worker)
    generation = cast("Any", SimpleNamespace(is_settled=True, current=lambda: 1))
    parts: list[Any] = [etcd, ledger, etcd, SimpleNamespace(key_id="k"), generation]
    dispatch = Dispatch(cast("Any", ledger), sessions, ClaimGranter(*parts), generation, asyncio.Event())
    duty = asyncio.create_task(dispatch.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await etcd.changed.wait()
            while ledger.lists < 3:
                await asyncio.sleep(0.02)
        assert not duty.done()
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
    assert etcd.deleted == ["t1"]
