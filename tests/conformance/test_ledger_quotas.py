"""Quotas of tenants: what a submit and a reservation meet, in the database, by several replicas at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from services.checkpoint.tenants.near_quotas import NearQuotas
from tenure.domain.errors import LimitReached, NotFound, Unavailable, WrongState
from tenure.domain.fencing import compose_epoch
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import as_tenant
from tenure.runtime.store.postgres import open_pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tests.conformance.test_ledger_stops import registered
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, answer, kinds, reserve

PATIENCE_SECONDS = 60.0
RUNNING, SUBMITS = tenants.QUOTA_KIND_RUNNING_TASKS, tenants.QUOTA_KIND_SUBMITS_PER_MINUTE
TOKENS, MONEY = tenants.QUOTA_KIND_TOKENS_PER_HOUR, tenants.QUOTA_KIND_MONEY_PER_DAY
REFUSE, DELAY = tenants.QUOTA_POLICY_REFUSE, tenants.QUOTA_POLICY_DELAY


async def limit(replica: Any, kind: Any, most: Any, policy: Any = REFUSE) -> Any:
    quota = tenants.Quota(kind=kind, most=most or 0, policy=policy, no_limit=most is None)
    request = tenants.UpdateTenantLimitsRequest(quotas=[quota], reason="a test", actor="tester")
    return (await TenantServiceStub(replica.channel).UpdateTenantLimits(request, timeout=PATIENCE_SECONDS)).tenant


async def window_use(replica: Any, kind: Any) -> Any:
    get_tenant = await TenantServiceStub(replica.channel).GetTenant(
        tenants.GetTenantRequest(), timeout=PATIENCE_SECONDS
    )
    return get_tenant.tenant.quotas[kind - 1]


async def until_heeded(owner: Any, denied: Any) -> Any:
    """Reserves until a replica knows the limit; then as it is denied."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        step = owner.next_number
        while True:
            got = (await owner.commit(reserve=reserve(step=step, input_tokens=10, output=10))).reserve
            if got.HasField("denied") is denied:
                return got
            if got.HasField("granted"):
                await owner.commit(answer(step=step, tokens=1))
            step += 1
            await asyncio.sleep(0.2)


async def spend(owner: Any, tokens: Any, step: int = 1) -> None:
    await owner.commit(reserve=reserve(step=step, input_tokens=10, output=tokens))
    await owner.commit(answer(step=step, tokens=tokens))


@contextmanager
def refused() -> Iterator[Any]:
    with pytest.raises(LimitReached) as refusal:
        yield refusal
    assert refusal.value.reason == "TENANT_QUOTA"


async def test_a_tenant_above_its_rate_is_refused_with_a_retry_time(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await limit(replica, SUBMITS, 2)
    for _ in range(2):
        await replica.create()
    request = pb.CreateTaskRequest(request_id=str(uuid4()), spec=task_pb2.TaskSpec(goal="one more"))
    async with grpc.aio.insecure_channel(replica.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await CheckpointServiceStub(channel).CreateTask(request, timeout=PATIENCE_SECONDS)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(error.value.trailing_metadata())
    details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
    values = {detail.TypeName().rpartition(".")[2]: detail for detail in details}
    info, quota, retry = error_details_pb2.ErrorInfo(), error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo()
    for name, message in (("ErrorInfo", info), ("QuotaFailure", quota), ("RetryInfo", retry)):
        assert values[name].Unpack(message)
    assert (info.reason, info.metadata["quota"], info.metadata["most"]) == ("TENANT_QUOTA", "SUBMITS_PER_MINUTE", "2")
    assert quota.violations[0].subject == "tenants/default"
    assert 0 < retry.retry_delay.seconds <= 61


async def test_a_repeat_is_answered_at_the_cap_and_counts_once(replica: Checkpoint) -> None:
    await limit(replica, SUBMITS, 2)
    first = await replica.create("r-1")
    assert [await replica.create("r-1") for _ in range(3)] == [first] * 3
    assert (await window_use(replica, SUBMITS)).used == 1
    await replica.create("r-2")
    assert (await replica.create("r-1")).task_id == first.task_id
    with refused():
        await replica.create("r-3")


async def decided(replica: Any, request_id: Any) -> Any:
    """As a client asks: again, under the same id, when so many wait for one row that the replica gives up."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await replica.create(request_id)
            except Unavailable:
                continue


async def test_many_at_once_on_two_replicas_never_pass_the_rate(replica: Checkpoint, other_replica: Checkpoint) -> None:
    await limit(replica, SUBMITS, 5)
    requests = [decided(side, f"r-{n}") for n in range(10) for side in (replica, other_replica)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    made = {task.task_id for task in answers if isinstance(task, task_pb2.Task)}
    assert len(made) == 5
    assert [one for one in answers if not isinstance(one, task_pb2.Task | LimitReached)] == []
    assert await replica.query("select count(*) from ledger.tasks where tenant = %s", replica.tenant) == [(5,)]


async def test_the_delay_policy_accepts_a_task_and_starts_it_later(replica: Checkpoint) -> None:
    await limit(replica, SUBMITS, 1, DELAY)
    await replica.create()
    later = await replica.create()
    assert (later.state, later.reason) == (task_pb2.TASK_STATE_QUEUED, "TENANT_QUOTA")
    assert "1 of 1 submits a minute" in later.message
    held = "select extract(epoch from starts_at - created_at)::int, extract(epoch from deadline_at - starts_at)::int"
    ((starts_after, lasts),) = await replica.query(f"{held} from ledger.tasks where task_id = %s", later.task_id)
    assert 0 < starts_after <= 62
    assert lasts >= 3600
    assert [offer.task_id for offer in await offers(replica)] != [later.task_id]


async def offers(replica: Any) -> Any:
    request = pb.ListClaimableRequest(queues=["default"], limit=10, tenants=[replica.tenant])
    return (await replica.stub.ListClaimable(request, timeout=PATIENCE_SECONDS)).offers


async def test_a_quota_does_not_limit_another_tenant(replica: Checkpoint) -> None:
    await limit(replica, SUBMITS, 1)
    await replica.create()
    with refused():
        await replica.create()
    async with replica.of_tenant("other") as other:
        await other.create()
        assert (await window_use(other, SUBMITS)).quota.most == 0


async def test_at_the_hourly_token_cap_a_running_task_waits(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await spend(owner, 900, step=1)
    await limit(replica, TOKENS, 500)
    denied = (await until_heeded(owner, denied=True)).denied
    assert denied.reason == "TENANT_QUOTA"
    assert "tokens an hour" in denied.message
    assert 0 < denied.retry_after.seconds <= 3660
    with refused():
        await replica.create()
    await limit(replica, TOKENS, 10**9)
    await until_heeded(owner, denied=False)
    assert (await replica.get(owner.task.task_id)).state == task_pb2.TASK_STATE_RUNNING


async def test_at_the_daily_money_cap_no_further_call_is_made(
    replica: Checkpoint,
) -> None:
    """A hundred tokens of output, at 25,000 nano dollars each. Its neighbour has nothing to wait for."""
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve(input_tokens=10, output=100, model="claude-opus-4-8"))
    await limit(replica, MONEY, 2_000_000)
    await owner.commit(answer(tokens=100))
    used = (await window_use(replica, MONEY)).used
    assert (
        await replica.query("select sum(nano_usd)::bigint from ledger.token_usage where tenant = %s", replica.tenant)
        == [(used,)]
        == [(2_500_000,)]
    )
    denied = (await until_heeded(owner, denied=True)).denied
    assert denied.reason == "TENANT_QUOTA"
    assert "has used $0.0025 of $0.002 a day" in denied.message
    assert 0 < denied.retry_after.ToSeconds() <= 300
    with refused() as response:
        await replica.create()
    assert (response.value.metadata["quota"], response.value.metadata["most"]) == ("MONEY_PER_DAY", "2000000")
    async with replica.of_tenant("other") as other:
        await other.create()
    await limit(replica, MONEY, 3_000_000)
    await until_heeded(owner, denied=False)
    await replica.create()


async def test_usage_before_a_limit_was_set_counts(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    for step, tokens in enumerate((100, 23, 400), start=1):
        await spend(owner, tokens, step)
    await limit(replica, TOKENS, 10_000)
    billed = "select sum(input_tokens + output_tokens + cache_creation_input_tokens + cache_read_input_tokens)::bigint"
    ((total,),) = await replica.query(f"{billed} from ledger.token_usage where tenant = %s", replica.tenant)
    assert (await window_use(replica, TOKENS)).used == total == 523
    ((windows,),) = await replica.query(
        "select sum(amount)::bigint from ledger.tenant_windows where quota = 'MONEY_PER_DAY' and tenant = %s",
        replica.tenant,
    )
    ((money,),) = await replica.query(
        "select sum(nano_usd)::bigint from ledger.token_usage where tenant = %s", replica.tenant
    )
    assert (windows or 0) == money


async def test_a_task_stopped_at_a_cap_is_queued_when_it_is_raised(
    replica: Checkpoint,
) -> None:
    await limit(replica, TOKENS, 1)
    task = await replica.create()
    owner = await replica.claim(task.task_id)
    transition = pb.Transition(to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="TENANT_QUOTA")
    transition.retry_delay.FromSeconds(3000)
    await owner.commit(transition=transition)
    await limit(replica, TOKENS, 10**9)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await replica.get(task.task_id)).state != task_pb2.TASK_STATE_QUEUED:
            await asyncio.sleep(0.1)


async def test_a_quota_of_0_allows_nothing_until_it_is_removed(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    queued = await replica.create()
    tenant = await limit(replica, SUBMITS, 0, DELAY)
    use = tenant.quotas[SUBMITS - 1]
    assert (use.quota.most, use.quota.no_limit, use.hard_reached) == (0, False, True)
    with pytest.raises(LimitReached):
        await replica.create()
    await limit(replica, RUNNING, 0)
    assert not await registered(replica, queued.task_id, compose_epoch(1, 400))
    await limit(replica, TOKENS, 0)
    assert (await until_heeded(owner, True)).denied.reason == "STOPPED"
    for kind in (SUBMITS, RUNNING, TOKENS):
        tenant = await limit(replica, kind, None)
        assert (tenant.quotas[kind - 1].quota.no_limit, tenant.quotas[kind - 1].hard_reached) == (True, False)
    await replica.create()
    await replica.claim(queued.task_id)


async def stops_of(replica: Checkpoint) -> list[tuple[str, bool]]:
    listed = await replica.stub.ListStops(admin_pb.ListStopsRequest(), timeout=PATIENCE_SECONDS)
    return [(stop.reason, stop.by_quota) for stop in listed.stops if stop.tenant == replica.tenant]


async def reserved(owner: Any) -> str:
    """Asks for one model call. Returns the reason of the denial, "" if the call is granted and made."""
    got = (await owner.commit(reserve=reserve(step=owner.next_number, input_tokens=10, output=10))).reserve
    if got.HasField("granted"):
        await owner.commit(answer(step=owner.next_number - 1, tokens=1))
    return str(got.denied.reason)


@pytest.mark.parametrize("kind", [RUNNING, TOKENS, MONEY])
async def test_a_quota_of_0_is_a_stop_of_the_tenant(replica: Checkpoint, other_replica: Checkpoint, kind: Any) -> None:
    """At once, at every replica: no model call of a running task, and no grant. A higher quota ends it."""
    owner = await other_replica.claim((await replica.create()).task_id)
    queued = await replica.create()
    stopped = (await limit(replica, kind, 0)).stopped
    assert (stopped.stopped_by, stopped.HasField("stop_time")) == ("tester", True)
    assert await stops_of(replica) == [(stopped.reason, True)]
    assert stopped.reason.endswith("is 0: a test")
    assert await reserved(owner) == "STOPPED"
    assert not await registered(other_replica, queued.task_id, compose_epoch(1, 500))
    assert not (await limit(replica, kind, 10**6)).HasField("stopped")
    assert await stops_of(replica) == []
    assert await reserved(owner) == ""
    assert await registered(other_replica, queued.task_id, compose_epoch(1, 501))


async def test_a_quota_and_an_operator_each_end_their_own_stop(replica: Checkpoint) -> None:
    selected: dict[str, Any] = {"tenant": replica.tenant, "reason": "wrong bills", "actor": "user/ann"}
    await limit(replica, RUNNING, 0)
    await limit(replica, TOKENS, 0)
    with pytest.raises(NotFound) as missing:
        await replica.stub.EndStop(admin_pb.EndStopRequest(**selected), timeout=PATIENCE_SECONDS)
    assert f"tenure tenants limit {replica.tenant} with a higher quota" in str(missing.value)
    await replica.stub.BeginStop(admin_pb.BeginStopRequest(**selected), timeout=PATIENCE_SECONDS)
    assert [by_quota for _, by_quota in await stops_of(replica)] == [True, False]
    await limit(replica, TOKENS, None)
    assert len(await stops_of(replica)) == 2
    await limit(replica, RUNNING, 5)
    assert await stops_of(replica) == [("wrong bills", False)]
    await replica.stub.EndStop(admin_pb.EndStopRequest(**selected), timeout=PATIENCE_SECONDS)
    assert await stops_of(replica) == []


async def test_a_stop_by_quotas_names_those_that_are_0(replica: Checkpoint) -> None:
    """Also when others become 0 while it is in force; it is one stop, with the time of its begin."""
    first = (await limit(replica, RUNNING, 0)).stopped
    both = (await limit(replica, MONEY, 0)).stopped
    unrelated = (await limit(replica, SUBMITS, 700)).stopped
    second = (await limit(replica, RUNNING, 5)).stopped
    assert [one.reason for one in (first, both, unrelated, second)] == [
        "its quota of running tasks is 0: a test",
        "its quota of running tasks and of dollars a day is 0: a test",
        "its quota of running tasks and of dollars a day is 0: a test",
        "its quota of dollars a day is 0: a test",
    ]
    assert {one.stop_time.ToNanoseconds() for one in (first, both, unrelated, second)} == {
        first.stop_time.ToNanoseconds()
    }
    assert await stops_of(replica) == [(second.reason, True)]


async def test_a_quota_of_0_submits_stops_no_task(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    assert not (await limit(replica, SUBMITS, 0)).HasField("stopped")
    assert (await stops_of(replica), await reserved(owner)) == ([], "")


async def test_a_raised_cap_starts_nothing_before_its_start_time(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await spend(owner, 100)
    await limit(replica, TOKENS, 1, DELAY)
    tomorrow = Timestamp(seconds=int(time.time()) + 86_400)
    task = await replica.create(start_time=tomorrow)
    await limit(replica, TOKENS, 10**9, DELAY)
    text = "select extract(epoch from starts_at)::bigint from ledger.tasks where task_id = %s"
    assert await replica.query(text, task.task_id) == [(tomorrow.seconds,)]


async def test_a_removed_rate_starts_nothing_before_its_start_time(replica: Checkpoint) -> None:
    """The rate allows the second task a minute later, and its client asked for a start before that."""
    await limit(replica, SUBMITS, 1, DELAY)
    await replica.create()
    soon = Timestamp(seconds=int(time.time()) + 30)
    delayed = [await replica.create(), await replica.create(start_time=soon)]
    await limit(replica, SUBMITS, None, DELAY)
    text = "select starts_at <= now(), starts_at >= to_timestamp(%s) from ledger.tasks where task_id = %s"
    at_once, asked = [(await replica.query(text, soon.seconds, task.task_id))[0] for task in delayed]
    assert at_once[0] is not False  # None: a sweep has started it by now
    assert asked[1]


async def test_the_soft_cap_warns_once(replica: Checkpoint) -> None:
    await limit(replica, TOKENS, 1000)
    owner = await replica.claim((await replica.create()).task_id)
    await spend(owner, 850)
    await until_warned(replica, owner)
    await replica.create()
    assert (
        len(await replica.query("select sequence from ledger.entries where kind = 19 and tenant = %s", replica.tenant))
        == 1
    )
    assert (await window_use(replica, TOKENS)).HasField("warn_time")
    response = await replica.query(
        "select task_id::text, state from ledger.changes where reason = 'QUOTA_WARNING' and tenant = %s", replica.tenant
    )
    assert response == [(owner.task.task_id, "RUNNING")]


async def until_warned(replica: Any, owner: Any, step: int = 2) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for number in range(step, 50):
            if "quota_warning" in kinds(await replica.entries(owner.task.task_id)):
                return
            response = await owner.commit(reserve=reserve(step=number, input_tokens=10, output=10))
            entries = [entry for entry in response.foreign_entries if entry.body.HasField("quota_warning")]
            await owner.commit(answer(step=number, tokens=1))
            if entries:
                assert entries[0].body.quota_warning.most == 1000
            await asyncio.sleep(0.2)


async def test_a_metric_follows_a_quota_from_its_soft_cap_on(replica: Checkpoint) -> None:
    await limit(replica, TOKENS, 1000)
    owner = await replica.claim((await replica.create()).task_id)
    metrics.name_tenants(1000)
    try:
        async with open_pool(replica.dsn, service="checkpoint", schema="ledger") as pool:
            near = NearQuotas(pool)
            await spend(owner, 500)
            await near.look()
            assert used_ratio(replica) == 0  # no warning yet: no series
            await spend(owner, 350, step=2)
            await until_warned(replica, owner, step=3)
            await near.look()
            assert used_ratio(replica) >= 0.85
            await limit(replica, TOKENS, 10_000)
            await near.look()
            assert 0 < used_ratio(replica) < 0.1
            await limit(replica, TOKENS, None)
            await near.look()
            assert used_ratio(replica) == 0
    finally:
        metrics.name_tenants(0)


async def test_a_metric_follows_a_quota_of_running_tasks(replica: Checkpoint) -> None:
    await limit(replica, RUNNING, 5, DELAY)
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(3)]
    metrics.name_tenants(1000)
    try:
        async with open_pool(replica.dsn, service="checkpoint", schema="ledger") as pool:
            near = NearQuotas(pool)
            await near.look()
            assert used_ratio(replica, "RUNNING_TASKS") == 0
            owners.append(await replica.claim((await replica.create()).task_id))
            await near.look()
            assert used_ratio(replica, "RUNNING_TASKS") == 0.8
            await owners[0].end()
            await near.look()
            assert used_ratio(replica, "RUNNING_TASKS") == 0
    finally:
        metrics.name_tenants(0)


def used_ratio(replica: Checkpoint, quota: str = "TOKENS_PER_HOUR") -> float:
    return metrics.read("tenure_tenant_quota_used_ratio", tenant=replica.tenant, quota=quota)


async def test_running_tasks_block_new_ones_under_the_refuse_policy(replica: Checkpoint) -> None:
    await limit(replica, RUNNING, 1)
    owner = await replica.claim((await replica.create()).task_id)
    with refused():
        await replica.create()
    await owner.end()
    await replica.create()


async def test_two_updates_of_a_tenant_do_not_overwrite_each_other(replica: Checkpoint) -> None:
    stub = TenantServiceStub(replica.channel)
    first = await limit(replica, SUBMITS, 5)
    request = tenants.UpdateTenantLimitsRequest(
        quotas=[tenants.Quota(kind=SUBMITS, most=6)], expected_revision=first.revision, reason="more", actor="a"
    )
    second = (await stub.UpdateTenantLimits(request, timeout=PATIENCE_SECONDS)).tenant
    assert second.revision == first.revision + 1
    assert (await stub.UpdateTenantLimits(request, timeout=PATIENCE_SECONDS)).tenant == second  # a repeat
    request.quotas[0].most = 7
    with pytest.raises(WrongState) as changed:
        await stub.UpdateTenantLimits(request, timeout=PATIENCE_SECONDS)
    assert changed.value.reason == "TENANT_CHANGED"


async def test_a_tenant_without_quotas_of_its_own_follows_the_defaults(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await replica.create()
    await replica.query(
        "update ledger.tenants set max_submits_per_minute = 9, submits_policy = 'DELAY' where tenant = ''"
    )
    with as_tenant("new"):
        await replica.create()
        response = await window_use(replica, SUBMITS)
        assert (response.quota.most, response.is_default, response.used) == (9, True, 1)
        await limit(replica, SUBMITS, 3)
        assert not (await window_use(replica, SUBMITS)).is_default
        follow = tenants.UpdateTenantLimitsRequest(follow_defaults=[SUBMITS], reason="back", actor="a")
        response = (
            await TenantServiceStub(replica.channel).UpdateTenantLimits(follow, timeout=PATIENCE_SECONDS)
        ).tenant
        assert (response.quotas[1].quota.most, response.quotas[1].is_default) == (9, True)
