"""A worker that continues a task of a restored ledger, beside a tool service that knows the calls of the lost time."""

from __future__ import annotations

import psycopg

from tenure.domain import entries as facts
from tenure.domain.tools import OutcomeStatus
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench

RECORD = """insert into tools.calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state,
                                     call_attempt, epoch, claim_id)
            values (%s, '1.0', 'append_record', 'KEYED', sha256('other'), 'other', 'NOT_RUN', 1, 1, 'lost')"""


async def test_another_call_in_its_place_is_not_run(bench: WorkerBench) -> None:
    """The model is told, and the task goes on. Before, each worker that took it ended its work with an error."""
    task_id = await bench.submit("sim-worker-effects")
    async with await psycopg.AsyncConnection.connect(bench.stack.postgres_dsn, autocommit=True) as postgres:
        await postgres.execute("insert into tools.fences (task_id, tenant) values (%s, 'default')", (task_id,))
        await postgres.execute(RECORD, (task_id,))
    await bench.start_worker()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    first, *others = (body.outcome for body in await bench.bodies(task_id, facts.ToolOutcome))
    assert first.status is OutcomeStatus.NOT_RUN
    assert "restored to an earlier time" in first.content
    assert {outcome.status for outcome in others} == {OutcomeStatus.SUCCEEDED}
