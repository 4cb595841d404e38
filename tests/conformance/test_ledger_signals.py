"""Events from outside: taken by one wait, once, whether they come before it, after it or at the same moment."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from services.checkpoint.queue import sweeps
from services.checkpoint.waits import signals
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached
from tenure.domain.tool_arguments import MAX_JSON_DEPTH
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, entry, kinds

QUEUED = task_pb2.TASK_STATE_QUEUED
WAITING_EXTERNAL = task_pb2.TASK_STATE_WAITING_EXTERNAL


async def begun(replica: Any, correlation_id: Any) -> Any:
    """An owner that is about to wait."""
    owner = await replica.claim((await replica.create()).task_id)
    intent = ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="wait_external", arguments_json="{}")
    await owner.commit(entry(1, tool_intent=intent))
    wait = task_pb2.Wait(kind=task_pb2.WAIT_KIND_EVENT, call_id="1.0", correlation_id=correlation_id)
    return owner, pb.Transition(to_state=WAITING_EXTERNAL, reason="EVENT_AWAITED", wait=wait)


async def waiting(replica: Any, correlation_id: Any) -> Any:
    owner, move = await begun(replica, correlation_id)
    assert (await owner.commit(transition=move)).state == WAITING_EXTERNAL
    return owner.task.task_id


async def send(replica: Any, correlation_id: Any, payload: str = "{}", request_id: str = "") -> Any:
    request = pb.SendSignalRequest(
        correlation_id=correlation_id, request_id=request_id or str(uuid4()), actor="carol", payload_json=payload
    )
    return await replica.stub.SendSignal(request, timeout=TIMEOUT_SECONDS)


async def payload_of(replica: Any, task_id: Any) -> Any:
    """What the task's call came to; one outcome at most."""
    seen = [one.body.tool_outcome for one in await replica.entries(task_id) if one.body.HasField("tool_outcome")]
    assert len(seen) <= 1
    return json.loads(seen[0].outcome.content)["payload"] if seen else None


async def test_an_event_wakes_the_task_that_waits_for_it(replica: Checkpoint) -> None:
    task_id = await waiting(replica, "order-1")
    sent = await send(replica, "order-1", '{"paid": 12345678901234567890}')
    assert (sent.task.task_id, sent.task.state) == (task_id, QUEUED)
    assert await payload_of(replica, task_id) == {"paid": 12345678901234567890}
    entries = await replica.entries(task_id)
    assert kinds(entries)[-3:] == ["wait_resolution", "tool_outcome", "WAITING_EXTERNAL>QUEUED"]
    assert entries[-3].actor == "carol"


async def test_an_early_event_is_delivered_with_the_waits_begin(
    replica: Checkpoint,
) -> None:
    assert not (await send(replica, "order-2", '"early"')).HasField("task")
    owner, move = await begun(replica, "order-2")
    request = owner.request(transition=move)
    assert (await owner.send(request)).state == QUEUED
    assert (await owner.send(request)).state == QUEUED  # a repeat is answered as the first time
    assert await payload_of(replica, owner.task.task_id) == "early"
    assert kinds(await replica.entries(owner.task.task_id))[-4:] == [
        "RUNNING>WAITING_EXTERNAL",
        "wait_resolution",
        "tool_outcome",
        "WAITING_EXTERNAL>QUEUED",
    ]


async def test_each_accepted_payload_can_be_delivered(replica: Checkpoint) -> None:
    """How deep the parser gets depends on its caller: what a signal accepts, the wait's transaction must parse too."""
    accepted = []
    payloads = {str(depth): "[" * depth + "]" * depth for depth in range(MAX_JSON_DEPTH - 1, 1000, 10)}
    for name, payload in {**payloads, "half a pair": '["\\ud83d"]', "NaN": "NaN", "1e400": "1e400"}.items():
        with suppress(InvalidRequest):
            await send(replica, name, payload)
            accepted.append(name)
    for name in accepted:
        owner, move = await begun(replica, name)
        assert (await owner.commit(transition=move)).state == QUEUED
    assert accepted == [str(MAX_JSON_DEPTH - 1)]


async def test_an_event_and_its_wait_meet_even_when_both_come_at_once(
    replica: Checkpoint, other_replica: Checkpoint
) -> None:
    for number in range(12):
        owner, move = await begun(replica, f"race-{number}")
        sends = [send(side, f"race-{number}", '"x"', "one-event") for side in (replica, other_replica)]
        await asyncio.gather(owner.commit(transition=move), *sends)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await replica.get(owner.task.task_id)).state != QUEUED:
                await asyncio.sleep(0.02)
        assert await payload_of(replica, owner.task.task_id) == "x"


async def test_each_event_ends_one_wait_oldest_first(replica: Checkpoint) -> None:
    for payload in ("1", "2"):
        await send(replica, "many", payload)
    first, move = await begun(replica, "many")
    await first.commit(transition=move)
    tasks = [await waiting(replica, "other") for _ in range(3)]
    assert await payload_of(replica, first.task.task_id) == 1
    await asyncio.gather(*(send(replica, "other", str(number)) for number in range(3)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while any([(await replica.get(task_id)).state != QUEUED for task_id in tasks]):
            await asyncio.sleep(0.02)
    assert sorted([await payload_of(replica, task_id) for task_id in tasks]) == [0, 1, 2]


async def test_a_repeated_event_is_one_event_with_one_payload(replica: Checkpoint) -> None:
    task_id = await waiting(replica, "once")
    answers = await asyncio.gather(*(send(replica, "once", "1", "r-1") for _ in range(5)))
    assert {one.task.task_id for one in answers} == {task_id}
    with pytest.raises(AlreadyExists):
        await send(replica, "once", "2", "r-1")
    again, move = await begun(replica, "once")
    assert (await again.commit(transition=move)).state == WAITING_EXTERNAL


async def test_an_event_for_another_tenant_is_not_ours(replica: Checkpoint) -> None:
    task_id = await waiting(replica, "shared-name")
    await replica.query(
        "insert into ledger.signals (tenant, correlation_id, request_id, hash, actor, payload) "
        "values ('other', 'shared-name', 'r', '', 'x', '1')"
    )
    await asyncio.sleep(0.3)  # several sweeps: nothing is to happen
    assert (await replica.get(task_id)).state == WAITING_EXTERNAL


async def test_kept_events_are_bounded_and_forgotten(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    monkeypatch.setattr(signals, "MAX_KEPT", 3)
    monkeypatch.setattr(sweeps, "FORGET_INTERVAL_SECONDS", 0.1)
    for _ in range(3):
        await send(replica, "full")
    with pytest.raises(LimitReached) as refused:
        await send(replica, "full")
    assert refused.value.reason == "SIGNALS_FULL"
    await replica.query("update ledger.signals set received_at = now() - interval '8 days'")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await replica.query("select request_id from ledger.signals where tenant = %s", replica.tenant):
            await asyncio.sleep(0.05)
    assert not (await send(replica, "full")).HasField("task")
    await asyncio.sleep(0.3)  # it looks several times meanwhile: what is new stays
    assert len(await replica.query("select request_id from ledger.signals where tenant = %s", replica.tenant)) == 1


async def test_kept_events_of_a_tenant_are_bounded(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MAX_KEPT_OF_TENANT", 3)
    for number in range(3):
        await send(replica, f"of-tenant-{number}")
    with pytest.raises(LimitReached, match="or 3 for this tenant") as refused:
        await send(replica, "of-tenant-3")
    assert refused.value.reason == "SIGNALS_FULL"
    async with replica.of_tenant(f"{replica.tenant}-neighbour") as theirs:
        await send(theirs, "of-tenant-3")
    taken, move = await begun(replica, "of-tenant-1")
    await taken.commit(transition=move)
    await send(replica, "of-tenant-3")


async def test_event_that_a_long_transaction_hid_ends_its_wait(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So long that the looks for new events are over: the wait and the event were both there before the replica."""
    monkeypatch.setattr(sweeps, "FORGET_INTERVAL_SECONDS", 0.1)
    replica = await checkpoint()
    task_id = await waiting(replica, "hidden")
    await replica.query(
        "insert into ledger.signals (tenant, correlation_id, request_id, hash, actor, payload, received_at) "
        "values ('default', 'hidden', 'r', '', 'x', '1', now() - interval '1 minute')"
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await replica.get(task_id)).state != QUEUED:
            await asyncio.sleep(0.05)


async def test_all_old_events_are_forgotten_at_once(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: with one batch in each interval, more could arrive than are deleted."""
    monkeypatch.setattr(signals, "FORGOTTEN_AT_ONCE", 10)
    monkeypatch.setattr(sweeps, "FORGET_INTERVAL_SECONDS", 3600.0)
    first = await checkpoint()
    await first.query(
        "insert into ledger.signals (tenant, correlation_id, request_id, hash, actor, payload, received_at) "
        "select 'default', 'old', n::text, '', 'x', '1', now() - interval '8 days' from generate_series(1, 25) n"
    )
    await checkpoint(dsn=first.dsn)  # its duty looks once when it starts
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await first.query("select request_id from ledger.signals"):
            await asyncio.sleep(0.05)


async def test_a_cancelled_event_wait_leaves_later_events(
    replica: Checkpoint,
) -> None:
    task_id = await waiting(replica, "gone")
    assert (await replica.cancel(task_id)).state == task_pb2.TASK_STATE_CANCELLED
    assert not (await send(replica, "gone")).HasField("task")
