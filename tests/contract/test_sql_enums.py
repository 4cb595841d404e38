"""What the database allows is what the domain allows: the two say it in their own words, and this compares them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import psycopg
import pytest

from services.checkpoint.entries import KINDS
from services.checkpoint.queries import MIGRATIONS, QUERIES
from services.checkpoint.rows import BudgetRow, TaskRow
from tenure.domain.quotas import SPANS, QuotaKind
from tenure.domain.schedules import OverlapPolicy, RunOutcome
from tenure.domain.states import MOVES, TERMINAL, Reason, TaskState
from tenure.domain.task import LeaseLostPolicy, Priority
from tenure.domain.webhooks import DeliveryState, GapReason, WebhookKind
from tenure.v1 import ledger_pb2
from tests.support.fix_postgres import FreshDatabase

pytestmark = pytest.mark.server


@pytest.fixture
async def ledger(fresh_database: FreshDatabase) -> AsyncIterator[Any]:
    """A connection to an empty ledger."""
    async with await psycopg.AsyncConnection.connect(await fresh_database(MIGRATIONS), autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        yield postgres


async def rows(postgres: Any, statement: Any, *parameters: Any) -> Any:
    return await (await postgres.execute(statement, parameters)).fetchall()


async def allowed_by(postgres: Any, constraint: Any) -> Any:
    ((text,),) = await rows(
        postgres, "select pg_get_constraintdef(oid) from pg_constraint where conname = %s", constraint
    )
    return set(re.findall(r"'([A-Z_]*)'", text))


async def rule_of_tasks(postgres: Any, rule: str) -> str:
    ((source,),) = await rows(postgres, "select prosrc from pg_proc where proname = 'refuse_invalid_task'")
    before, found, _ = source.partition(f" then '{rule}'")
    assert found, f"there is no rule {rule}"
    return str(before.rpartition(" when ")[2])


async def named_by(postgres: Any, rule: str) -> set[str]:
    return set(re.findall(r"'([A-Z_]*)'", await rule_of_tasks(postgres, rule)))


async def test_the_states_are_the_domains(ledger: Any) -> None:
    assert await named_by(ledger, "tasks_state") == {state.value for state in TaskState}
    assert await named_by(ledger, "ended_iff_terminal") == {state.value for state in TERMINAL}


async def test_the_moves_are_the_domains(ledger: Any) -> None:
    names = set(await rows(ledger, "select from_state, to_state from moves"))
    assert names == {(state.value, target.value) for state, targets in MOVES.items() for target in targets}


async def test_the_policies_and_priorities_are_the_domains(ledger: Any) -> None:
    assert await named_by(ledger, "tasks_on_lease_lost") == {policy.value for policy in LeaseLostPolicy}
    text = await rule_of_tasks(ledger, "tasks_priority")
    assert [int(number) for number in re.findall(r"\d+", text)] == [min(Priority), max(Priority)]


async def test_overlap_policies_and_outcomes_match_the_domain(ledger: Any) -> None:
    assert await allowed_by(ledger, "schedules_overlap") == set(OverlapPolicy)
    assert await allowed_by(ledger, "schedule_runs_outcome") == set(RunOutcome)


async def test_delivery_states_and_gap_reasons_match_the_domain(ledger: Any) -> None:
    assert await allowed_by(ledger, "webhook_deliveries_state") == set(DeliveryState)
    assert await allowed_by(ledger, "webhook_gaps_reason") == set(GapReason)
    assert await allowed_by(ledger, "webhooks_kind") == set(WebhookKind)


async def test_kinds_of_quotas_and_holds_match_the_domain(ledger: Any) -> None:
    assert await allowed_by(ledger, "tenants_own") == set(QuotaKind)
    assert await allowed_by(ledger, "tenant_warnings_quota") == set(QuotaKind)
    assert await allowed_by(ledger, "tenant_windows_quota") == set(SPANS)
    assert await allowed_by(ledger, "webhook_deliveries_hold_reason") == {"", Reason.TENANT_QUOTA}


async def test_each_end_can_be_requested(ledger: Any) -> None:
    assert await named_by(ledger, "tasks_ending_state") - {""} == {state.value for state in TERMINAL}


async def test_the_database_refuses_a_move_that_is_not_in_the_table(ledger: Any) -> None:
    await insert_task(ledger)
    with pytest.raises(psycopg.errors.CheckViolation):
        await ledger.execute("update tasks set state = 'SUCCEEDED', ended_at = now()")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'RUNNING'",
        "holds = true",
        "state = 'RUNNING', holds = true, epoch = 1, claim_id = 'c'",
        "sequence = -1",
        "deaths = -1",
        "ended_at = now()",
        "next_retry_at = now()",
        "model_open = true",
        "ending_state = 'CANCELLED'",
        "owner = 'w'",
    ],
)
async def test_the_database_refuses_rows_that_must_never_be(ledger: Any, change: str) -> None:
    await insert_task(ledger)
    with pytest.raises(psycopg.errors.CheckViolation):
        await ledger.execute(f"update tasks set {change}".encode())


async def test_entries_are_never_changed(ledger: Any) -> None:
    await insert_task(ledger)
    await ledger.execute(b"insert into entries select task_id, 1, tenant, 0, '', 1, 0, 1, 'x', now(), '' from tasks")
    for statement in ("update entries set step = 2", "delete from entries"):
        with pytest.raises(psycopg.errors.CheckViolation):
            await ledger.execute(statement.encode())


async def insert_task(postgres: Any) -> None:
    await postgres.execute(
        "insert into tasks (task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels, "
        "max_steps, on_lease_lost, deadline_at) values "
        "(gen_random_uuid(), 't', 'r', '', gen_random_uuid(), 'q', 2, 'm', '{}', 1, 'RESUME', now())"
    )


async def test_every_partition_keeps_bodies_as_they_are(ledger: Any) -> None:
    """The default would compress each body, which was measured to take most of a commit's time."""
    result = await rows(
        ledger,
        "select c.relname, a.attstorage::text from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "join pg_inherits i on i.inhrelid = c.oid where a.attname = 'body' and i.inhparent = 'entries'::regclass",
    )
    assert len(result) == 16
    assert {storage for _, storage in result} == {"e"}


def _columns_set_by(statement: bytes) -> set[str]:
    """Returns the columns of `tasks` that a statement of steps sets."""
    return set(re.findall(r"(\w+) = ", statement.decode().partition("from (select")[0].partition("set ")[2]))


def test_commit_without_calls_sets_ten_columns() -> None:
    changed = _columns_set_by(QUERIES.advance)
    assert len(changed) == 10
    assert changed < _columns_set_by(QUERIES.write)


async def test_no_index_covers_a_column_that_a_step_changes(ledger: Any) -> None:
    """Otherwise each step would write to every index of its row."""
    changed = _columns_set_by(QUERIES.write)
    assert {"sequence", "step", "updated_at", "model_open"} <= changed
    definitions = await rows(ledger, "select indexdef from pg_indexes where tablename = 'tasks'")
    covered = {word for (definition,) in definitions for word in re.findall(r"\w+", definition.partition("(")[2])}
    assert changed & covered == set()


async def test_lock_reads_the_columns_in_order(ledger: Any) -> None:
    cursor = await ledger.execute(QUERIES.lock, {"task_ids": []})
    names = [column.name for column in cursor.description]
    task, budget = ([field.name for field in fields(row) if field.init] for row in (TaskRow, BudgetRow))
    assert names == task + budget[: len(names) - len(task)]
    in_memory = ["changed", "raised", "beyond_tokens", "beyond_nano_usd", "is_first_unpriced"]
    assert budget[len(names) - len(task) :] == ["root_task_id", *in_memory]


def test_kinds_are_the_field_numbers_of_the_contract() -> None:
    assert {name: number for name, number in KINDS.items() if number < 3} == {"submitted": 1, "transition": 2}
    assert len(set(KINDS.values())) == len(ledger_pb2.EntryBody.DESCRIPTOR.fields)
