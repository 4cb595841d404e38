"""`tenure admin verify` against a whole installation: clean as it is, and not once a hand was in its tables."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import psycopg
import pytest

from checker.collect import collect_tasks, read_effects
from checker.history import History
from checker.verify import examine
from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation
from tests.support.model_log import read_model_calls

pytestmark = pytest.mark.server


async def verify(install: Installation, *arguments: str) -> Done:
    return await tenure(*arguments, address=install.stack.gateway_address)


async def ended(install: Installation, model: str) -> str:
    """A task with effects, once it has succeeded."""
    task_id = await install.submit(model, uuid.uuid4().hex)
    assert (await install.ended(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED
    return task_id


async def cancelled(install: Installation) -> str:
    """A task that was cancelled while a tool ran."""
    task_id = await install.submit("sim-e2e-unsafe", uuid.uuid4().hex)
    await install.until(task_id, "tool_intent")
    await install.client.cancel(task_id, "enough")
    assert (await install.ended(task_id)).state == task_pb2.TASK_STATE_CANCELLED
    return task_id


async def recorded(install: Installation, *task_ids: str) -> History:
    """All that this machine tells of these tasks: the shared installation has those of other tests too."""
    layout = install.stack.layout
    effects = (effect for effect in read_effects(layout.records) if effect.task_id in task_ids)
    calls = (call for call in read_model_calls(layout.model_log) if call.task_id in task_ids)
    history = await collect_tasks(install.client, task_ids)
    return replace(history, effects=tuple(effects), model_calls=tuple(calls))


async def test_recorded_history_breaks_no_rule(installation: Installation) -> None:
    pure, unsafe, stopped = await asyncio.gather(
        ended(installation, "sim-e2e-pure"), ended(installation, "sim-parallel-tools"), cancelled(installation)
    )
    report = examine(await recorded(installation, pure, unsafe, stopped))
    assert report.violations == ()
    assert (report.tasks, report.unread) == (3, 0)
    assert report.calls >= 4
    done = await verify(installation, "admin", "verify", pure, unsafe, stopped)
    assert done.code == Exit.OK, done.out
    assert done.out.startswith("checked    3 tasks, ")
    assert "no violation" in done.out
    assert "I1 " not in done.out
    numbers = await verify(installation, "admin", "verify", pure, "--invariants")
    assert "missing    the history of etcd, which I1 " in numbers.out


@pytest.mark.faults
async def test_a_task_that_goes_on_meanwhile_breaks_no_rule(installation: Installation) -> None:
    """What is read of it at different times must be put together so that it fits."""
    task_id = await installation.submit("sim-e2e-paced", uuid.uuid4().hex)
    reads = 0
    while (await installation.client.get(task_id)).state != task_pb2.TASK_STATE_SUCCEEDED:
        assert examine(await collect_tasks(installation.client, [task_id])).violations == ()
        reads += 1
    assert reads > 1


@pytest.mark.faults
async def test_a_manual_change_of_tables_is_reported_with_its_rule(installation: Installation) -> None:
    """Of a task of this test that has ended: no other test of the shared installation sees it."""
    install = installation
    task_id, other = await asyncio.gather(ended(install, "sim-parallel-tools"), ended(install, "sim-hello"))
    async with await psycopg.AsyncConnection.connect(install.stack.postgres_dsn) as postgres:
        await postgres.execute("set session_replication_role = replica")  # else a trigger would not let it happen
        await postgres.execute(
            "update ledger.entries set epoch = epoch - 1 where task_id = %s and sequence = 6", [task_id]
        )
        await postgres.execute("update tools.calls set state = 'NOT_RUN', outcome = null where task_id = %s", [task_id])
    done = await verify(install, "--json", "admin", "verify", task_id, other)
    assert done.code == Exit.INVARIANT_VIOLATED
    *violations, summary = done.values
    assert {each["task_id"] for each in violations} == {task_id}
    assert {"I3", "I4", "I5", "I15"} <= {each["invariant"] for each in violations}
    [entry] = [each["message"] for each in violations if each["invariant"] == "I3"]
    assert entry.startswith("entry 6 (")
    assert (summary["tasks"], summary["violations"]) == (2, len(violations))
    assert {check["invariant"] for check in summary["checks"] if check["why_not"]} >= {"I1", "I29"}
    newest = await verify(install, "admin", "verify", "--since", "1h", "--limit", "2")
    assert f"I3   {task_id}  entry 6 (" in newest.out
    assert (await verify(install, "admin", "verify", other)).code == Exit.OK
