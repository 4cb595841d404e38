"""Offers are fair between tenants and cost the same, whatever is queued; no tenant has more running than it may."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from services.checkpoint.queries import MIGRATIONS, QUEUE
from services.checkpoint.queue.offering import Offering, OfferRequest
from tenure.domain.errors import WrongState
from tenure.domain.fairness import Slots
from tenure.domain.task import Priority
from tenure.runtime.request_context import set_tenant
from tenure.runtime.store.postgres import BoundedConnection, send_int8
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

HIGH, NORMAL, LOW = task_pb2.PRIORITY_HIGH, task_pb2.PRIORITY_NORMAL, task_pb2.PRIORITY_LOW

FILL = """
  insert into tasks (task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels, max_steps,
                     on_lease_lost, reason, sequence, change_xid, claim_count, deadline_at, created_at)
  select gen_random_uuid(), %s, n::text, '', gen_random_uuid(), 'default', %s, 'messages', '{}', 9, 'RESUME',
         'SUBMITTED', 2, pg_current_xact_id(), %s, now() + interval '1 day',
         now() + n * interval '1 ms' - %s * interval '1 s'
    from generate_series(1, %s) n
"""

FROM: dict[str, Any] = {"queues": ["default"], "loops": ["messages"], "worker_ids": [], "deaths_below": 2**31}
WANTED = FROM | {
    "priorities": [1, 2, 3],
    "after": "",
    "limit": 16,
    "only_tenants": [],
    "most_tenants": 256,
    "most_counted": 1000,
}
TAKEN = FROM | {
    "priorities": [2],
    "tenants": ["a"],
    "are_new": [True],
    "counts": [16],
    "reserve_seconds": 1.0,
    "unopened_seconds": 5.0,
}


async def fill(
    postgres: Any, tenant: str, count: int, *, tier: int = 2, claims: int = 0, older_seconds: float = 0.0
) -> None:
    """Queued rows, as many submits would leave them, or as many requeues of tasks that were claimed so often."""
    await postgres.execute(FILL.encode(), (tenant, tier, claims, older_seconds, count))


@pytest.fixture
async def ledger_dsn(fresh_database: FreshDatabase) -> str:
    """A ledger without a service, for tests of statements and of their order."""
    return await fresh_database(MIGRATIONS)


async def connect(dsn: str, *, prepared: bool = True) -> Any:
    postgres = await BoundedConnection.connect(dsn)
    for setting in ("search_path to ledger", "enable_seqscan to off", "jit to off"):  # as in the service
        await postgres.execute(f"set {setting}".encode())
    if prepared:
        send_int8(postgres)
    await postgres.commit()
    return postgres


async def offers(replica: Checkpoint, limit: int = 10, **fields: Any) -> list[pb.Offer]:
    request = pb.ListClaimableRequest(limit=limit, **{"queues": ["default"], "loops": ["messages"], **fields})
    return list((await replica.stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers)


def tenants(offered: list[pb.Offer]) -> list[str]:
    return [offer.tenant for offer in offered]


async def test_a_large_tenant_delays_others_by_a_round(
    checkpoint: MakeCheckpoint,
) -> None:
    replica = await checkpoint()
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "big", 1_000, older_seconds=3600)
        for number in range(100):
            await fill(postgres, f"small-{number}", 1)
    kept = Duration(seconds=60)
    first = await offers(replica, limit=128, reserve_duration=kept)
    second = await offers(replica, limit=10, reserve_duration=kept)
    assert Counter(tenants(first)) == {"big": 28, **{f"small-{number}": 1 for number in range(100)}}
    assert tenants(second) == ["big"] * 10
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "newcomer", 3)
    assert tenants(await offers(replica, limit=1, reserve_duration=kept)) == ["newcomer"]
    assert tenants(await offers(replica, limit=4, reserve_duration=kept)) == ["newcomer", "newcomer", "big", "big"]


@pytest.mark.parametrize(("begun", "only_tenants"), [(False, []), (True, ["a", "d", "e"])])
async def test_an_offer_reads_as_much_from_a_long_queue(ledger_dsn: str, begun: bool, only_tenants: list[str]) -> None:
    """Counted are pages, not milliseconds: the index is stepped through from tenant to tenant."""
    wanted = WANTED | {"only_tenants": only_tenants}
    read: list[int] = []
    async with await connect(ledger_dsn) as postgres, await connect(ledger_dsn, prepared=False) as filler:
        for names, count in (("abc", 200), ("d", 3_000)):
            for tenant in names:
                await fill(filler, tenant, count, claims=int(begun))
            await filler.commit()
            await postgres.execute(b"explain (analyze) " + QUEUE.waiting, wanted)  # sets the hints of new rows
            rows = await postgres.execute(b"explain (analyze, buffers, format json) " + QUEUE.waiting, wanted)
            ((plans,),) = await rows.fetchall()
            read.append(plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"])
            assert "Seq Scan" not in str(plans)
    assert read[1] < read[0] + 100, read


async def test_pending_offers_count_for_their_tenant_until_they_lapse(checkpoint: MakeCheckpoint) -> None:
    """As when a coordinator dies with its offers: they are offered again, and count for no tenant meanwhile."""
    replica = await checkpoint()
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "a", 4, older_seconds=60)
        await fill(postgres, "b", 4)
    reserve = Duration(seconds=60)
    assert tenants(await offers(replica, limit=3, reserve_duration=reserve)) == ["a", "b", "a"]
    assert tenants(await offers(replica, limit=1, reserve_duration=reserve)) == ["b"]
    lapsed = "update ledger.tasks set offered_until = now() - interval '1 ms' where offered_until is not null"
    await replica.query(lapsed)
    assert tenants(await offers(replica, limit=4, reserve_duration=reserve)) == ["a", "b", "a", "b"]


async def test_running_tasks_count_for_their_tenant(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    for tenant in ("a", "b"):
        await make(replica, tenant, 3)
    for (task_id,) in await replica.query("select task_id::text from ledger.tasks where tenant = 'a' limit 2"):
        await run(replica, "a", task_id)
    assert tenants(await offers(replica, limit=2)) == ["b", "b"]


async def test_offers_to_many_coordinators_are_disjoint_and_fair(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    other_replica = await checkpoint(dsn=replica.dsn)
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "big", 1000, older_seconds=60)
        for number in range(5):
            await fill(postgres, f"small-{number}", 2)
    requests = [
        offers(side, limit=4, reserve_duration=Duration(seconds=60))
        for side in (replica, other_replica)
        for _ in range(6)
    ]
    results = [offer for some in await asyncio.gather(*requests) for offer in some]
    assert len(results) == len({offer.task_id for offer in results}) == 48
    assert {tenant: count for tenant, count in Counter(tenants(results)).items() if tenant != "big"} == {
        f"small-{number}": 2 for number in range(5)
    }


async def test_a_second_offer_skips_a_tenant_whose_last_task_is_taken(
    checkpoint: MakeCheckpoint,
) -> None:
    replica = await checkpoint()
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "a", 3)
        await fill(postgres, "b", 1, older_seconds=60)
    async with await connect(replica.dsn) as another:  # another coordinator, in its transaction
        await another.execute(b"select from tasks where tenant = 'b' for no key update")
        assert tenants(await offers(replica, limit=2)) == ["a", "a"]


async def test_many_tenants_alternate_within_their_tiers(
    ledger_dsn: str,
) -> None:
    offering = Offering(most_tenants=3)
    wanted = OfferRequest(["default"], ["messages"], list(Priority), [], 2**31, 60.0)
    served: list[str] = []
    async with await connect(ledger_dsn, prepared=False) as postgres:
        for number in range(10):
            await fill(postgres, f"t{number}", 2)
        await fill(postgres, "t9-urgent", 1, tier=1)
    async with await connect(ledger_dsn) as postgres:
        for _ in range(7):
            served += [task.tenant for task in await offering.offer(postgres, wanted, Slots.open_to_all(3))]
            await postgres.commit()
        assert await offering.offer(postgres, wanted, Slots.open_to_all(3)) == []
    assert served[0] == "t9-urgent"
    assert Counter(served) == {"t9-urgent": 1, **{f"t{number}": 2 for number in range(10)}}
    assert len(set(served[:10])) >= 9


async def test_a_pool_is_offered_tasks_of_its_tenants_only(checkpoint: MakeCheckpoint) -> None:
    """The tasks of others are not reserved, so that another pool gets them at once."""
    replica = await checkpoint()
    kept = Duration(seconds=60)
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "big", 1000, older_seconds=3600)
        for tenant in ("a", "b"):
            await fill(postgres, tenant, 2)
    assert await offers(replica, limit=64, tenants=["absent"]) == []
    assert tenants(await offers(replica, limit=64, reserve_duration=kept, tenants=["a", "absent"])) == ["a", "a"]
    assert await offers(replica, limit=64, reserve_duration=kept, tenants=["a"]) == []
    assert tenants(await offers(replica, limit=3, reserve_duration=kept)) == ["big", "b", "big"]
    assert await replica.query("select count(*) from ledger.tasks where offered_until is not null") == [(5,)]


async def test_many_tenants_of_a_pool_alternate(ledger_dsn: str) -> None:
    """More than one read covers, in two queues, between tenants of others."""
    offering, names = Offering(most_tenants=3), [f"t{number}" for number in range(10)]
    wanted = OfferRequest(["default", "more"], ["messages"], list(Priority), [], 2**31, 60.0, [*names, "idle"])
    served: list[str] = []
    async with await connect(ledger_dsn, prepared=False) as postgres:
        for number in range(20):
            await fill(postgres, f"t{number}", 2)
        await postgres.execute(b"update tasks set queue = 'more' where request_id = '2'")
    async with await connect(ledger_dsn) as postgres:
        for _ in range(7):
            served += [task.tenant for task in await offering.offer(postgres, wanted, Slots.open_to_all(3))]
            await postgres.commit()
        assert await offering.offer(postgres, wanted, Slots.open_to_all(3)) == []
    assert Counter(served) == dict.fromkeys(names, 2)


async def test_a_tier_that_shrinks_below_one_look_is_looked_at_once(ledger_dsn: str) -> None:
    """It was left in the middle: what is there now ends before the place where the next look begins."""
    offering = Offering(most_tenants=3)
    wanted = OfferRequest(["default"], ["messages"], list(Priority), [], 2**31, 60.0)
    async with await connect(ledger_dsn, prepared=False) as postgres:
        for number in range(5):
            await fill(postgres, f"t{number}", 4, tier=3)
        await postgres.execute(b"update tasks set priority = 1 where request_id = '1'")
    async with await connect(ledger_dsn) as postgres, asyncio.timeout(PATIENCE_SECONDS):
        first = await offering.offer(postgres, wanted, Slots.open_to_all(3))
        await postgres.commit()
        assert [(task.tenant, task.priority) for task in first] == [("t0", 1), ("t1", 1), ("t2", 1)]
        await postgres.execute(b"update tasks set queue = 'elsewhere' where priority = 1 and tenant > 't2'")
        second = await offering.offer(postgres, wanted, Slots.open_to_all(5))
        await postgres.commit()
    assert [task.priority for task in second] == [3] * 5


async def test_workers_of_other_queues_keep_a_tiers_order(ledger_dsn: str) -> None:
    offering = Offering(most_tenants=3)
    async with await connect(ledger_dsn, prepared=False) as postgres:
        for number in range(4):
            for name in "ab":
                await fill(postgres, f"{name}{number}", 9)
        await postgres.execute(b"update tasks set queue = left(tenant, 1)")
    served: set[str] = set()
    async with await connect(ledger_dsn) as postgres:
        for queue in "abab":
            wanted = OfferRequest([queue], ["messages"], list(Priority), [], 2**31, 60.0)
            served |= {task.tenant for task in await offering.offer(postgres, wanted, Slots.open_to_all(3))}
            await postgres.commit()
    assert served == {f"{name}{number}" for name in "ab" for number in range(4)}


async def test_high_tasks_without_end_do_not_starve_lower_tiers(checkpoint: MakeCheckpoint) -> None:
    """One slot at a time, as a small pool asks. Each of two replicas counts on its own, and after a restart anew."""
    first = await checkpoint()
    async with await connect(first.dsn, prepared=False) as postgres:
        for tier in (HIGH, NORMAL, LOW):
            await fill(postgres, f"tier-{tier}", 200, tier=tier)
    second = await checkpoint(dsn=first.dsn)
    kept = Duration(seconds=60)
    result = [
        offer.priority
        for turn in range(80)
        for offer in await offers((first, second)[turn % 2], limit=1, reserve_duration=kept)
    ]
    assert Counter(result) == {HIGH: 72, NORMAL: 4, LOW: 4}
    assert result[:36] == [HIGH] * 36
    restarted = await checkpoint(dsn=first.dsn)
    assert Counter(offer.priority for offer in await offers(restarted, limit=60, reserve_duration=kept)) == {
        HIGH: 54, NORMAL: 3, LOW: 3
    }  # fmt: skip


async def test_a_strict_order_of_tiers_can_be_set(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint(lower_tier_share=0.0)
    async with await connect(replica.dsn, prepared=False) as postgres:
        for tier in (HIGH, LOW):
            await fill(postgres, f"tier-{tier}", 60, tier=tier)
    result = await offers(replica, limit=60, reserve_duration=Duration(seconds=60))
    assert {offer.priority for offer in result} == {HIGH}


async def test_a_floor_reaches_the_lower_tiers_of_many_tenants(ledger_dsn: str) -> None:
    """More tenants than one look covers, and LOW tasks of the last one only."""
    offering = Offering(most_tenants=3, floor_slots=5)
    wanted = OfferRequest(["default"], ["messages"], list(Priority), [], 2**31, 60.0)
    served: list[Priority] = []
    async with await connect(ledger_dsn, prepared=False) as postgres:
        for number in range(10):
            await fill(postgres, f"t{number}", 9, tier=1)
        await fill(postgres, "z", 9, tier=3)
    async with await connect(ledger_dsn) as postgres:
        for _ in range(10):
            served += [Priority(task.priority) for task in await offering.offer(postgres, wanted, Slots.open_to_all(3))]
            await postgres.commit()
    assert Counter(served) == {Priority.HIGH: 24, Priority.LOW: 6}


async def test_lower_tiers_do_not_fill_reserved_slots(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    for tier in (LOW, LOW, LOW, NORMAL, NORMAL, HIGH):
        await replica.create(priority=tier)
    lower = task_pb2.LowerTiers(below_high=3, below_normal=1)
    result = await offers(replica, limit=5, lower_tiers=lower, reserve_duration=Duration(seconds=60))
    assert [offer.priority for offer in result] == [HIGH, NORMAL, NORMAL, LOW]
    assert [offer.priority for offer in await offers(replica, limit=5)] == [LOW, LOW]


async def make(replica: Checkpoint, tenant: str, count: int) -> list[str]:
    set_tenant(tenant)
    try:
        return [(await replica.create()).task_id for _ in range(count)]
    finally:
        set_tenant("default")


async def run(replica: Checkpoint, tenant: str, task_id: str) -> Any:
    _, claims = await replica.grant(task_id)
    return await replica.open(*replica.sign(task_id, claims.epoch, claims.claim_id, tenant=tenant))


async def limit(replica: Checkpoint, tenant: str, most: int | None) -> None:
    await replica.query(
        "insert into ledger.tenants (tenant, max_running_tasks) values (%s, %s) "
        "on conflict (tenant) do update set max_running_tasks = excluded.max_running_tasks",
        tenant,
        most,
    )


async def test_a_tenant_at_its_limit_gets_no_offer_and_no_open(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await limit(replica, "a", 2)
    first, second, third = await make(replica, "a", 3)
    await make(replica, "b", 1)
    owner = await run(replica, "a", first)
    assert sorted(tenants(await offers(replica))) == ["a", "b"]
    await run(replica, "a", second)
    await replica.query("update ledger.tasks set offered_until = null")
    assert tenants(await offers(replica)) == ["b"]
    with pytest.raises(WrongState) as refused:
        await run(replica, "a", third)
    assert (refused.value.reason, refused.value.metadata["state"]) == ("TENANT_QUOTA", "QUEUED")
    await owner.end()
    await run(replica, "a", third)


async def test_the_default_limit_applies_to_tenants_without_a_row(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await limit(replica, "", 1)
    for tenant in ("a", "b"):
        await make(replica, tenant, 2)
        await replica.query("delete from ledger.tenants where tenant = %s", tenant)
    assert sorted(tenants(await offers(replica))) == ["a", "b"]
    await limit(replica, "a", None)
    await replica.query("update ledger.tasks set offered_until = null")
    assert sorted(tenants(await offers(replica))) == ["a", "a", "b"]


async def test_a_task_at_its_tenants_limit_can_be_taken_over_and_ended(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await limit(replica, "a", 1)
    running, queued = await make(replica, "a", 2)
    await run(replica, "a", running)
    newer = await run(replica, "a", running)
    again = await replica.open(newer.token, newer.claims)
    assert again.task.state == task_pb2.TASK_STATE_RUNNING
    await replica.query(
        "update ledger.tasks set ending_state = 'CANCELLED', ending_reason = 'x', ending_at = now() where task_id = %s",
        queued,
    )
    assert (await run(replica, "a", queued)).task.cancel_requested


async def test_concurrent_opens_never_exceed_a_tenants_limit(
    checkpoint: MakeCheckpoint,
) -> None:
    """Every open is tried at once, and those that are let in end at random: at no moment are there too many."""
    chance = random.Random()
    replica = await checkpoint()
    sides = [replica, *[await checkpoint(dsn=replica.dsn) for _ in range(2)]]
    limits = {"a": 1, "b": 2, "c": 4}
    tasks = []
    for tenant, most in limits.items():
        await limit(replica, tenant, most)
        tasks += [(tenant, task_id) for task_id in await make(replica, tenant, 5)]
    chance.shuffle(tasks)
    opened, most_seen, reasons = Counter[str](), Counter[str](), set[str]()
    counting = asyncio.Event()

    async def work(tenant: str, task_id: str) -> None:
        owner = None
        while owner is None:
            try:
                owner = await run(chance.choice(sides), tenant, task_id)
            except WrongState as refused:
                reasons.add(refused.reason)
                await asyncio.sleep(0.1 * chance.random())
        opened[tenant] += 1
        await asyncio.sleep(0.02 * chance.random())
        await owner.end()

    async def count() -> None:
        while not counting.is_set():
            for tenant, running in await replica.query(
                "select tenant, count(*) from ledger.tasks where holds group by 1"
            ):
                most_seen[tenant] = max(most_seen[tenant], running)

    counter = asyncio.create_task(count())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*[work(*task) for task in tasks])
    counting.set()
    await counter
    assert (opened, reasons) == (dict.fromkeys(limits, 5), {"TENANT_QUOTA"})
    assert all(most_seen[tenant] <= most for tenant, most in limits.items()), most_seen
    assert most_seen["a"] == 1


async def depths(replica: Checkpoint) -> list[tuple[Any, ...]]:
    answer = await replica.stub.ListQueues(admin_pb.ListQueuesRequest(), timeout=TIMEOUT_SECONDS)
    return [
        (each.queue, each.priority, each.queued, each.held_back, each.HasField("oldest_queue_time"))
        for each in answer.queues
    ]


async def test_queues_are_listed_with_held_back_tasks(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    other_replica = await checkpoint(dsn=replica.dsn)
    await limit(replica, "a", 1)
    first, *_ = await make(replica, "a", 3)
    await replica.create(queue="batch", priority=LOW)
    await replica.create()
    ended = await replica.create()
    await replica.cancel(ended.task_id)
    await run(replica, "a", first)
    assert await depths(other_replica) == [("batch", LOW, 1, 0, True), ("default", NORMAL, 3, 2, True)]


async def test_the_age_in_the_queue_counts_from_each_entry_into_it(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    assert await replica.query("select queued_at from ledger.tasks where tenant = %s", replica.tenant) == [(None,)]
    await replica.requeue(owner)
    ((queued_at, created_at, updated_at),) = await replica.query(
        "select queued_at, created_at, updated_at from ledger.tasks"
    )
    assert queued_at == updated_at > created_at
    await replica.say(owner.task.task_id, "more")
    assert await replica.query("select queued_at from ledger.tasks where tenant = %s", replica.tenant) == [(queued_at,)]


async def test_ended_tasks_cost_offers_and_depths_nothing(checkpoint: MakeCheckpoint) -> None:
    """All that is read of tasks is read through indexes that have only queued, offered or held ones."""
    replica = await checkpoint()
    async with await connect(replica.dsn, prepared=False) as postgres:
        await fill(postgres, "a", 100)
        await postgres.execute(b"set session_replication_role to replica")  # rows that have ended, without their lives
        ended = FILL.replace("claim_count,", "state, ended_at, queued_at,").replace(
            "pg_current_xact_id(), %s", "pg_current_xact_id(), 'SUCCEEDED', now(), null"
        )
        await postgres.execute(ended.replace("n::text", "'ended-' || n").encode(), ("a", 2, 0.0, 20_000))
        await postgres.commit()
        await postgres.execute(b"analyze tasks")
    async with await connect(replica.dsn) as postgres:
        for statement, parameters in (
            (QUEUE.depth, {"most": 10}),
            (QUEUE.waiting, WANTED),
            (QUEUE.take, TAKEN),
            (QUEUE.streams, {"queues": [], "loops": [], "most": 10}),
        ):
            plan = await (await postgres.execute(b"explain " + statement, parameters)).fetchall()
            text = "\n".join(line for (line,) in plan)
            used = set(re.findall(r"(?:using|Bitmap Index Scan on) (tasks_\w+)", text))
            assert used - {"tasks_pkey"} <= {"tasks_queue", "tasks_offered", "tasks_held"}, text
            assert "Seq Scan on tasks" not in text
