"""Laws of LeaseService when its parts die, freeze, or go back in time."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from devstack.etcd import EtcdProcess, start_etcd
from devstack.postgres_process import PostgresProcess
from services.coordinator.etcd import stubs
from services.coordinator.etcd.client import EtcdClient
from tenure.client.leases import HeldLease
from tenure.client.verification import TokenVerifier
from tenure.domain.errors import (
    LeaseHeld,
    NotFound,
    OutOfRange,
    StaleEpoch,
    TenureError,
    Unauthenticated,
    Unavailable,
)
from tenure.domain.fencing import split_epoch
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import write_key_pair
from tenure.v1 import lease_service_pb2 as pb
from tests.support.fix_coordinator import Fleet, make_fleet
from tests.support.fix_etcd import paused
from tests.support.fix_leases import Leases, new_ledger
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.service_process import ServiceProcess

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
QUICK = {"start_timeout_seconds": str(SHORT_LIFE_SECONDS), "reconcile_interval_seconds": "0.5"}
_tenants = itertools.count(1)


@pytest.fixture(scope="module")
def broken_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd of the module's own. Each test leaves it running, in whatever life."""
    process = start_etcd(tmp_path_factory.mktemp("broken-etcd"))
    yield process
    process.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken_fleet(
    broken_etcd: EtcdProcess, postgres_server: PostgresProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """A ledger, to be frozen and woken again."""
    dsn = await new_ledger(postgres_server)
    fleet = await make_fleet(broken_etcd, dsn, tmp_path_factory.mktemp("broken-leases"))
    yield fleet
    await fleet.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor(broken_fleet: Fleet) -> ServiceProcess:
    """A replica that no test kills."""
    return await broken_fleet.coordinator(**QUICK)


class Backends:
    """A tenant of the test's own, at any replica; and replicas of the test's own, to be killed."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack) -> None:
        self._fleet, self._stack, self.tenant = fleet, stack, f"t-{next(_tenants)}"

    async def at(self, replica: ServiceProcess) -> Leases:
        """As soon as it grants."""
        channel = open_channel(replica.address, tenant=self.tenant)
        leases = Leases(await self._stack.enter_async_context(channel))
        await eventually(leases.list, "no generation is settled")
        return leases

    async def replica(self, **settings: Any) -> ServiceProcess:
        """Another one, gone after the test."""
        replica = await self._fleet.coordinator(**{**QUICK, **settings})
        self._stack.push_async_callback(replica.kill)
        return replica


@pytest_asyncio.fixture(loop_scope="module")
async def backends(broken_fleet: Fleet) -> AsyncIterator[Backends]:
    async with AsyncExitStack() as stack:
        yield Backends(broken_fleet, stack)


@pytest_asyncio.fixture(loop_scope="module")
async def leases(backends: Backends, survivor: ServiceProcess) -> Leases:
    """At the replica that no test kills."""
    return await backends.at(survivor)


async def eventually(attempt: Any, why: str, errors: tuple[type[Exception], ...] = (Unavailable,)) -> Any:
    """What it gives once it is not refused any more."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await attempt()
                except errors:
                    await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(why) from None


# Replicas die and freeze


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["after_lease_claim", "after_lease_register"])
async def test_a_dead_coordinators_acquire_is_taken_up_by_its_repeat(
    backends: Backends, leases: Leases, moment: str
) -> None:
    dying = await backends.at(await backends.replica(failpoints=f"coordinator.{moment}=kill9"))
    with pytest.raises(TenureError):
        await dying.acquire("a", "one", request_id="r-1")
    lease = await leases.acquire("a", "one", request_id="r-1")
    assert (await leases.renew(lease)).epoch == lease.epoch


@pytest.mark.faults
async def test_an_unregistered_claim_is_cleaned_up(backends: Backends, leases: Leases) -> None:
    dying = await backends.at(await backends.replica(failpoints="coordinator.after_lease_claim=kill9"))
    with pytest.raises(TenureError):
        await dying.acquire("a", "one", ttl_seconds=600)
    lease = await eventually(lambda: leases.acquire("a", "two"), "the claim stays", (LeaseHeld, Unavailable))
    assert lease.previous_epoch == 0  # the claim before was never a grant


@pytest.mark.faults
async def test_a_frozen_coordinator_grants_no_lease_late(backends: Backends, leases: Leases, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    frozen = await backends.replica(failpoints=f"coordinator.after_lease_claim=1#touch({reached})->1#freeze")
    late = await backends.at(frozen)
    acquiring = asyncio.create_task(late.acquire("a", "one", ttl_seconds=600))
    await eventually(lambda: exists(reached), "not reached", (FileNotFoundError,))
    lease = await eventually(lambda: leases.acquire("a", "two"), "the claim stays", (LeaseHeld, Unavailable))
    frozen.signal(signal.SIGCONT)
    with pytest.raises(TenureError):
        await acquiring
    assert (await leases.renew(lease)).epoch == lease.epoch


@pytest.mark.faults
async def test_leases_live_on_when_their_coordinator_dies(backends: Backends, leases: Leases) -> None:
    first = await backends.replica()
    lease = await (await backends.at(first)).acquire("a")
    await first.kill()
    assert (await leases.renew(lease)).epoch == lease.epoch
    assert await leases.release(lease)


@pytest.mark.faults
async def test_a_watch_ends_with_unavailable_when_its_replica_drains(backends: Backends) -> None:
    replica = await backends.replica()
    async with watch(await backends.at(replica)) as answers:
        await anext(answers)
        replica.signal(signal.SIGTERM)
        with pytest.raises(Unavailable) as ended:
            await anext(answers)
    assert ended.value.reason == "DRAINING"


@pytest.mark.faults
async def test_without_a_ledger_no_lease_is_granted(broken_fleet: Fleet, leases: Leases) -> None:
    held = await leases.acquire("held")
    broken_fleet.checkpoint.signal(signal.SIGSTOP)
    with pytest.raises(Unavailable):
        await leases.acquire("a", request_id="r-1")
    broken_fleet.checkpoint.signal(signal.SIGCONT)
    lease = await eventually(lambda: leases.acquire("a", request_id="r-1"), "the ledger is back")
    assert (await leases.get("a")).claim_id == lease.claim_id
    assert (await eventually(lambda: leases.renew(held), "the ledger is back")).epoch == held.epoch


# etcd is away, and goes back in time


@pytest.mark.faults
async def test_an_acquire_during_an_etcd_outage_is_one_lease(broken_etcd: EtcdProcess, leases: Leases) -> None:
    async with paused(broken_etcd):
        with pytest.raises(Unavailable):
            await leases.acquire("a", "one", request_id="r-1")
    lease = await eventually(lambda: leases.acquire("a", "one", request_id="r-1"), "etcd is back")
    assert [one.claim_id for one in (await leases.list()).leases] == [lease.claim_id]
    assert (await leases.renew(lease)).epoch == lease.epoch


@pytest.mark.faults
async def test_a_watch_whose_history_was_compacted_says_so(broken_etcd: EtcdProcess, leases: Leases) -> None:
    revision = (await leases.list()).revision
    await leases.release(await leases.acquire("a"))
    await compact(broken_etcd)
    async with watch(leases, revision) as answers:
        with pytest.raises(OutOfRange) as refused:
            await drained(answers)
    assert refused.value.reason == "CURSOR_EXPIRED"


@pytest.mark.faults
async def test_epochs_grow_when_etcd_was_replaced(broken_etcd: EtcdProcess, leases: Leases) -> None:
    for _ in range(20):  # so that the new etcd's revisions are behind
        await leases.release(await leases.acquire("warm-up"))
    lease = await leases.acquire("a", "one")
    revision = (await leases.list()).revision
    await wipe(broken_etcd)
    after = await eventually(lambda: leases.acquire("a", "two"), "nobody grants", (LeaseHeld, Unavailable))
    (former, old_revision), (generation, new_revision) = split_epoch(lease.epoch), split_epoch(after.epoch)
    assert generation > former
    assert new_revision < old_revision  # alone it could not have told them apart
    assert (after.previous_epoch, after.reason) == (lease.epoch, "LEASE_EXPIRED")
    with pytest.raises(StaleEpoch):
        await eventually(lambda: leases.renew(lease), "the generation is not settled")

    async def watch_from_before() -> None:
        async with watch(leases, revision) as answers:
            await drained(answers)

    with pytest.raises(OutOfRange):
        await eventually(watch_from_before, "the generation is not settled")


@pytest.mark.faults
async def test_leases_revived_by_a_backup_are_deleted(
    broken_etcd: EtcdProcess, survivor: ServiceProcess, leases: Leases
) -> None:
    """As after a restore: keys of the former generation are there again, with their leases."""
    lease = await eventually(lambda: leases.acquire("a", "one", ttl_seconds=600), "the generation is not settled")
    async with watch(leases) as answers:
        await anext(answers)
        async with EtcdClient([broken_etcd.endpoint]) as etcd:
            generation = await etcd.get(b"/tenure/generation")
            assert generation is not None
            await etcd.put(b"/tenure/generation", str(int(generation.value) - 1).encode())
        after = await eventually(lambda: leases.acquire("a", "two"), "the old one stays", (LeaseHeld, Unavailable))
        assert split_epoch(after.epoch)[0] > split_epoch(lease.epoch)[0]
        with pytest.raises((OutOfRange, Unavailable)):
            await drained(answers)
    with pytest.raises(StaleEpoch) as lost:
        await eventually(lambda: leases.renew(lease), "the generation is not settled")
    assert lost.value.current == after.epoch


# Holders


@pytest.mark.faults
async def test_a_holder_without_renewal_is_stopped_before_the_next(backends: Backends, leases: Leases) -> None:
    replica = await backends.replica()
    held = HeldLease((await backends.at(replica)).stub, "a", holder="one", ttl_seconds=SHORT_LIFE_SECONDS)

    async def work() -> None:
        async with held:
            replica.signal(signal.SIGSTOP)
            await asyncio.sleep(60)

    with pytest.raises(StaleEpoch) as lost:
        await work()
    assert (lost.value.reason, held.is_trusted) == ("TRUST_WINDOW_CLOSED", False)
    await eventually(lambda: leases.acquire("a", "two"), "the lease never ends", (LeaseHeld, Unavailable))


@pytest.mark.faults
async def test_a_lost_lease_stops_the_holder_and_releases_nothing(leases: Leases) -> None:
    async def work() -> None:
        async with HeldLease(leases.stub, "a", holder="one", ttl_seconds=9) as held:
            await leases.transfer("two", lease=pb.LeaseReference(resource="a", epoch=held.epoch))
            await asyncio.sleep(60)

    with pytest.raises(StaleEpoch) as lost:
        await work()
    assert lost.value.reason == "LEASE_LOST"
    assert (await leases.get("a")).holder == "two"


@pytest.mark.faults
async def test_a_cancelled_holder_releases_its_lease(leases: Leases) -> None:
    async def work() -> None:
        async with HeldLease(leases.stub, "a", holder="one", ttl_seconds=30):
            holding.set()
            await asyncio.sleep(60)

    holding = asyncio.Event()
    working = asyncio.create_task(work())
    await holding.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    with pytest.raises(NotFound):
        await leases.get("a")


@pytest.mark.faults
async def test_a_held_lease_is_waited_for_renewed_and_given_back(leases: Leases) -> None:
    async with HeldLease(leases.stub, "a", holder="one", ttl_seconds=10) as first:
        waiting = asyncio.create_task(once_held(leases, "two"))
        await asyncio.sleep(10.5)  # longer than a lease lives without renewals
        assert first.is_trusted
        assert not waiting.done()
    after = await waiting
    assert (after.reason, after.previous_epoch) == ("RELEASED", first.epoch)


@pytest.mark.faults
async def test_tokens_follow_the_signing_key_until_it_is_withdrawn(
    broken_fleet: Fleet, backends: Backends, leases: Leases, tmp_path: Path
) -> None:
    """The last one: from here on new replicas sign with another key."""
    verifier = TokenVerifier(leases.stub, refresh_seconds=0.0)
    lease = await leases.acquire("a")
    assert (await verifier.verify(lease.token, resource="leases/a", tenant=backends.tenant)).epoch == lease.epoch
    write_key_pair(tmp_path / "next.json", broken_fleet.verifying_keys, "test-2")
    (tmp_path / "next.json").replace(broken_fleet.signing_key)
    rotated = await backends.at(await backends.replica())
    renewed = await rotated.renew(lease)
    assert (lease.token.key_id, renewed.token.key_id, renewed.epoch) == ("test-1", "test-2", lease.epoch)
    assert {key.key_id: key.active for key in (await rotated.keys()).values()} == {"test-1": False, "test-2": True}
    verifier = TokenVerifier(rotated.stub, refresh_seconds=0.0)
    for one in (lease, renewed):
        claims = await verifier.verify(one.token, resource="leases/a", tenant=backends.tenant)
        assert claims.claim_id == lease.claim_id
    assert (await rotated.renew(lease)).epoch == lease.epoch  # the old token is still good for that
    withdraw(broken_fleet, "test-1")
    await asyncio.sleep(1.1)  # keys are asked for once a second at most
    with pytest.raises(Unauthenticated):
        await verifier.verify(lease.token, resource="leases/a", tenant=backends.tenant)


@asynccontextmanager
async def watch(leases: Leases, after_revision: int = 0) -> AsyncIterator[AsyncIterator[pb.WatchLeasesResponse]]:
    call = leases.stub.WatchLeases(pb.WatchLeasesRequest(after_revision=after_revision), timeout=PATIENCE_SECONDS)
    try:
        yield aiter(call)
    finally:
        call.cancel()


async def drained(answers: AsyncIterator[pb.WatchLeasesResponse]) -> None:
    """To the end of the stream."""
    async for _ in answers:
        pass


async def once_held(leases: Leases, holder: str) -> pb.Lease:
    async with HeldLease(leases.stub, "a", holder=holder, ttl_seconds=30, wait_seconds=PATIENCE_SECONDS) as held:
        return held.info


async def exists(path: Any) -> None:
    path.stat()


async def compact(etcd: EtcdProcess) -> None:
    async with EtcdClient([etcd.endpoint]) as client:
        revision = await client.revision()
        await client.endpoints.current.kv.Compact(
            stubs.CompactionRequest(revision=revision, physical=True), timeout=CALL_SECONDS
        )


def withdraw(fleet: Fleet, key_id: str) -> None:
    stored = json.loads(fleet.verifying_keys.read_text())
    stored["keys"] = [key for key in stored["keys"] if key["key_id"] != key_id]
    fresh = fleet.verifying_keys.with_suffix(f".{uuid.uuid4().hex}")
    fresh.write_text(json.dumps(stored))
    fresh.replace(fleet.verifying_keys)


async def wipe(etcd: EtcdProcess) -> None:
    """Another etcd at the same address, with nothing in it."""
    etcd.kill()
    shutil.rmtree(etcd.member.data_dir / "store")
    etcd.start()
    await asyncio.to_thread(etcd.wait_ready)
