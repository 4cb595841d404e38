"""Interrupting messages in the ledger: its owner learns of one, it counts once, and live sub-agents get it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.domain.errors import AlreadyExists
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tests.conformance.test_ledger_sub_agents import call, finish, ids, waiting
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, reserve
from tests.support.patience import PATIENCE_SECONDS


@asynccontextmanager
async def queue_watch(replica: Checkpoint) -> AsyncIterator[Any]:
    """The notifications of a replica after the first one, which says that earlier ones may have been lost."""
    watch = replica.stub.WatchQueue(pb.WatchQueueRequest(), timeout=PATIENCE_SECONDS)
    first = await watch.read()
    assert (first.interrupts_lost, list(first.interrupt_task_ids)) == (True, [])
    yield watch
    watch.cancel()


async def interrupted(watch: Any) -> list[str]:
    """The next running tasks that the watch says have an interrupting message."""
    while True:
        hint = await watch.read()
        assert not hint.interrupts_lost
        if hint.interrupt_task_ids:
            return list(hint.interrupt_task_ids)


async def messages(replica: Checkpoint, task_id: str) -> list[ledger_pb2.UserMessage]:
    entries = await replica.entries(task_id)
    return [one.body.user_message for one in entries if one.body.HasField("user_message")]


async def all_are_passed_on(replica: Checkpoint) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await replica.query("select 1 from ledger.passed_messages limit 1"):
            await asyncio.sleep(0.02)


async def test_an_interrupting_message_is_announced(replica: Checkpoint) -> None:
    """That of a running task, once; a message that interrupts nothing is not."""
    waits = (await replica.create()).task_id
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    task_id = owner.task.task_id
    async with queue_watch(replica) as watch:
        await replica.say(waits, "not held by a worker", interrupt=True)
        await replica.say(task_id, "read me later")
        await replica.say(task_id, "no, the other one", "m-1", interrupt=True)
        assert await interrupted(watch) == [task_id]
        await replica.say(task_id, "no, the other one", "m-1", interrupt=True)
        last = await replica.claim((await replica.create()).task_id)
        await replica.say(last.task.task_id, "stop", interrupt=True)
        assert await interrupted(watch) == [last.task.task_id]
    assert [(each.text, each.interrupt) for each in await messages(replica, task_id)] == [
        ("read me later", False),
        ("no, the other one", True),
    ]
    with pytest.raises(AlreadyExists):
        await replica.say(task_id, "no, the other one", "m-1")


async def test_another_replica_announces_the_message(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    async with queue_watch(other_replica) as watch:
        await replica.say(owner.task.task_id, "stop", interrupt=True)
        assert await interrupted(watch) == [owner.task.task_id]


async def test_live_sub_agents_get_the_message_once(replica: Checkpoint) -> None:
    """The text of it, at each level of the tree; a running one is interrupted. One that has ended gets nothing."""
    parent = await waiting(replica, call(goals="abc"))
    first, second, ended = ids(parent.task_id, 3)
    await finish(replica, ended)
    owner = await replica.claim(first)
    await owner.commit(reserve=reserve())
    inner = await replica.claim(second)
    await inner.commit(reserve=reserve())
    await inner.commit(answer(text="so far"), call(goals="d"))
    (grandchild,) = ids(second, 1)
    async with queue_watch(replica) as watch:
        for _ in range(2):
            said = await replica.say(parent.task_id, "only in euros", "m-1", interrupt=True)
        told = set[str]()
        while told != {first, second}:
            told |= set(await interrupted(watch))
    await all_are_passed_on(replica)
    for task_id, by in ((first, parent.task_id), (second, parent.task_id), (grandchild, second)):
        (message,) = await messages(replica, task_id)
        assert (message.text, message.interrupt) == ("only in euros", True)
        assert message.request_id.startswith(f"{by}/")
    assert await messages(replica, ended) == []
    assert (await replica.entries(first))[-1].actor == "alice"
    assert said.sequence == (await replica.get(parent.task_id)).sequence


async def test_a_plain_message_stays_with_its_task(replica: Checkpoint) -> None:
    parent = await waiting(replica)
    await replica.say(parent.task_id, "when they are back")
    await replica.say(parent.task_id, "now", interrupt=True)
    await all_are_passed_on(replica)
    for task_id in ids(parent.task_id, 2):
        assert [each.text for each in await messages(replica, task_id)] == ["now"]


async def test_sub_agents_get_the_message_by_pages(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.checkpoint.waits.passed_messages.SUB_AGENTS_AT_ONCE", 2)
    parent = await waiting(replica, call(goals="abcde"))
    await replica.say(parent.task_id, "stop", interrupt=True)
    await all_are_passed_on(replica)
    for task_id in ids(parent.task_id, 5):
        assert [each.text for each in await messages(replica, task_id)] == ["stop"]
