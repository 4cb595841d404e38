"""The groups of a task for effect keys, as the ledger offers it: tree, conversation and run of its source."""

from __future__ import annotations

import uuid
from typing import Any

from tenure.v1 import task_pb2, token_pb2
from tests.conformance.test_ledger_forks import ended, fork
from tests.conformance.test_ledger_queue import offers
from tests.conformance.test_ledger_retention import as_operator
from tests.conformance.test_ledger_sub_agents import call, finish, ids, in_state, spawner, wait
from tests.support.fix_checkpoint import Checkpoint, answer, reserve

TALK = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="talk-1", source_run_id="message-1")
NIGHT = task_pb2.Source(kind=task_pb2.SOURCE_KIND_SCHEDULER, source_id="schedule-1", source_run_id="2026-11-29")


def spec(source: task_pb2.Source | None = None) -> dict[str, Any]:
    """A task in a queue of its own, which no other test's offers empty."""
    return {"queue": f"queue-{uuid.uuid4().hex}", **({} if source is None else {"source": source})}


async def scopes_of(replica: Checkpoint, queue: str) -> dict[str, token_pb2.TaskScopes]:
    return {offer.task_id: offer.scopes for offer in await offers(replica, queues=[queue])}


async def test_a_fork_stays_in_the_tree_and_the_run(replica: Checkpoint) -> None:
    given = spec(NIGHT)
    root = await ended(replica, **given)
    first = await fork(replica, root, message="And half of it?")
    second = await fork(replica, first.task_id, request_id="f-2", message="And a third?")
    run = "SCHEDULER/schedule-1/2026-11-29"
    expected = token_pb2.TaskScopes(tree=root, source=run)
    assert await scopes_of(replica, given["queue"]) == {first.task_id: expected, second.task_id: expected}


async def test_sub_agents_of_a_fork_stay_in_its_tree(replica: Checkpoint) -> None:
    given = spec(TALK)
    root = await ended(replica, **given)
    forked = await fork(replica, root, message="And half of it?")
    owner = await replica.claim(forked.task_id)
    await owner.commit(reserve=reserve(step=3))
    await owner.commit(answer(step=3, text="so far"), call(call_id="3.0"))
    offered = await scopes_of(replica, given["queue"])
    assert set(offered) == set(ids(forked.task_id, 2, "3.0"))
    assert {(one.tree, one.conversation) for one in offered.values()} == {(root, "talk-1")}


async def test_fork_of_a_sub_agent_outlives_its_pruned_root(replica: Checkpoint) -> None:
    given = spec(NIGHT)
    root = await ended(replica, **given)
    forked = await fork(replica, root, message="And half of it?")
    owner = await replica.claim(forked.task_id)
    await owner.commit(reserve=reserve(step=3))
    await owner.commit(answer(step=3, text="so far"), call(call_id="3.0"))
    [sub_agent, _] = ids(forked.task_id, 2, "3.0")
    await owner.commit(transition=wait("3.0"))
    before = (await scopes_of(replica, given["queue"]))[sub_agent]
    for task_id in ids(forked.task_id, 2, "3.0"):
        await finish(replica, task_id)
    await in_state(replica, forked.task_id, task_pb2.TASK_STATE_QUEUED)
    await (await replica.claim(forked.task_id)).end(state=task_pb2.TASK_STATE_FAILED)
    await as_operator(replica, task_id=forked.task_id)
    again = await fork(replica, sub_agent, request_id="f-2", message="And a third?")
    assert (await scopes_of(replica, given["queue"]))[again.task_id] == before
    assert (before.tree, before.source) == (root, "SCHEDULER/schedule-1/2026-11-29")


async def test_sub_agents_have_the_tree_and_the_run_of_their_root(replica: Checkpoint) -> None:
    given = spec(NIGHT)
    owner, _ = await spawner(replica, **given)
    offered = await scopes_of(replica, given["queue"])
    assert set(offered) == set(ids(owner.task.task_id, 2))
    run = "SCHEDULER/schedule-1/2026-11-29"
    assert {(one.tree, one.source) for one in offered.values()} == {(owner.task.task_id, run)}


async def test_a_task_without_a_source_is_its_own_tree(replica: Checkpoint) -> None:
    given = spec()
    task = await replica.create(**given)
    assert await scopes_of(replica, given["queue"]) == {task.task_id: token_pb2.TaskScopes(tree=task.task_id)}
