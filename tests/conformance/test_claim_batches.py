"""Laws of claims made together: limits and outages of etcd harm no neighbour, and each claim has its result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest

from devstack.etcd import EtcdProcess
from services.coordinator.etcd.calls import EtcdUnavailable
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import Txn, TxnResult
from services.coordinator.lease_store import ClaimRecord, HeldSession, LeaseStore, SessionRecord
from services.coordinator.lease_store.claim_keys import MAX_BATCH, ClaimRefusal, ClaimResult, NewClaim
from services.coordinator.lease_store.records import GENERATION_KEY, claim_key
from tenure.domain.errors import Unavailable
from tests.support.fix_etcd import own_prefix
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.server
GENERATION = 1
LONGEST_ALLOWLIST = tuple(f"{number:03}{'x' * 61}" for number in range(256))


class EtcdThatStops(EtcdClient):
    """A real client whose requests are refused unsent after so many."""

    answers: int | None = None

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        if self.answers is not None:
            if self.answers == 0:
                raise EtcdUnavailable("stopped by the test")
            self.answers -= 1
        return await super().txn(txn, timeout_seconds=timeout_seconds)


@pytest.fixture
async def etcd(etcd_process: EtcdProcess) -> AsyncIterator[EtcdThatStops]:
    namespace = own_prefix().encode()
    async with EtcdThatStops([etcd_process.endpoint], namespace=namespace, timeout_seconds=CALL_SECONDS) as made:
        await made.put(GENERATION_KEY, b"1")
        yield made


async def session_of(store: LeaseStore) -> HeldSession:
    record = SessionRecord(worker_id="w", coordinator_id="c", generation=GENERATION, started_at=0.0)
    return await store.sessions.create(str(uuid4()), record, 60)


def new_claim(session: HeldSession, tools: tuple[str, ...] = ()) -> NewClaim:
    record = ClaimRecord(
        claim_id=str(uuid4()),
        worker_id="w",
        session_id=session.session_id,
        generation=GENERATION,
        tenant="default",
        reason="SUBMITTED",
        previous_epoch=0,
        tools=tools,
    )
    return NewClaim(str(uuid4()), record, session)


def refusals(made: list[ClaimResult]) -> list[ClaimRefusal | None]:
    return [each.refusal for each in made]


async def test_a_batch_of_the_longest_allowlists_is_claimed_whole(etcd: EtcdThatStops) -> None:
    """Together they are larger than one request to etcd may be."""
    store = LeaseStore(etcd)
    session = await session_of(store)
    wanted = [new_claim(session, LONGEST_ALLOWLIST) for _ in range(MAX_BATCH)]
    made = await store.claims.claim_many(wanted)
    assert [each.wanted for each in made] == wanted
    assert refusals(made) == [None] * MAX_BATCH


async def test_a_claim_too_large_for_etcd_is_refused_alone(etcd: EtcdThatStops) -> None:
    store = LeaseStore(etcd)
    session = await session_of(store)
    too_large = new_claim(session, tuple("x" * 60 for _ in range(30_000)))
    made = await store.claims.claim_many([new_claim(session), too_large, new_claim(session)])
    assert refusals(made) == [None, ClaimRefusal.TOO_LARGE, None]


async def test_unanswered_claims_differ_from_made_claims(etcd: EtcdThatStops) -> None:
    """A lease that etcd does not know fails the request, so each claim is made alone; then etcd goes away."""
    store = LeaseStore(etcd)
    session = await session_of(store)
    ended = replace(await session_of(store), lease=1)
    wanted = [new_claim(session), new_claim(ended), new_claim(session), new_claim(session)]
    etcd.answers = 3
    made = await store.claims.claim_many(wanted)
    etcd.answers = None
    assert refusals(made) == [None, ClaimRefusal.SESSION_GONE, ClaimRefusal.NOT_SENT, ClaimRefusal.NOT_SENT]
    in_etcd = await store.claims.find_many(each.task_id for each in wanted)
    assert list(in_etcd) == [wanted[0].task_id]


async def test_claims_raise_where_nothing_was_done(etcd: EtcdThatStops) -> None:
    store = LeaseStore(etcd)
    session = await session_of(store)
    etcd.answers = 0
    with pytest.raises(Unavailable):
        await store.claims.claim_many([new_claim(session)])


@pytest.mark.parametrize("value", [b"", b"[]", b'{"claim_id": "c"}'])
async def test_a_malformed_claim_in_etcd_ends_no_session(etcd: EtcdThatStops, value: bytes) -> None:
    """The refusal said that the session was gone. Each offer of the task ended one, with all of its claims."""
    store = LeaseStore(etcd)
    session = await session_of(store)
    wanted = [new_claim(session), new_claim(session)]
    await etcd.put(claim_key(wanted[0].task_id), value)
    made = await store.claims.claim_many(wanted)
    assert refusals(made) == [ClaimRefusal.TAKEN, None]
    assert made[0].holder is None
