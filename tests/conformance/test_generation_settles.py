"""Laws of settling the generation, asked of the duty itself over a real etcd and a real ledger."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from services.coordinator.claims.lost_claims import LostClaims
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.generation import Generation
from services.coordinator.lease_store import ClaimRecord, HeldClaim, HeldSession, LeaseStore, SessionRecord
from services.coordinator.lease_store.claim_keys import MAX_BATCH, NewClaim
from services.coordinator.lease_store.records import CLAIMS, SESSIONS
from services.coordinator.lease_store.records import GENERATION_KEY as KEY
from services.coordinator.ledger_client import LedgerClient
from tenure.domain.errors import Unavailable
from tenure.runtime.process import Duties
from tests.support.etcd_restore import put_back, write_on
from tests.support.fix_etcd import own_prefix
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first, one_of_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from devstack.etcd import EtcdProcess
    from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint

NAMESPACE = b"/tenure/"


@pytest.fixture
async def client(etcd_process: EtcdProcess) -> AsyncIterator[EtcdClient]:
    """Of the shared etcd, with a prefix of the test's own."""
    namespace = own_prefix().encode()
    async with EtcdClient([etcd_process.endpoint], namespace=namespace, timeout_seconds=CALL_SECONDS) as made:
        yield made


@asynccontextmanager
async def watched_over(client: EtcdClient, replica: Checkpoint) -> AsyncIterator[Generation]:
    """A generation with its duty running."""

    async def on_health(serving: bool) -> None:
        pass

    store, ledger = LeaseStore(client), LedgerClient(replica.channel)
    losses = LostClaims(store, ledger)
    made = Generation(store, ledger, losses, on_health)
    async with Duties() as duties:
        duties.start("claim deletions", losses.run)
        duties.start("generation", made.watch_over)
        yield made


async def all_settled(racing: list[Generation]) -> set[int]:
    """What they are at, each of them settled."""
    return set(await asyncio.gather(*(each.settled(PATIENCE_SECONDS) for each in racing)))


async def settled_on_one(racing: list[Generation]) -> int:
    """What all of them come to."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(settled := await all_settled(racing)) > 1:
            await asyncio.sleep(0.1)
    return settled.pop()


async def claim(client: EtcdClient, generation: int, count: int) -> tuple[HeldSession, list[HeldClaim]]:
    """Claims of unknown tasks, under one session."""
    store = LeaseStore(client)
    record = SessionRecord(worker_id="w", coordinator_id="c", generation=generation, started_at=0.0)
    session = await store.sessions.create(str(uuid4()), record, 60)
    wanted = [NewClaim(str(uuid4()), _record(session), session) for _ in range(count)]
    made = [
        each.held
        for start in range(0, count, MAX_BATCH)
        for each in await store.claims.claim_many(wanted[start : start + MAX_BATCH])
    ]
    assert None not in made
    return session, [held for held in made if held is not None]


def _record(session: HeldSession) -> ClaimRecord:
    return ClaimRecord(
        claim_id=str(uuid4()),
        worker_id="w",
        session_id=session.session_id,
        generation=session.record.generation,
        tenant="default",
        reason="SUBMITTED",
        previous_epoch=0,
    )


@pytest.mark.parametrize(
    ("expected", "settles_at"),
    one_of_each([(None, 2), (b"0", 2), (b"7", 8), (b"1", 1)], kind=lambda case: case[0] == b"7"),
    ids=["absent", "lower", "higher", "same"],
)
async def test_etcd_and_ledger_come_to_one_generation_above_both(
    client: EtcdClient, checkpoint: MakeCheckpoint, expected: bytes | None, settles_at: int
) -> None:
    replica = await checkpoint()
    if expected is not None:
        await client.put(KEY, expected)
    async with watched_over(client, replica) as generation:
        assert await generation.settled(PATIENCE_SECONDS) == settles_at
    held = await client.get(KEY)
    assert held is not None
    assert int(held.value) == settles_at


@pytest.mark.parametrize("value", first([b"seven", b"", b"-1", b"99999999999999999999"]))
async def test_a_key_without_a_generation_stops_grants(
    client: EtcdClient, checkpoint: MakeCheckpoint, value: bytes
) -> None:
    replica = await checkpoint()
    await client.put(KEY, value)
    async with watched_over(client, replica) as generation:
        await generation.first_look()
        with pytest.raises(Unavailable) as refused:
            generation.current()
        assert refused.value.reason == "ETCD_UNREADABLE"
        await client.delete(KEY)
        assert await generation.settled(PATIENCE_SECONDS) == 2


async def test_a_generation_far_ahead_stops_grants(client: EtcdClient, checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await client.put(KEY, b"70000")
    async with watched_over(client, replica) as generation:
        await generation.first_look()
        with pytest.raises(Unavailable) as refused:
            generation.current()
        assert refused.value.reason == "GENERATION_TOO_FAR"
        await client.delete(KEY)
        assert await generation.settled(PATIENCE_SECONDS) == 2


async def test_many_that_raise_at_once_settle_on_one(client: EtcdClient, checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    async with AsyncExitStack() as stack:
        racing = [await stack.enter_async_context(watched_over(client, replica)) for _ in range(8)]
        assert await settled_on_one(racing) == 2
        for each in racing:  # all of them learn at once that etcd went back in that life
            each.doubt(lost_life=2)
        assert await settled_on_one(racing) == 3


async def test_a_doubt_during_the_deletion_of_old_claims_is_kept(
    client: EtcdClient, checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the generation and its adoption another coordinator learned that this life is over, too."""
    replica = await checkpoint()
    await client.put(KEY, b"1")
    doubted: list[Generation] = []
    requeue = LostClaims.requeue

    async def learns_more(self: LostClaims, lost: object) -> None:
        if not doubted:
            doubted.append(generation)
            generation.doubt(lost_life=2)
        await requeue(self, lost)  # type: ignore[arg-type]

    monkeypatch.setattr(LostClaims, "requeue", learns_more)
    await claim(client, 1, 1)
    await client.put(KEY, b"0")
    async with watched_over(client, replica) as generation:
        assert await generation.settled(PATIENCE_SECONDS) == 3
    assert doubted


@pytest.mark.faults
async def test_ten_thousand_old_claims_are_deleted_in_bounded_requests(
    own_etcd: EtcdProcess, checkpoint: MakeCheckpoint
) -> None:
    async with EtcdClient([own_etcd.endpoint], namespace=NAMESPACE, timeout_seconds=CALL_SECONDS) as client:
        await client.put(KEY, b"1")
        for _ in range(10):
            await claim(client, 1, 1_000)
        await client.put(KEY, b"0")
        before = await client.revision()
        async with watched_over(client, await checkpoint()) as generation:
            assert await generation.settled(2 * PATIENCE_SECONDS) == 2
        assert (await client.list(CLAIMS)).key_values == ()
        assert (await client.list(SESSIONS)).key_values == ()
        assert await client.revision() - before <= 10_000 / MAX_BATCH + 2 * 10 + 2  # deletions by the hundred


async def test_a_raise_keeps_the_claims_of_another_installation(
    client: EtcdClient, etcd_process: EtcdProcess, checkpoint: MakeCheckpoint
) -> None:
    namespace = own_prefix().encode()
    async with EtcdClient([etcd_process.endpoint], namespace=namespace, timeout_seconds=CALL_SECONDS) as neighbour:
        await neighbour.put(KEY, b"1")
        _, [neighbours] = await claim(neighbour, 1, 1)
        await client.put(KEY, b"0")
        async with watched_over(client, await checkpoint()) as generation:
            assert await generation.settled(PATIENCE_SECONDS) == 2
        assert await neighbour.get(KEY) is not None
        assert list(await LeaseStore(neighbour).claims.find_many([neighbours.task_id])) == [neighbours.task_id]


async def test_a_deletion_meant_for_another_life_of_etcd_hits_nothing(own_etcd: EtcdProcess) -> None:
    """The revisions of the emptied etcd come to those of before: the same task, the same create_revision."""
    async with EtcdClient([own_etcd.endpoint], namespace=NAMESPACE, timeout_seconds=CALL_SECONDS) as client:
        await client.put(KEY, b"1")
        await write_on(own_etcd, 100)
        _, [old] = await claim(client, 1, 1)
        await put_back(own_etcd, None)
        await client.revision(timeout_seconds=CALL_SECONDS)
        await client.put(KEY, b"1")
        store = LeaseStore(client)
        session = await store.sessions.create(str(uuid4()), _session_record(), 60)
        while await client.revision() < old.create_revision - 1:
            await client.put(b"/elsewhere", b"")
        [made] = await store.claims.claim_many([NewClaim(old.task_id, _record(session), session)])
        assert made.held is not None
        assert made.held.create_revision == old.create_revision
        assert await store.claims.delete_many([old]) == set()
        assert list(await store.claims.find_many([old.task_id])) == [old.task_id]
        assert await store.claims.delete_many([made.held]) == {made.held.record.claim_id}


def _session_record() -> SessionRecord:
    return SessionRecord(worker_id="w", coordinator_id="c", generation=1, started_at=0.0)
