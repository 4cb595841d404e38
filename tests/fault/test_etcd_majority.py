"""Whole tasks over an etcd of three members, of which one at a time is lost: they go on, and stale writes are refused.

The last worker does not hear that it lost its claims: when it wakes up it writes on, and only the fences stop it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import pytest
import pytest_asyncio

from checker.collect import collect_tasks, read_effects
from checker.history import History
from checker.verify import examine
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.support.fix_etcd_cluster import EtcdCluster
from tests.support.model_log import read_model_calls
from tests.support.patience import PATIENCE_SECONDS
from tests.support.store_folder import store_folder

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(400),
    pytest.mark.faults,
]

MODEL: Final = "sim-faults-keyed"
STEPS: Final = 7
SUCCEEDED: Final = task_pb2.TASK_STATE_SUCCEEDED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    with store_folder() as stores:
        size = Size(etcd_members=3)
        async with installation(tmp_path_factory.mktemp("three"), size, stores) as install, attended(install):
            yield install


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(three: Installation) -> AsyncIterator[EtcdCluster]:
    """Its etcd, whole before and after each test."""
    members = EtcdCluster(list(three.etcd.values()))
    await members.heal()
    yield members
    await members.heal()


async def submit(client: Client, count: int) -> list[str]:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=MODEL)))
    return [(await client.submit(uuid.uuid4().hex, request=request)).task_id for _ in range(count)]


async def ended(install: Installation, task_ids: list[str]) -> None:
    """All succeed, and the checker finds nothing in all that is known of them."""
    client = install.users[0]
    tasks = await asyncio.gather(*(client.wait(task_id, PATIENCE_SECONDS) for task_id in task_ids))
    assert {(task.state, task.attempt) for task in tasks} == {(SUCCEEDED, 1)}
    history = await history_of(install, task_ids)
    assert examine(history).violations == ()
    assert history.grants
    assert len(history.effects or ()) == STEPS * len(tasks)


async def history_of(install: Installation, task_ids: list[str]) -> History:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while install.etcd_log.held(set(task_ids)):
            await asyncio.sleep(0.1)
    await install.etcd_log.caught_up()
    layout, known = install.stack.layout, set(task_ids)
    return replace(
        await collect_tasks(install.users[0], task_ids),
        effects=tuple(one for one in read_effects(layout.records) if one.task_id in known),
        model_calls=tuple(one for one in read_model_calls(layout.model_log) if one.task_id in known),
        grants=install.etcd_log.grants(known),
        generations=tuple(install.etcd_log.generations),
        settled=True,
    )


async def held_by(install: Installation, worker: str, task_ids: list[str]) -> set[str]:
    """The tasks that this worker has begun, as soon as there are any."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            tasks = [await install.users[0].get(task_id) for task_id in task_ids]
            if held := {task.task_id for task in tasks if task.owner == worker and task.step}:
                return held
            await asyncio.sleep(0.05)


async def stale_writes(install: Installation, task_ids: set[str]) -> int:
    """How many writes to these tasks were refused, once there is one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            listed = [await install.users[0].refusals(task_id) for task_id in task_ids]
            if count := sum(len(one.ledger) + len(one.tools) for one in listed):
                return count
            await asyncio.sleep(0.2)


async def test_tasks_go_on_and_stale_writes_fail_without_the_leader(three: Installation, cluster: EtcdCluster) -> None:
    """A worker sleeps while the leader is killed. Its tasks are taken over by a claim of the new leader's time."""
    sleeper = three.stack.workers[-1]
    first = await submit(three.users[0], 9)
    held = await held_by(three, sleeper.name, first)
    sleeper.freeze()
    try:
        leader = await cluster.leader()
        leader.kill()
        later = await submit(three.users[0], 6)
        await ended(three, [*first, *later])
    finally:
        sleeper.wake()
    assert await stale_writes(three, held)
    await ended(three, [*first, *later])
    assert await cluster.leader() is not leader


async def test_tasks_go_on_without_a_follower_and_after_its_return(three: Installation, cluster: EtcdCluster) -> None:
    leader = await cluster.leader()
    follower = next(member for member in cluster.members if member is not leader)
    first = await submit(three.users[0], 6)
    follower.kill()
    later = await submit(three.users[0], 6)
    await ended(three, [*first, *later])
    await cluster.heal()
    await ended(three, await submit(three.users[0], 3))


async def test_members_may_be_restarted_in_turn_under_tasks(three: Installation, cluster: EtcdCluster) -> None:
    """As for a new release of etcd: SIGTERM, a start, and the next one when this one answers."""
    task_ids: list[str] = []
    for member in cluster.members:
        task_ids += await submit(three.users[0], 4)
        await asyncio.to_thread(member.stop)
        member.start()
        await asyncio.to_thread(member.wait_ready)
    await ended(three, task_ids)
