"""The ledger can be distributed by the root of a task's tree: the scripts of deploy/postgres, on a plain Postgres."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.bulk_rows import generic_plan
from services.checkpoint.queries import MIGRATIONS, SCHEMA, SESSION_SETTINGS
from tenure.runtime.postgres import BoundedConnection, PoolOptions, configure_session
from tenure.runtime.sql import Queries
from tests.support.fix_postgres import FreshDatabase

ROOT = Path(__file__).parents[2]
SHAPE = (ROOT / "deploy/postgres/root_keys.sql").read_text(encoding="utf-8")
CITUS = (ROOT / "deploy/postgres/citus.sql").read_text(encoding="utf-8")
DISTRIBUTED = set(re.findall(r"create_distributed_table\('(\w+)', 'root_task_id'", CITUS))
REFERENCE = set(re.findall(r"create_reference_table\('(\w+)'\)", CITUS))
LOCAL = {name for names in re.findall(r"^-- on the coordinator: (.+)$", CITUS, re.MULTILINE) for name in names.split()}
PARTITION = re.compile(r"(entries)_\d+")

UNIQUE_WITHOUT_ROOT = {
    "tasks_tenant_request_id_key": "a request id creates one task: the root is not known before the task",
    "tasks_one_per_source": "an exclusive source has one live task, of any root",
    "tasks_source_run": "a run of a source is one task, of any root",
}
"""Each would need a table of its own, in which the key is the identity."""


@pytest.fixture
async def ledger(fresh_database: FreshDatabase) -> AsyncIterator[Any]:
    """A new ledger with the keys that Citus needs."""
    async with await BoundedConnection.connect(await fresh_database(MIGRATIONS), autocommit=True) as postgres:
        await configure_session(postgres, PoolOptions(settings=SESSION_SETTINGS), SCHEMA)
        await postgres.execute(SHAPE.encode(), prepare=False)
        yield postgres


async def rows(ledger: Any, statement: str) -> Any:
    return await (await ledger.execute(statement)).fetchall()


def of_task(table: str) -> str:
    """The table of a partition."""
    return PARTITION.sub(r"\1", table)


async def test_every_table_is_distributed_or_listed(ledger: Any) -> None:
    tables = {name for (name,) in await rows(ledger, "select tablename from pg_tables where schemaname = 'ledger'")}
    assert tables - {f"entries_{number}" for number in range(16)} == DISTRIBUTED | REFERENCE | LOCAL
    assert len(DISTRIBUTED) + len(REFERENCE) + len(LOCAL) == len(DISTRIBUTED | REFERENCE | LOCAL)


async def test_rows_of_a_task_have_its_root(ledger: Any) -> None:
    found = await rows(
        ledger,
        "select attrelid::regclass::text from pg_attribute join pg_class c on c.oid = attrelid"
        " where relnamespace = 'ledger'::regnamespace and attname = 'root_task_id' and attnotnull"
        " and relkind in ('r', 'p')",
    )
    assert {of_task(table) for (table,) in found} == DISTRIBUTED


async def test_the_root_is_in_each_unique_key(ledger: Any) -> None:
    found = await rows(
        ledger,
        "select indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
        " join pg_class c on c.oid = indrelid where relnamespace = 'ledger'::regnamespace and indisunique",
    )
    without = {index for table, index, text in found if of_task(table) in DISTRIBUTED and "(root_task_id" not in text}
    assert without == set(UNIQUE_WITHOUT_ROOT)
    assert all(re.search(rf"drop (constraint|index) {name}\b", CITUS) for name in without)


async def test_foreign_keys_stay_on_their_node(ledger: Any) -> None:
    found = await rows(
        ledger,
        "select conrelid::regclass::text, confrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint"
        " where contype = 'f' and connamespace = 'ledger'::regnamespace",
    )
    assert found
    for table, other, text in found:
        if of_task(table) in DISTRIBUTED:
            assert other in REFERENCE or (of_task(other) in DISTRIBUTED and text.count("root_task_id") == 2)
        else:
            assert other in (REFERENCE if table in REFERENCE else REFERENCE | LOCAL)


async def test_triggers_look_up_rows_of_their_root_only(ledger: Any) -> None:
    """Citus lets a trigger read rows on its own node, so each lookup names the root."""
    found = await rows(
        ledger,
        "select distinct p.proname, p.prosrc from pg_trigger g join pg_proc p on p.oid = g.tgfoid"
        " join pg_class c on c.oid = g.tgrelid where c.relnamespace = 'ledger'::regnamespace and not g.tgisinternal"
        f" and c.relname in ({', '.join(repr(table) for table in sorted(DISTRIBUTED))})",
    )
    assert len(found) > 8
    table = "|".join(sorted(DISTRIBUTED))
    lookups = {
        (name, lookup)
        for name, text in found
        for lookup in re.findall(rf"from (?:{table})\b[^;]*?(?:;|\n *order|\blimit|\) then)", text)
    }
    assert {name for name, _ in lookups} >= {"refuse_unknown_move", "refuse_change", "refuse_invalid_entries"}
    assert {name for name, lookup in lookups if "root_task_id = " not in lookup} == set()


ROOT_IS_KNOWN = re.compile(r"\broot_task_id = |= (?:\w+\.)?root_task_id\b")
CONDITIONS = ("Index Cond", "Filter", "Recheck Cond", "Join Filter", "Hash Cond", "Merge Cond")


def _conditions(node: dict[str, Any]) -> list[str]:
    return [node[name] for name in CONDITIONS if name in node and " OR (root_task_id" not in node[name]]


async def reads_of_every_node(ledger: Any, statement: bytes) -> set[str]:
    """The distributed tables that a statement reads or writes without the root: on Citus it asks every node."""
    nodes = await generic_plan(ledger, statement)
    joined = "\n".join(text for node in nodes for text in _conditions(node))
    unkeyed = set()
    for node in nodes:
        table = of_task(node.get("Relation Name", ""))
        if table not in DISTRIBUTED:
            continue
        if node["Node Type"] == "ModifyTable":
            columns = re.search(rf"insert into {table}\b[^(]*\(([^)]*)\)", statement.decode())
            if node["Operation"] == "Insert" and not (columns and "root_task_id" in columns[1]):
                unkeyed.add(table)
        elif not any(map(ROOT_IS_KNOWN.search, _conditions(node))):
            alias = re.escape(node["Alias"])
            if not re.search(rf"\b{alias}\.root_task_id = |= {alias}\.root_task_id\b", joined):
                unkeyed.add(table)
    return unkeyed


def statements() -> dict[str, bytes]:
    files = sorted((ROOT / "services/checkpoint/sql").glob("*.sql"))
    loaded = [
        (file.stem, Queries.load("services.checkpoint", f"sql/{file.name}")) for file in files if file.stem != "rights"
    ]
    return {f"{stem}.{name}": getattr(queries, name) for stem, queries in loaded for name in queries}


ASK_EVERY_NODE = {
    "hot, and the request names the task only: the token or the request has to carry the root": """
        queries.foreign_entries queries.inspect_claims queries.lock queries.page_of_entries queries.page_of_kinds
        queries.places queries.register_grants queries.root_of queries.task_place queries.tasks_by_id
    """,
    "cold, and the caller knows the task only, or rows of before have no root": """
        approvals.present_wait forks.bodies_of forks.copy_entries forks.pieces_of outputs.open_output
        outputs.write_outputs queries.count_foreign queries.find_foreign queries.list_refusals queries.newest_answers
        queries.page_of_bills queries.record_refusals queries.steer queue.transitions_of_step retention.clear_entries
        retention.count_ancestors
        retention.find_pruned retention.lock_one retention.note_cleared retention.note_forgotten retention.prune
        sub_agents.parent sub_agents.tell_again sub_agents.to_stop sub_agents.wanting_budget traces.note_exported
        usage_reports.correct usage_reports.find_attempts usage_reports.find_bill usage_reports.keep_report
        usage_reports.settled_calls
    """,
    "by nature of all roots: the queue is in the order of tenants and ages": """
        queue.count_running queue.streams queue.take queue.waiting tenants.running
    """,
    "by nature of all roots: a sweep takes what is due": """
        doubts.see_doubt_waits queries.due_deadlines queries.due_escalations queries.due_queued queries.due_retries
        queries.due_signals queries.due_starts queries.due_waits queries.list_running queries.offer_endings
        queue.backlog queue.depth queue.due retention.lags retention.offer_prunings retention.to_clear
        sub_agents.take_news sub_agents.take_raised tenants.wake traces.due
    """,
    "by nature of all roots: an operator compares all of the ledger with other records after a restore": """
        restore.entries_of_kinds restore.known_by_prunings restore.page_of_attempts restore.page_of_tasks
    """,
    "by nature of all roots: a list, or sums, of a tenant": """
        agents.open_tasks doubts.list_doubts forks.list_forks outputs.list_output_kind outputs.list_output_uri
        queries.aging_held queries.aging_oldest queries.changes_after queries.list_source queries.list_source_kind
        queries.list_source_run queries.list_tasks queries.list_waits schedules.active_tasks schedules.runs
        tenants.usage webhooks.escalations
    """,
    "a name leads to the task, and its root is not known before": """
        queries.find_exclusive queries.find_request queries.find_rival queries.find_source_run queries.is_repeat
        queries.waiting_for sub_agents.taken
    """,
}
"""Statements that look on every node: docs/citus.md says what would change each kind, and why nobody does it."""


async def test_statements_name_the_root_or_are_listed(ledger: Any) -> None:
    """A new statement about a task names its root."""
    without = {name for name, one in statements().items() if await reads_of_every_node(ledger, one)}
    listed = [name for names in ASK_EVERY_NODE.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert without == set(listed)


async def test_the_writes_of_steps_go_to_the_node_of_their_root(ledger: Any) -> None:
    for name in ("write", "move", "warn", "escalate", "create_entries", "create_task", "create_budget"):
        assert await reads_of_every_node(ledger, statements()[f"queries.{name}"]) == set(), name
