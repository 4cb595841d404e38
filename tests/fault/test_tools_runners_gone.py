"""When a runner is proven gone: by its own end, or by the death of its process. Never because it is silent."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from services.tools.calls.runs import RunningCalls, StopReason
from services.tools.runners.identity import own_identity, uptime_seconds
from services.tools.runners.liveness import Liveness, LivenessTimes, RunnerName
from services.tools.runners.proof import DeathProver, FormerLives
from services.tools.statements import SCHEMA
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import open_pool
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(own_identity() is None, reason="only Linux tells which process is which"),
    pytest.mark.faults,
]
UNSAFE = "append_record_unsafe"
LONG = {"file": "a", "line": "x", "delay_ms": 20_000}


@pytest.fixture
def lives(tools_database: Callable[..., Awaitable[list[Any]]]) -> Any:
    """The lives of one process, the oldest first: which are proven over."""

    async def read(replica: Any) -> Any:
        rows = await tools_database(
            "select ended_at is not null from runners where pid = %s order by runner_id", replica.process.pid
        )
        return [row[0] for row in rows]

    return read


async def becomes(read: Any, replica: Any, expected: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await read(replica) != expected:
            await asyncio.sleep(0.05)


async def test_a_killed_runner_is_proven_gone_and_a_frozen_never(
    tool_service: StartTools, grants: Grants, lives: Any
) -> None:
    killed, frozen, tools = await tool_service(), await tool_service(**SHORT_LIFE), await tool_service()
    frozen.freeze()
    owner = grants.claim()
    call = killed.begin(owner, "1.0", UNSAFE, **LONG)
    await killed.started(owner)
    await killed.kill()
    assert (await tools.outcome(owner, "1.0", UNSAFE, **LONG)).status is OutcomeStatus.IN_DOUBT
    # It died after the other one fell asleep, so that one was looked for too, in vain.
    await becomes(lives, killed, [True])
    assert await lives(frozen) == [False]
    assert await lives(tools) == [False]
    call.cancel()


async def test_a_process_that_slept_proves_its_former_life_over(
    tool_service: StartTools, grants: Grants, outside: Outside, lives: Any
) -> None:
    sleeper = await tool_service(**SHORT_LIFE)
    owner = grants.claim(epoch=10)
    call = sleeper.begin(owner, "1.0", UNSAFE, **LONG)
    await sleeper.started(owner)
    sleeper.freeze()
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, **LONG)).status is OutcomeStatus.IN_DOUBT
    assert await lives(sleeper) == [False]
    sleeper.thaw()
    await becomes(lives, sleeper, [True, False])
    assert outside.lines("a") == []
    call.cancel()


async def test_an_orderly_end_is_proof(tool_service: StartTools, grants: Grants, outside: Outside, lives: Any) -> None:
    stopping = await tool_service(drain_seconds=0.1)
    owner = grants.claim()
    call = stopping.begin(owner, "1.0", UNSAFE, **LONG)
    await stopping.started(owner)
    await stopping.terminate()
    assert await lives(stopping) == [True]
    outcome = await (await tool_service()).outcome(owner, "1.0", UNSAFE, **LONG)
    assert outcome.status is OutcomeStatus.IN_DOUBT
    assert outside.lines("a") == []
    call.cancel()


async def test_an_effect_that_does_not_stop_keeps_its_life_unproven(
    tools_dsn: str, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    runs, released = RunningCalls(), asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def ended() -> Any:
        return [row[0] for row in await tools_database("select ended_at is not null from runners order by runner_id")]

    times, identity = LivenessTimes(ttl_seconds=300.0), own_identity()
    async with (
        DedicatedConnection(tools_dsn, service="tools", schema=SCHEMA) as kept,
        open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool,
    ):
        former = FormerLives(runs.unfinished)
        liveness = Liveness(
            kept, RunnerName("here-1", identity), times, former, partial(runs.stop_all, StopReason.LAPSED)
        )
        async with liveness, asyncio.timeout(PATIENCE_SECONDS):
            effect = asyncio.create_task(stubborn())
            runs.hold(effect)
            await tools_database("update runners set renewed_at = renewed_at - interval '1 hour'")
            renewing = asyncio.create_task(liveness.renew())
            while len(await ended()) < 2:
                await asyncio.sleep(0.02)
            effect.cancel()
            await DeathProver(pool, former, identity).prove()
            assert await ended() == [False, False]
            released.set()
            await effect
            await DeathProver(pool, former, identity).prove()
            assert await ended() == [True, False]
            renewing.cancel()
    assert await ended() == [True, True]


async def test_a_rebooted_machine_proves_its_runners_gone(
    tool_service: StartTools, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    uptime = uptime_seconds()
    rows = {
        "gone": ("here", uptime + 3600),
        "a clone": ("here", uptime / 2),
        "elsewhere": ("there", uptime + 3600),
        "long ago": ("here", uptime + 30 * 86_400),
        "long ago and in doubt": ("here", uptime + 30 * 86_400),
    }
    for instance, (machine_id, age_seconds) in rows.items():
        await tools_database(
            "insert into runners (runner_id, instance, ttl_seconds, renewed_at, machine_id, boot_id, namespaces, pid) "
            "values (%s, %s, 5, now() - %s * interval '1 second', %s, 'an earlier one', 'pid:[1]', %s)",
            uuid.uuid4(), instance, age_seconds, machine_id, os.getpid(),
        )  # fmt: skip
    await tools_database("insert into fences (task_id, tenant) values (gen_random_uuid(), 'default')")
    await tools_database(
        "insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt,"
        " epoch, claim_id, runner_id, doubted_at)"
        " select task_id, '1.0', 'pay', 'UNSAFE', sha256(''), '{}', 'IN_DOUBT', 1, 1, '', runner_id, now()"
        " from fences, runners where instance = 'long ago and in doubt'"
    )
    tools = await tool_service(machine_id="here")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(tools.logged("runner is proven gone")) < 2:
            await asyncio.sleep(0.05)
    values = dict(await tools_database("select instance, ended_at is not null from runners where boot_id like 'an%%'"))
    kept = {"gone": True, "a clone": False, "elsewhere": False, "long ago and in doubt": True}
    if uptime + 3600 > 7 * 86_400:  # as long ago as what is forgotten
        kept = {"long ago and in doubt": True} | ({"a clone": False} if uptime / 2 < 7 * 86_400 else {})
    assert values == kept


async def test_an_unnamed_machine_is_not_taken_for_another(
    tool_service: StartTools, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    here = own_identity()
    assert here is not None
    assert here.machine_id == ""
    nobody = 2**22 + 1  # above all pids there can be
    rows = {"this one": ("here", here.boot_id), "not named": ("", here.boot_id), "a copy": ("there", here.boot_id)}
    for instance, (machine_id, boot_id) in rows.items():
        await tools_database(
            "insert into runners (runner_id, instance, ttl_seconds, renewed_at, machine_id, boot_id, namespaces, pid) "
            "values (%s, %s, 5, now() - interval '1 hour', %s, %s, %s, %s)",
            uuid.uuid4(), instance, machine_id, boot_id, here.namespaces, nobody,
        )  # fmt: skip
    tools = await tool_service(machine_id="here")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(tools.logged("runner is proven gone")) < 2:
            await asyncio.sleep(0.05)
    ended = await tools_database("select instance from runners where ended_at is not null order by 1")
    assert ended == [("not named",), ("this one",)]
