"""Each rule of a row refuses what breaks it, by its name: SQL written by hand meets the same rules as the service."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from services.checkpoint.queries import MIGRATIONS
from tests.support.fix_postgres import FreshDatabase

pytestmark = pytest.mark.server

COLUMNS = (
    "task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels, max_steps, on_lease_lost,"
    " deadline_at"
)
ENDED = "state = 'FAILED', ended_at = now(), queued_at = null"
COUNTS = (
    "claim_count",
    "deaths",
    "timeout_retries",
    "spawn_index",
    "sub_agents",
    "commit_number",
    "sequence",
    "step",
    "model_input",
    "model_output",
    "model_nano_usd",
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "used_nano_usd",
    "own_max_tokens",
    "own_max_nano_usd",
)
USAGE = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "used_nano_usd",
)
GROWN = "epoch = 5, claim_id = 'c', granted = 7, granted_claim = 'g', " + ", ".join(
    f"{name} = 5" for name in ("sequence", "step", "claim_count", "commit_number", *USAGE)
)
BROKEN_TASKS = {
    "tasks_state": ["state = 'LOST'"],
    "tasks_ending_state": ["ending_state = 'QUEUED'"],
    "tasks_on_lease_lost": ["on_lease_lost = 'SHRUG'"],
    "tasks_priority": ["priority = 0", "priority = 4"],
    "running_iff_held": ["holds = true", "state = 'RUNNING'"],
    "a_claim_is_whole": ["epoch = 1", "claim_id = 'c'", "state = 'RUNNING', holds = true"],
    "owned_iff_held": ["owner = 'w'"],
    "opened_only_when_granted": ["epoch = 1, claim_id = 'c'"],
    "attempts_only_while_running": ["model_open = true", f"{ENDED}, model_open = true, model_outlives = true"],
    "retry_iff_scheduled": ["next_retry_at = now()", "state = 'RETRY_SCHEDULED'"],
    "ended_iff_terminal": ["ended_at = now()", "state = 'FAILED'"],
    "ended_without_open_calls": [f"{ENDED}, open_calls = '{{1.0}}'"],
    "an_ending_has_a_time": ["ending_state = 'CANCELLED'", "ending_at = now()"],
    "success_has_its_json": ["result_json = 'x'"],
    "waiting_iff_since": ["waiting_since = now()", "state = 'WAITING_USER'"],
    "only_waiting_tasks_have_a_wait": ["wait = 'x', wait_deadline_at = now()"],
    "a_wait_has_a_deadline": ["wait_deadline_at = now()"],
    "a_correlation_is_of_a_wait": ["wait_correlation = 'x'"],
    "only_a_wait_has_steps": ["wait_step_at = now()"],
    "only_living_tasks_will_wait": [f"{ENDED}, operator_wait = 'x'"],
    "queued_since_iff_queued": ["queued_at = null"],
    "only_queued_tasks_queue_too_long": [f"{ENDED}, queued_until = now()"],
    "only_queued_tasks_start_later": [f"{ENDED}, starts_at = now()"],
    "a_sub_agent_has_a_parent": ["depth = 1", "spawn_call_id = 'x'", "parent_task_id = task_id"],
    "a_fork_knows_its_point": ["forked_from_sequence = 1", "forked_from_task_id = task_id"],
    "source_run_of_a_source": ["source_run_id = 'x'", "source_run_id = 'x', source_kind = 'k'"],
    "tasks_exclusive_source": ["exclusive_source = ''"],
    "tasks_count_from_one": ["max_steps = 0", "attempt = 0", "forked_from_task_id = task_id, forked_from_sequence = 0"],
    "tasks_not_negative": [
        *(f"{name} = -1" for name in COUNTS),
        "epoch = -1",
        "epoch = -1, granted = -1",
        "parent_task_id = task_id, spawn_call_id = 'x', depth = -1",
    ],
}
SHRUNK_TASKS = {
    "tasks_only_grow": [
        *(f"{name} = 4" for name in ("sequence", "step", "claim_count", "commit_number", "epoch")),
        "claim_id = 'd'",
        "granted = 6",
        "granted_claim = 'h'",
        "epoch = 6",
    ],
    "tasks_usage_only_grows": [f"{name} = 4" for name in USAGE],
}
BROKEN_BUDGETS = {
    "budgets_max_tokens": ["max_tokens = 0"],
    "budgets_not_negative": [
        f"{name} = -1"
        for name in (
            "used_tokens",
            "reserved_tokens",
            "max_nano_usd",
            "used_nano_usd",
            "reserved_nano_usd",
            "unpriced_calls",
            "beyond_tokens",
            "beyond_nano_usd",
        )
    ],
    "tokens_within_the_cap": ["used_tokens = 101", "used_tokens = 60, reserved_tokens = 41"],
    "money_within_the_cap": ["used_nano_usd = 101", "used_nano_usd = 60, reserved_nano_usd = 41"],
    "budgets_only_grow": ["max_tokens = 99", "max_nano_usd = 99", "beyond_tokens = 0", "beyond_nano_usd = 0"],
}
ENTRY = "insert into entries select task_id, {sequence}, tenant, 0, '', 1, 0, {kind}, 'x', now(), '' from tasks"
BROKEN_ENTRIES = {
    "entries_sequence_check": [ENTRY.format(sequence=0, kind=3)],
    "entries_kind_check": [ENTRY.format(sequence=1, kind=0)],
    "entries_follow": [
        ENTRY.format(sequence=2, kind=3),
        ENTRY.format(sequence="n", kind=3) + ", unnest('{1,3}'::int[]) as n",
    ],
}
BILL = (
    "insert into token_usage (task_id, step, attempt_number, tenant, root_task_id, epoch, model, provider_request_id,"
    " lost, input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, nano_usd, settled_at)"
    " select task_id, 1, 1, tenant, task_id, 1, '', '', false, {}, now() from tasks"
)
BROKEN_BILLS = {
    "bills_not_negative": [
        BILL.format(", ".join("-1" if place == negative else "1" for place in range(5))) for negative in range(5)
    ]
}
_FUNCTIONS = ("refuse_invalid_task", "refuse_invalid_budget", "refuse_invalid_bill", "refuse_invalid_entries")


def cases(rules: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(rule, change) for rule, changes in rules.items() for change in changes]


@pytest.fixture
async def ledger(fresh_database: FreshDatabase) -> AsyncIterator[Any]:
    """A ledger with a task and a budget, in which no other trigger refuses first."""
    async with await psycopg.AsyncConnection.connect(await fresh_database(MIGRATIONS), autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        await postgres.execute("alter table tasks disable trigger user; alter table tasks enable trigger valid_tasks")
        await postgres.execute(
            f"insert into tasks ({COLUMNS}) values "
            "(gen_random_uuid(), 't', 'r', '', gen_random_uuid(), 'q', 2, 'm', '{}', 1, 'RESUME', now())".encode()
        )
        await postgres.execute(
            "insert into budgets (root_task_id, tenant, max_tokens, max_nano_usd)"
            " select task_id, tenant, 100, 100 from tasks"
        )
        yield postgres


async def refused_by(postgres: Any, statement: str) -> str | None:
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        await postgres.execute(statement.encode())
    return caught.value.diag.constraint_name


@pytest.mark.parametrize(("rule", "change"), cases(BROKEN_TASKS))
async def test_a_task_keeps_the_rule(ledger: Any, rule: str, change: str) -> None:
    assert await refused_by(ledger, f"update tasks set {change}") == rule


async def test_a_new_task_keeps_the_rules_too(ledger: Any) -> None:
    values = "gen_random_uuid(), 't', 'other', '', task_id, 'q', 2, 'm', labels, 1, on_lease_lost, now()"
    statement = f"insert into tasks ({COLUMNS}, deaths) select {values}, -1 from tasks"
    assert await refused_by(ledger, statement) == "tasks_not_negative"


@pytest.mark.parametrize(("rule", "change"), cases(SHRUNK_TASKS))
async def test_counts_of_a_task_only_grow(ledger: Any, rule: str, change: str) -> None:
    await ledger.execute(f"update tasks set {GROWN}".encode())
    assert await refused_by(ledger, f"update tasks set {change}") == rule


@pytest.mark.parametrize(("rule", "change"), cases(BROKEN_BUDGETS))
async def test_a_budget_keeps_the_rule(ledger: Any, rule: str, change: str) -> None:
    if rule == "budgets_only_grow":
        await ledger.execute(b"update budgets set beyond_tokens = 1, beyond_nano_usd = 1")
    assert await refused_by(ledger, f"update budgets set {change}") == rule


async def test_a_raised_cap_is_noted(ledger: Any) -> None:
    for change in ("used_tokens = 5", "max_tokens = 200", "max_nano_usd = 200"):
        await ledger.execute(f"update budgets set {change}".encode())
    ((noted,),) = await (await ledger.execute("select count(*) from raised_budgets")).fetchall()
    assert noted == 2


@pytest.mark.parametrize(("rule", "statement"), cases({**BROKEN_ENTRIES, **BROKEN_BILLS}))
async def test_entries_and_bills_keep_the_rule(ledger: Any, rule: str, statement: str) -> None:
    assert await refused_by(ledger, statement) == rule


async def test_entries_may_follow_in_the_statement_and_after_it(ledger: Any) -> None:
    await ledger.execute((ENTRY.format(sequence="n", kind=3) + ", unnest('{2,1,3}'::int[]) as n").encode())
    await ledger.execute(ENTRY.format(sequence=4, kind=3).encode())
    assert await refused_by(ledger, ENTRY.format(sequence=6, kind=3)) == "entries_follow"


TWO_TASKS = (
    "insert into entries select task_id, n, 't', 0, '', 1, 0, 3, 'x', now(), ''"
    " from (values ('00000000-0000-0000-0000-000000000001'::uuid, {}), ('00000000-0000-0000-0000-000000000002', {}))"
    " as of(task_id, n)"
)


async def test_entries_of_two_tasks_follow_by_themselves(ledger: Any) -> None:
    assert await refused_by(ledger, TWO_TASKS.format(1, 2)) == "entries_follow"
    await ledger.execute(TWO_TASKS.format(1, 1).encode())
    await ledger.execute(TWO_TASKS.format(2, 2).encode())
    assert await refused_by(ledger, TWO_TASKS.format(3, 4)) == "entries_follow"


async def test_every_rule_has_a_change_that_breaks_it(ledger: Any) -> None:
    cursor = await ledger.execute("select prosrc from pg_proc where proname = any(%s)", [list(_FUNCTIONS)])
    sources = " ".join(source for (source,) in await cursor.fetchall())
    rules = set(re.findall(r"then '(\w+)'", sources)) | set(re.findall(r"refuse_row\('\w+', '(\w+)'\)", sources))
    of_checks = {"entries_sequence_check", "entries_kind_check"}
    assert rules | of_checks == {*BROKEN_TASKS, *SHRUNK_TASKS, *BROKEN_BUDGETS, *BROKEN_ENTRIES, *BROKEN_BILLS}
