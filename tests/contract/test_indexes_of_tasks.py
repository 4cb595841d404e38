"""Each index of `tasks` serves a statement. A step writes none of them, but its statement opens and locks every one."""

from __future__ import annotations

from typing import Final

import psycopg
import pytest

from services.checkpoint.agents.rows import AGENTS
from services.checkpoint.queries import DOUBTS, LISTS, MIGRATIONS, QUERIES, QUEUE, RETENTION, SOURCE_LINES, SUB_AGENTS
from services.checkpoint.tenants.rows import TENANTS
from tenure.runtime.store.pipelined_transaction import _parsed
from tests.support.fix_postgres import FreshDatabase

pytestmark = pytest.mark.server

SERVED: Final = {
    "tasks_agent": LISTS.list_agent,
    "tasks_due_retries": QUERIES.due_retries,
    "tasks_due_starts": QUERIES.due_starts,
    "tasks_ended": RETENTION.due_by_age,
    "tasks_endings": QUERIES.offer_endings,
    "tasks_forks": LISTS.list_forks,
    "tasks_held": TENANTS.running,
    "tasks_in_doubt": DOUBTS.see_doubt_waits,
    "tasks_in_doubt_of_tenants": DOUBTS.list_doubts,
    "tasks_in_line": SOURCE_LINES.look,
    "tasks_labels": LISTS.list_tasks,
    "tasks_living_sub_agents": SUB_AGENTS.parent,
    "tasks_newest": LISTS.list_tasks,
    "tasks_of_revisions": AGENTS.open_tasks,
    "tasks_offered": QUEUE.waiting,
    "tasks_one_per_source": QUERIES.find_exclusive,
    "tasks_pkey": QUERIES.lock,
    "tasks_queue": QUEUE.take,
    "tasks_queued_too_long": QUERIES.due_queued,
    "tasks_root": RETENTION.living_families,
    "tasks_running": QUERIES.list_running,
    "tasks_running_deadlines": QUERIES.due_deadlines,
    "tasks_source": LISTS.list_source,
    "tasks_source_kind": LISTS.list_source_kind,
    "tasks_source_run": QUERIES.find_source_run,
    "tasks_states": LISTS.list_states,
    "tasks_sub_agents": SUB_AGENTS.note_spawned,
    "tasks_tenant_request_id_key": QUERIES.find_request,
    "tasks_wait_correlations": QUERIES.waiting_for,
    "tasks_wait_deadlines": QUERIES.due_waits,
    "tasks_wait_steps": QUERIES.due_escalations,
    "tasks_waits": LISTS.list_waits,
    "tasks_wanting_budget": SUB_AGENTS.wanting_budget,
}
"""The statement for which each index exists. An index that no statement needs has no place here, nor in the schema."""


async def test_each_index_of_tasks_serves_its_statement(fresh_database: FreshDatabase) -> None:
    """Alone, because the planner chooses by the number of rows where several would do."""
    async with await psycopg.AsyncConnection.connect(await fresh_database(MIGRATIONS)) as postgres:
        await postgres.execute("set search_path to ledger; set enable_seqscan = off")
        found = await (
            await postgres.execute(
                "select indexrelid::regclass::text from pg_index where indrelid = 'tasks'::regclass order by 1"
            )
        ).fetchall()
        assert [name for (name,) in found] == sorted(SERVED)
        for index, statement in SERVED.items():
            await postgres.execute(
                "update pg_index set indisvalid = (indexrelid = %s::regclass) where indrelid = 'tasks'::regclass",
                (index,),
            )
            plan = postgres.pgconn.exec_(b"explain (generic_plan, costs off) " + _parsed(statement)[0])
            lines = [str(plan.get_value(row, 0)) for row in range(plan.ntuples)]
            assert any(index in line for line in lines), (index, lines, plan.error_message)
        await postgres.rollback()
