"""Laws of LeaseService, at two replicas over a real etcd and a real ledger."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from tenure.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    LeaseHeld,
    LimitReached,
    NotFound,
    OutOfRange,
    PermissionDenied,
    StaleEpoch,
    Unauthenticated,
)
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.common import duration, seconds
from tenure.wire.token import read_claims
from tests.support.fix_coordinator import Fleet
from tests.support.fix_leases import TIMEOUT_SECONDS, Leases, reference
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]


# Acquire


async def test_a_lease_has_a_token_that_names_its_resource(leases: Leases) -> None:
    lease = await leases.acquire("tables/orders", "one", ttl_seconds=60)
    claims = read_claims(lease.token)
    assert (claims.resource, claims.epoch, claims.claim_id) == ("leases/tables/orders", lease.epoch, lease.claim_id)
    assert (claims.holder, lease.holder) == ("one", "one")
    assert (lease.previous_epoch, lease.reason) == (0, "FIRST")
    assert seconds(lease.remaining) == 60


async def test_a_held_lease_is_refused_with_holder_and_remaining_time(leases: Leases) -> None:
    lease = await leases.acquire("a", "one", ttl_seconds=120)
    for replica in (0, 1):
        with pytest.raises(LeaseHeld) as refused:
            await leases.at(replica).acquire("a", "two")
        assert refused.value.metadata == {"holder": "one", "epoch": str(lease.epoch)}
        assert refused.value.retry_after_seconds is not None
        assert 60 <= refused.value.retry_after_seconds <= 120


async def test_concurrent_acquires_have_one_holder(leases: Leases) -> None:
    requests = (leases.at(number % 2).acquire("contended", f"holder-{number}") for number in range(12))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    (won,) = [answer for answer in answers if isinstance(answer, pb.Lease)]
    assert all(isinstance(answer, LeaseHeld) for answer in answers if answer is not won)
    assert (await leases.get("contended")).holder == won.holder


async def test_a_repeated_acquire_returns_the_same_lease_anywhere(leases: Leases) -> None:
    first = await leases.acquire("a", request_id="r-1")
    again = await leases.at(1).acquire("a", request_id="r-1")
    assert (again.epoch, again.claim_id) == (first.epoch, first.claim_id)
    assert read_claims(again.token) == read_claims(first.token)


async def test_a_request_id_with_another_payload_is_refused(leases: Leases) -> None:
    await leases.acquire("a", "one", request_id="r-1")
    with pytest.raises(AlreadyExists) as refused:
        await leases.acquire("a", "two", request_id="r-1")
    assert refused.value.reason == "REQUEST_ID_REUSED"


async def test_a_repeat_after_the_leases_end_acquires_nothing(leases: Leases) -> None:
    lease = await leases.acquire("a", request_id="r-1")
    await leases.release(lease)
    with pytest.raises(StaleEpoch) as refused:
        await leases.acquire("a", request_id="r-1")
    assert refused.value.reason == "LEASE_LOST"
    with pytest.raises(NotFound):
        await leases.get("a")


async def test_epochs_grow_from_holder_to_holder(leases: Leases) -> None:
    epochs: list[Any] = []
    for number in range(4):
        lease = await leases.at(number % 2).acquire("a", f"holder-{number}")
        assert lease.previous_epoch == (epochs[-1] if epochs else 0)
        epochs.append(lease.epoch)
        await leases.release(lease)
    assert epochs == sorted(set(epochs))


async def test_names_belong_to_tenants(leases: Leases, lease_replicas: list[str]) -> None:
    mine = await leases.acquire("a", "one")
    async with open_channel(lease_replicas[0], tenant="somebody-else") as channel:
        others = Leases(channel)
        theirs = await others.acquire("a", "two")
        assert [lease.holder for lease in (await others.list()).leases] == ["two"]
        with pytest.raises(PermissionDenied) as refused:
            await others.renew(mine)
        assert refused.value.reason == "WRONG_RESOURCE"
        await others.release(theirs)
    assert (await leases.get("a")).holder == "one"


async def test_the_limit_of_leases_of_a_tenant_holds(leases: Leases) -> None:
    held = await asyncio.gather(*(leases.acquire(f"n/{number}") for number in range(40)))
    with pytest.raises(LimitReached) as refused:
        await leases.acquire("one-too-many")
    assert refused.value.reason == "TOO_MANY_LEASES"
    await leases.release(held[0])
    await leases.acquire("one-too-many")


@pytest.mark.parametrize(
    "change",
    [
        {"ttl": duration(1.9)},
        {"ttl": duration(3601)},
    ],
    ids=repr,
)
async def test_an_acquire_out_of_bounds_is_refused(leases: Leases, change: Any) -> None:
    fields = {"resource": "a", "holder": "one", "ttl": duration(5), "request_id": "r", **change}
    with pytest.raises(InvalidRequest) as refused:
        await leases.stub.AcquireLease(pb.AcquireLeaseRequest(**fields), timeout=TIMEOUT_SECONDS)
    assert [violation.field for violation in refused.value.violations] == list(change)


# Renew, release


async def test_a_renewal_extends_the_lease_under_the_same_epoch(leases: Leases) -> None:
    lease = await leases.acquire("a", ttl_seconds=12)
    for turn in range(2):
        await asyncio.sleep(6.2)  # time itself is the matter: longer than the lease in all
        renewed = await leases.at(turn % 2).renew(lease)
        assert renewed.epoch == lease.epoch
        assert seconds(renewed.remaining) == 12


async def test_an_unrenewed_lease_ends_and_its_renewal_fails(leases: Leases) -> None:
    lease = await leases.acquire("a", "one", ttl_seconds=SHORT_LIFE_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await leases.list()).leases:
            await asyncio.sleep(0.1)
    with pytest.raises(StaleEpoch) as lost:
        await leases.renew(lease)
    assert (lost.value.reason, lost.value.presented, lost.value.current) == ("LEASE_LOST", lease.epoch, 0)
    after = await leases.acquire("a", "two")
    assert (after.reason, after.previous_epoch) == ("LEASE_EXPIRED", lease.epoch)
    with pytest.raises(StaleEpoch) as lost:
        await leases.renew(lease)
    assert lost.value.current == after.epoch


async def test_a_release_frees_the_resource_and_gives_the_reason(leases: Leases) -> None:
    lease = await leases.acquire("a", "one")
    assert await leases.at(1).release(lease, "done for today")
    assert not await leases.release(lease)  # a repeat finds it gone
    after = await leases.acquire("a", "two")
    assert (after.reason, after.message) == ("RELEASED", "done for today")


async def test_a_late_release_does_not_end_the_next_lease(leases: Leases) -> None:
    lease = await leases.acquire("a", "one")
    await leases.release(lease)
    after = await leases.acquire("a", "two")
    assert not await leases.release(lease)
    assert not await leases.operator_release(lease, "stuck")
    assert (await leases.get("a")).claim_id == after.claim_id


async def test_an_operator_releases_a_named_epoch_with_a_reason(leases: Leases) -> None:
    seen = await leases.get((await leases.acquire("a", "one")).resource)
    with pytest.raises(InvalidRequest):
        await leases.operator_release(seen, "")
    assert await leases.operator_release(seen, "its machine is gone")
    after = await leases.acquire("a", "two")
    assert (after.reason, after.message) == ("OPERATOR_RELEASED", "its machine is gone")


# Transfer


async def test_a_transfer_gives_the_next_holder_a_higher_epoch(leases: Leases) -> None:
    lease = await leases.acquire("a", "one", ttl_seconds=20)
    moved = await leases.at(1).transfer("two", "rebalanced", token=lease.token)
    assert moved.epoch > lease.epoch
    assert (moved.previous_epoch, moved.reason, moved.message) == (lease.epoch, "TRANSFERRED", "rebalanced")
    assert (moved.holder, seconds(moved.ttl)) == ("two", 20)
    with pytest.raises(StaleEpoch):
        await leases.renew(lease)
    assert (await leases.renew(moved)).epoch == moved.epoch


async def test_a_repeat_of_a_transfer_gives_the_same_lease(leases: Leases) -> None:
    lease = await leases.acquire("a", "one")
    moved = await leases.transfer("two", token=lease.token, request_id="m-1")
    again = await leases.at(1).transfer("two", token=lease.token, request_id="m-1")
    assert (again.epoch, again.claim_id) == (moved.epoch, moved.claim_id)
    with pytest.raises(StaleEpoch):
        await leases.transfer("three", token=lease.token)


async def test_a_transfers_target_acquires_under_its_own_epoch(leases: Leases) -> None:
    lease = await leases.acquire("a", "one")
    moved = await leases.transfer("two", "its machine is gone", lease=reference(lease))
    with pytest.raises(LeaseHeld):
        await leases.acquire("a", "three")
    own = await leases.acquire("a", "two")
    assert own.epoch > moved.epoch
    assert (own.reason, own.message) == ("OPERATOR_TRANSFER", "its machine is gone")
    with pytest.raises(LeaseHeld):  # once: a second process of that name is another holder
        await leases.acquire("a", "two")
    with pytest.raises(StaleEpoch):
        await leases.renew(moved)


async def test_transfers_at_the_same_moment_make_one_holder(leases: Leases) -> None:
    lease = await leases.acquire("a", "one")
    requests = (leases.at(number % 2).transfer(f"holder-{number}", token=lease.token) for number in range(6))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    (moved,) = [answer for answer in answers if isinstance(answer, pb.Lease)]
    assert all(isinstance(answer, StaleEpoch) for answer in answers if answer is not moved)
    assert (await leases.get("a")).claim_id == moved.claim_id


# Tokens


async def test_a_lease_token_never_passes_for_a_tasks(leases: Leases, lease_fleet: Fleet) -> None:
    """Even for a resource whose name is a task's id."""
    task_id = str(uuid.uuid4())
    lease = await leases.acquire(task_id)
    with pytest.raises(PermissionDenied) as refused:
        async for _ in lease_fleet.ledger.Open(ledger_pb.OpenRequest(token=lease.token), timeout=TIMEOUT_SECONDS):
            pass
    assert refused.value.reason == "WRONG_AUDIENCE"


async def test_a_tasks_token_never_passes_for_a_leases(
    leases: Leases, lease_fleet: Fleet, lease_replicas: list[str]
) -> None:
    replica = next(one for one in lease_fleet.services if one.address == lease_replicas[0])
    worker = await lease_fleet.worker(replica)
    task_id = await lease_fleet.submit()
    grant = await worker.next_grant()
    assert grant.task_id == task_id
    for method, request in (
        (leases.stub.RenewLease, pb.RenewLeaseRequest(token=grant.token)),
        (leases.stub.ReleaseLease, pb.ReleaseLeaseRequest(token=grant.token)),
    ):
        with pytest.raises(PermissionDenied) as refused:
            await method(request, timeout=TIMEOUT_SECONDS)
        assert refused.value.reason == "WRONG_AUDIENCE"


async def test_a_forged_token_is_refused(leases: Leases) -> None:
    lease = await leases.acquire("a")
    claims = token_pb2.TokenClaims.FromString(lease.token.claims)
    claims.epoch += 1
    forged = token_pb2.FencingToken(
        claims=claims.SerializeToString(), key_id=lease.token.key_id, signature=lease.token.signature
    )
    with pytest.raises(Unauthenticated) as refused:
        await leases.renew(pb.Lease(token=forged))
    assert refused.value.reason == "INVALID_TOKEN"


# Get, list, watch


async def test_a_free_resource_is_not_found_with_its_last_epoch(leases: Leases) -> None:
    lease = await leases.acquire("a")
    await leases.release(lease)
    with pytest.raises(NotFound) as refused:
        await leases.get("a")
    assert (refused.value.reason, refused.value.metadata["last_epoch"]) == ("LEASE_NOT_HELD", str(lease.epoch))


async def test_a_list_is_paged_by_name_and_shows_no_token(leases: Leases) -> None:
    for name in ("b/2", "a/1", "b/1", "b/3"):
        await leases.acquire(name)
    first = await leases.list("b/", page_size=2)
    assert [lease.resource for lease in first.leases] == ["b/1", "b/2"]
    second = await leases.at(1).list("b/", page_size=2, page_token=first.next_page_token)
    assert ([lease.resource for lease in second.leases], second.next_page_token) == (["b/3"], "")
    assert not any(lease.HasField("token") for lease in (*first.leases, *second.leases))
    assert all(0 < seconds(lease.remaining) <= 30 for lease in first.leases)


async def test_a_watch_from_a_lists_revision_misses_nothing(leases: Leases) -> None:
    await leases.acquire("w/before")
    listed = await leases.list("w/")
    one = await leases.acquire("w/a", "one")
    await leases.acquire("elsewhere")
    two = await leases.transfer("two", token=one.token)
    await leases.release(two)
    three = await leases.acquire("w/a", "three", ttl_seconds=SHORT_LIFE_SECONDS)  # and runs out
    events = await heard(leases.at(1), listed.revision, 5)
    assert [(kind, lease.holder) for kind, lease in events] == [
        ("held", "one"),
        ("held", "two"),
        ("ended", "two"),
        ("held", "three"),
        ("ended", "three"),
    ]
    assert [lease.epoch for _, lease in events] == [one.epoch, two.epoch, two.epoch, three.epoch, three.epoch]
    assert not any(lease.HasField("token") for _, lease in events)


async def test_a_watch_resumes_at_a_revision(leases: Leases) -> None:
    listed = await leases.list()
    first = await leases.acquire("a")
    await leases.release(first)
    async with aclosing(watching(leases, listed.revision)) as answers:
        async for answer in answers:
            if answer.events:
                break
    rest = await heard(leases.at(1), answer.events[0].revision, 1)
    assert [kind for kind, _ in rest] == ["ended"]


async def test_a_watch_first_sends_its_revision(leases: Leases) -> None:
    await leases.acquire("a")
    async with aclosing(watching(leases, 0)) as answers:
        first = await anext(answers)
        assert not first.events
        later = await leases.acquire("b")
        assert later.epoch > first.revision
        answer = await anext(answers)
        assert [event.held.resource for event in answer.events] == ["b"]
        assert answer.revision == answer.events[0].revision == later.epoch


@pytest.mark.parametrize("revision", [1, (2**22 << 40) + 1], ids=["another generation", "the future"])
async def test_a_watch_from_an_unknown_revision_is_refused(leases: Leases, revision: Any) -> None:
    with pytest.raises(OutOfRange) as refused:
        await anext(watching(leases, revision))
    assert refused.value.reason == "CURSOR_EXPIRED"


async def test_the_limit_of_watches_of_a_tenant_holds(leases: Leases) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        watches = [watching(leases, 0) for _ in range(64)]
        await asyncio.gather(*(anext(watch) for watch in watches))
        with pytest.raises(LimitReached) as refused:
            await anext(watching(leases, 0))
        assert refused.value.reason == "TOO_MANY_WATCHES"
        await watches[0].aclose()
        while True:  # its end has to arrive there
            try:
                await anext(watching(leases, 0))
                break
            except LimitReached:
                await asyncio.sleep(0.05)
        for watch in watches:
            await watch.aclose()


async def watching(leases: Leases, after_revision: int, prefix: str = "") -> AsyncGenerator[Any]:
    call = leases.stub.WatchLeases(
        pb.WatchLeasesRequest(prefix=prefix, after_revision=after_revision), timeout=PATIENCE_SECONDS
    )
    try:
        async for answer in call:
            yield answer
    finally:
        call.cancel()


async def heard(leases: Leases, after_revision: int, count: int) -> list[tuple[str, pb.Lease]]:
    """So many events under "w/" or "a"."""
    events: list[tuple[str, pb.Lease]] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(watching(leases, after_revision)) as answers:
        async for answer in answers:
            for event in answer.events:
                lease = event.held if event.HasField("held") else event.ended
                if lease.resource != "elsewhere":
                    events.append((event.WhichOneof("change"), lease))
            if len(events) >= count:
                return events
    raise AssertionError(f"the watch ended after {events}")
