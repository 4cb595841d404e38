"""Pools of workers: a worker gets tasks of its pool only, by every way, and a changed file counts at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from devstack import StackOptions
from tenure.domain.errors import PermissionDenied, TenureError, WrongState
from tenure.v1 import agent_service_pb2, task_pb2
from tests.support.fix_pools import PooledStack, open_pooled_stack
from tests.support.fix_stack import OnSharedStores
from tests.support.scripted_worker import ScriptedWorker
from tests.support.sweeps import one_of_each

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACME = {"identities": ["acme-1"], "queues": ["default", "gpu"], "tenants": ["acme"]}
OURS = {"identities": ["ours-1"], "loops": ["messages", "own"], "tenants": ["shop", "bank"]}
WIDE = {"identities": ["wide-1"]}
TTL_SECONDS = "30"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, on_shared_stores: OnSharedStores
) -> AsyncIterator[PooledStack]:
    """Without workers of its own. A broken stream has a long grace, so that its worker may attach again."""
    folder = tmp_path_factory.mktemp("pools")
    options = await on_shared_stores(StackOptions(data_dir=folder / "data", workers=0))
    pools = {"acme": ACME, "ours": OURS, "wide": WIDE}
    settings = {"ttl_seconds": TTL_SECONDS, "reconnect_grace_seconds": "25"}
    async with open_pooled_stack(folder, pools, options, **settings) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def pooled(stack: PooledStack) -> AsyncIterator[PooledStack]:
    """With the first pools again, without workers and live tasks."""
    yield stack
    await stack.leave_all()
    await stack.set_pools(acme=ACME, ours=OURS, wide=WIDE)


async def refusal(pooled: PooledStack, certificate: str, **hello: Any) -> TenureError:
    with pytest.raises(PermissionDenied) as refused:
        await pooled.worker(certificate, **hello)
    return refused.value


async def ended_with(worker: ScriptedWorker) -> TenureError:
    error = await worker.ends()
    assert isinstance(error, TenureError), error
    return error


@pytest.mark.parametrize(
    ("certificate", "hello", "reason", "words"),
    one_of_each(
        [
            ("stranger", {}, "NOT_IN_POOL", "no pool has the worker identity stranger"),
            ("acme", {"worker_id": "acme-1"}, "NOT_IN_POOL", "no pool has the worker identity acme"),
            ("acme-1", {"queues": ["gpu", "secret"]}, "OUTSIDE_POOL", "does not serve the queue secret"),
            ("ours-1", {"loops": ["own", "theirs"]}, "OUTSIDE_POOL", "does not serve the loop theirs"),
        ],
        kind=lambda case: case[2],
    ),
)
async def test_a_worker_outside_of_its_pool_gets_no_session(
    pooled: PooledStack, certificate: str, hello: dict[str, Any], reason: str, words: str
) -> None:
    refused = await refusal(pooled, certificate, **hello)
    assert refused.reason == reason
    assert words in refused.message


async def test_a_worker_gets_only_tasks_of_its_tenants(pooled: PooledStack) -> None:
    """Those of others wait for their own pool, and are in the way of none."""
    acme = await pooled.worker("acme-1", "acme-1-a", slots=64)
    others = await pooled.submit("shop", 20)
    own = await pooled.submit("acme", 3)
    assert {grant.task_id for grant in await acme.next_grants(3)} == set(own)
    ours = await pooled.worker("ours-1", slots=64)
    assert {grant.task_id for grant in await ours.next_grants(20)} == set(others)
    assert (acme.grants_waiting, ours.grants_waiting) == (0, 0)


async def test_a_pool_without_tenants_takes_all(pooled: PooledStack) -> None:
    wide = await pooled.worker("wide-1", slots=8)
    tasks = [*await pooled.submit("acme", 2), *await pooled.submit("anyone", 2)]
    assert {grant.task_id for grant in await wide.next_grants(4)} == set(tasks)


async def test_agents_go_to_the_tenants_of_the_pool_only(pooled: PooledStack) -> None:
    assert await pooled.register_agents("acme-1", "nightly", "weekly") == ["nightly@1", "weekly@1"]
    for tenant, names in (("acme", ["nightly", "weekly"]), ("shop", [])):
        async with pooled.client(tenant) as client:
            assert [
                agent.name
                async for agent in client.items(
                    client.agents.ListAgents, agent_service_pb2.ListAgentsRequest(), lambda page: page.agents
                )
            ] == names
    with pytest.raises(PermissionDenied) as other_tenant:
        await pooled.register_agents("acme-1", "nightly", tenants=["acme", "shop"])
    with pytest.raises(PermissionDenied) as other_loop:
        await pooled.register_agents("ours-1", "nightly")
    assert {other_tenant.value.reason, other_loop.value.reason} == {"OUTSIDE_POOL"}


async def test_a_tenant_that_leaves_the_pool_loses_its_worker(pooled: PooledStack) -> None:
    """The session stays, with its other tasks. The task is done by the other pool, and its worker did not die."""
    ours = await pooled.worker("ours-1", slots=2)
    [leaves], [stays] = await pooled.submit("bank"), await pooled.submit("shop")
    grants = {grant.task_id: grant for grant in await ours.next_grants(2)}
    for grant in grants.values():
        await ours.open(grant)
    await pooled.set_pools(ours={**OURS, "tenants": ["shop"]}, acme={**ACME, "tenants": ["acme", "bank"]})
    revoke = await ours.hears("revoke")
    assert (revoke.task_id, revoke.reason) == (leaves, "POOL_CHANGED")
    acme = await pooled.worker("acme-1")
    taken = await acme.next_grant()
    assert taken.task_id == leaves
    await acme.succeed(taken)
    assert await pooled.reasons("bank", leaves) == ["SUBMITTED", "OPENED", "POOL_CHANGED", "OPENED", "FINAL_ANSWER"]
    assert (ours.ended_with, list(ours.held)) == (None, [grants[stays].claim_id])
    await pooled.submit("bank", 2)
    [later] = await pooled.submit("shop")
    assert (await ours.next_grant()).task_id == later


@pytest.mark.faults
async def test_a_worker_that_leaves_all_pools_loses_its_session(pooled: PooledStack) -> None:
    ours = await pooled.worker("ours-1")
    [task_id] = await pooled.submit("shop")
    await ours.open(await ours.next_grant())
    await pooled.set_pools(acme={**ACME, "tenants": ["shop"]})
    ended = await ended_with(ours)
    assert (type(ended), ended.reason) == (PermissionDenied, "NOT_IN_POOL")
    acme = await pooled.worker("acme-1")
    taken = await acme.next_grant()
    assert taken.task_id == task_id
    await acme.succeed(taken)
    assert (await pooled.reasons("shop", task_id))[2] == "POOL_CHANGED"
    with pytest.raises(PermissionDenied):
        await ours.reattach()


@pytest.mark.faults
async def test_a_worker_whose_queue_leaves_the_pool_is_ended(pooled: PooledStack) -> None:
    acme = await pooled.worker("acme-1", queues=["gpu"])
    await pooled.set_pools(acme={**ACME, "queues": ["default"]})
    assert (await ended_with(acme)).reason == "OUTSIDE_POOL"


@pytest.mark.faults
async def test_a_worker_that_attaches_again_keeps_only_its_tenants(pooled: PooledStack) -> None:
    """The file changed while its stream was broken."""
    ours = await pooled.worker("ours-1", slots=2)
    [leaves], [stays] = await pooled.submit("bank"), await pooled.submit("shop")
    for grant in await ours.next_grants(2):
        await ours.open(grant)
    await ours.break_off()
    await pooled.set_pools(ours={**OURS, "tenants": ["shop"]})
    again = pooled.keep(await ours.reattach())
    assert (again.session_id, again.lost) == (ours.session_id, [])
    assert (await again.hears("revoke")).task_id == leaves
    await pooled.task_left("bank", leaves, "POOL_CHANGED")
    assert [grant.task_id for grant in again.held.values()] == [stays]


@pytest.mark.faults
async def test_a_session_is_of_one_certificate_only(pooled: PooledStack) -> None:
    """Two certificates may hold as ours-1-x; neither continues the other's session."""
    await pooled.set_pools(ours={"identities": ["ours-1", "ours-1-x"]})
    first = await pooled.worker("ours-1", "ours-1-x")
    await pooled.submit("shop")
    grant = await first.next_grant()
    holding = {"task_id": grant.task_id, "claim_id": grant.claim_id}
    hello = {"worker_id": "ours-1-x", "session_id": first.session_id, "holdings": [holding]}
    assert (await refusal(pooled, "ours-1-x", **hello)).reason == "OTHER_HOLDER"


@pytest.mark.faults
async def test_a_broken_file_changes_nothing(pooled: PooledStack) -> None:
    acme = await pooled.worker("acme-1", slots=2)
    await pooled.break_pools('{"pools": {"acme": {"identities": []}}}')
    await pooled.submit("shop")
    [task_id] = await pooled.submit("acme")
    assert (await acme.next_grant()).task_id == task_id
    assert acme.ended_with is None
    assert (await refusal(pooled, "stranger")).reason == "NOT_IN_POOL"


async def test_a_transfer_to_a_worker_of_another_pool_is_refused(pooled: PooledStack) -> None:
    ours, _ = await pooled.worker("ours-1"), await pooled.worker("acme-1")
    [task_id] = await pooled.submit("shop")
    await ours.open(await ours.next_grant())
    async with pooled.client("shop") as client:
        with pytest.raises(WrongState) as refused:
            await client.transfer(task_id, "elsewhere", "acme-1")
    assert refused.value.reason == "OUTSIDE_POOL"
    assert (await pooled.task("shop", task_id)).owner == "ours-1"


async def test_operators_see_the_pools_and_explain_the_wait(pooled: PooledStack) -> None:
    acme = await pooled.worker("acme-1", queues=["gpu"])
    [task_id] = await pooled.submit("shop", queue="gpu")
    async with pooled.client("shop") as client:
        workers = {worker.session_id: worker for worker in (await client.workers()).workers}
        lines = (await client.explain(task_id)).lines
    assert (workers[acme.session_id].pool, list(workers[acme.session_id].tenants)) == ("acme", ["acme"])
    assert any("No connected worker may take tasks of its tenant" in line for line in lines), lines
    assert (await pooled.task("shop", task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_tasks_without_a_pool_are_never_offered(pooled: PooledStack) -> None:
    """An offer that no session takes would be repeated each second, and would keep the task from other coordinators."""
    acme = await pooled.worker("acme-1", slots=64)
    waiting = await pooled.submit("shop", 5)
    own = await pooled.submit("acme", 5)
    assert {grant.task_id for grant in await acme.next_grants(5)} == set(own)
    assert await pooled.offered(waiting) == []
    assert set(await pooled.offered(own)) == set(own)
