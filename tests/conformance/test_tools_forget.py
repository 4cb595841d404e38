"""What the tools have of a pruned task goes, for good; its tokens are refused for ever after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_service_pb2
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.tool_rules import ALLOW, rule, set_rule

SLOW_PROGRAM = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


async def forget(tools: Any, owner: Any) -> None:
    await tools.stub.Forget(tool_service_pb2.ForgetRequest(token=owner.token), timeout=CALL_SECONDS)


async def forgets(tools: Any, owner: Any) -> bool:
    """Whether it was forgotten, as far as its caller knows."""
    try:
        await forget(tools, owner)
    except Unavailable:
        return False
    return True


async def gone(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while path.exists():
            await asyncio.sleep(0.02)


async def test_forget_deletes_records_and_files_and_keeps_the_fence(
    tools: ToolClient, grants: Grants, outside: Outside, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    first = grants.claim(epoch=10)
    owner = grants.claim(first.task_id, epoch=11)
    await tools.outcome(owner, "1.0", "write_file", path="notes/a.txt", content="x")
    await tools.outcome(owner, "1.1", "append_record", file="a", line="x")
    with pytest.raises(StaleEpoch):
        await tools.outcome(first, "1.2", "list_files")
    kept = grants.claim(epoch=10)
    await tools.outcome(kept, "1.0", "write_file", path="b.txt", content="y")
    for _ in range(2):
        await forget(tools, owner)
    await gone(outside.workspace(owner))
    for zombie in (owner, first, grants.claim(owner.task_id, epoch=11)):
        for call_id in ("1.1", "2.0"):
            with pytest.raises(StaleEpoch):
                await tools.outcome(zombie, call_id, "append_record", file="a", line="zombie")
    assert len(outside.lines("a")) == 1
    left = await tools_database(
        "select (select count(*) from calls where task_id = %s), (select count(*) from refusals where task_id = %s)",
        owner.task_id,
        owner.task_id,
    )
    assert left == [(0, 0)]
    assert (await tools.outcome(kept, "1.1", "read_file", path="b.txt")).content == "y"


async def test_a_bound_keeps_its_count_when_a_task_is_forgotten(
    tools: ToolClient, grants: Grants, outside: Outside, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    """A task that an older ledger brings back makes its calls again, and they are counted again."""
    await set_rule(tools, rule("some", ALLOW, count=3))
    owner = grants.claim(epoch=10)
    for call_id in ("1.0", "1.1"):
        await tools.outcome(owner, call_id, "append_record", file="a", line="x")
    never_ran = "update counted_calls set returned = true where task_id = %s and call_id = '1.1'"
    await tools_database(never_ran, owner.task_id)
    await forget(tools, owner)
    assert await tools_database("select * from counted_calls where task_id = %s", owner.task_id) == []
    counted = "select calls::int from rule_counters where tenant = (select tenant from fences where task_id = %s)"
    assert await tools_database(counted, owner.task_id) == [(1,)]
    again = grants.claim(owner.task_id, epoch=11)
    for call_id, status in (("1.0", "SUCCEEDED"), ("1.1", "SUCCEEDED"), ("1.2", "NOT_ALLOWED")):
        assert (await tools.outcome(again, call_id, "append_record", file="a", line="x")).status == status
    assert await tools_database(counted, owner.task_id) == [(3,)]


async def test_a_task_that_never_called_a_tool_is_fenced_as_well(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    owner = grants.claim(epoch=10)
    await forget(tools, owner)
    with pytest.raises(StaleEpoch):
        await tools.outcome(owner, "1.0", "write_file", path="a.txt", content="x")
    assert not outside.workspace(owner).exists()


async def test_running_calls_stop_first_and_a_stale_claim_forgets_none(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    owner = grants.claim(epoch=10)
    running = tools.begin(owner, "1.0", "execute_python", code=SLOW_PROGRAM)
    await tools.started(owner)
    with pytest.raises(StaleEpoch):
        await forget(tools, grants.claim(owner.task_id, epoch=9))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await forgets(tools, owner):  # not before the program is stopped and its outcome written
            await asyncio.sleep(0.1)
    assert (await running).status is not OutcomeStatus.SUCCEEDED
    await gone(outside.workspace(owner))


@pytest.mark.faults
async def test_crash_during_forget_leaves_no_files_or_records(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
) -> None:
    other = await tool_service()
    for point in ("before_forget", "after_forget", "before_removal"):
        owner = grants.claim(epoch=10)
        doomed = await tool_service(failpoints=f"tools.{point}=1#kill9")
        await other.outcome(owner, "1.0", "write_file", path="a.txt", content="x")
        was_told = await forgets(doomed, owner)
        await doomed.ended()
        if was_told:
            await tool_service()  # a replica looks through the directories when it starts
        else:
            await forget(other, owner)  # a caller without an answer asks again
        await gone(outside.workspace(owner))
        assert await tools_database("select 1 from calls where task_id = %s", owner.task_id) == []


async def test_a_task_restored_with_its_ledger_keeps_its_files(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools = await tool_service(workspace_sweep_interval_seconds=0.1)
    owner = grants.claim(epoch=10)
    await forget(tools, owner)
    back = grants.claim(owner.task_id, epoch=12)
    await tools.outcome(back, "5.0", "write_file", path="a.txt", content="x")
    other = grants.claim(epoch=10)
    await tools.outcome(other, "1.0", "write_file", path="a.txt", content="x")
    await forget(tools, other)
    await gone(outside.workspace(other))  # so the directories were looked through, or will be in a moment
    assert (await tools.outcome(back, "5.1", "read_file", path="a.txt")).content == "x"


@pytest.mark.faults
async def test_removal_of_many_files_delays_no_call(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner, other = grants.claim(epoch=10), grants.claim(epoch=10)
    await tools.outcome(owner, "1.0", "write_file", path="a.txt", content="x")
    await asyncio.to_thread(fill, outside.workspace(owner), 20_000)
    lists = (tools.outcome(other, f"1.{number}", "list_files") for number in range(5))
    _, *answers = await asyncio.gather(forget(tools, owner), *lists)
    assert {answer and answer.status for answer in answers} == {OutcomeStatus.SUCCEEDED}
    await gone(outside.workspace(owner))


def fill(workspace: Path, count: int) -> None:
    for number in range(count):
        if number % 1000 == 0:
            (folder := workspace / f"{number}").mkdir()
        (folder / f"{number}.txt").touch()
