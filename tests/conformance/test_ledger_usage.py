"""Bills summed up: by every key, each by one index, those of pruned tasks included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from services.checkpoint.tenants.rows import TENANTS
from tenure.runtime.request_context import as_tenant
from tenure.v1 import tenant_service_pb2 as pb
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tests.support.fix_checkpoint import Checkpoint
from tests.support.patience import CALL_SECONDS

ROOT = "00000000-0000-7000-8000-{:012x}"
TENANTS_COUNT, ROOTS, BILLS = 20, 500, 40_000
FILL = f"""
insert into ledger.token_usage (task_id, step, attempt_number, tenant, root_task_id, epoch, model, provider_request_id,
  lost, input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, nano_usd, unpriced,
  settled_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n %% {ROOTS}), 12, '0'))::uuid, n, 1, 't-' || n %% {TENANTS_COUNT},
       ('00000000-0000-7000-8000-' || lpad(to_hex(n %% {ROOTS}), 12, '0'))::uuid, 1, 'm-' || n %% 3, '', n %% 10 = 0,
       100, 10, 0, 300, 7, false, now() - make_interval(mins => n %% 20000)
  from generate_series(1, {BILLS}) n
"""  # the numbers are constants of this file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def billed(shared_ledger: Checkpoint) -> Checkpoint:
    """A ledger with as many bills as a busy fortnight leaves."""
    await shared_ledger.query(FILL)
    await shared_ledger.query("analyze ledger.token_usage")
    return shared_ledger


async def sums(replica: Any, tenant: Any, **fields: Any) -> Any:
    request = pb.GetTenantUsageRequest(**fields)
    with as_tenant(tenant):
        return await TenantServiceStub(replica.channel).GetTenantUsage(request, timeout=CALL_SECONDS)


def since(**ago: Any) -> Any:
    request = pb.GetTenantUsageRequest()
    request.begin_time.FromDatetime(datetime.now(UTC) - timedelta(**ago))
    return {"begin_time": request.begin_time}


async def test_sums_by_every_key_are_those_of_the_bills(billed: Any) -> None:
    whole = (await sums(billed, "t-3", **since(days=30))).sums
    assert [(one.key, one.calls, one.nano_usd) for one in whole] == [("t-3", BILLS // TENANTS_COUNT, 7 * 2000)]
    usage = whole[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (200_000, 20_000, 600_000)
    for grouping in (pb.USAGE_GROUPING_ROOT, pb.USAGE_GROUPING_MODEL, pb.USAGE_GROUPING_DAY):
        parts = (await sums(billed, "t-3", group_by=grouping, page_size=1000, **since(days=30))).sums
        assert len(parts) > 1
        assert [one.key for one in parts] == sorted(one.key for one in parts)
        assert sum(one.calls for one in parts) == 2000
        assert sum(one.usage.cache_read_input_tokens for one in parts) == 600_000


async def test_the_dearest_sums_come_first(billed: Any) -> None:
    """Not those of the smallest keys: equally dear ones by their tokens."""
    root = ROOT.format(ROOTS + 7)
    for number, nano_usd in enumerate((1, 10**9)):
        await billed.query(
            "insert into ledger.token_usage (task_id, step, attempt_number, tenant, root_task_id, epoch, model,"
            " provider_request_id, lost, input_tokens, output_tokens, cache_creation_input_tokens,"
            " cache_read_input_tokens, nano_usd, unpriced, settled_at)"
            f" values ('{root}', {number}, 1, 't-dear', '{ROOT.format(ROOTS + 7 + number)}', 1, 'm', '', false,"
            f" 1, 1, 0, 0, {nano_usd}, false, now())"
        )
    fields = {"group_by": pb.USAGE_GROUPING_ROOT, "page_size": 1, **since(hours=1)}
    page = await sums(billed, "t-dear", dearest_first=True, **fields)
    assert ([one.key for one in page.sums], page.next_page_token) == ([ROOT.format(ROOTS + 8)], "")
    assert [one.key for one in (await sums(billed, "t-dear", **fields)).sums] == [root]


async def test_pages_of_sums_join_without_gap_or_repeat(billed: Any) -> None:
    fields = {"group_by": pb.USAGE_GROUPING_ROOT, **since(days=30)}
    whole = [one.key for one in (await sums(billed, "t-3", page_size=1000, **fields)).sums]
    results, token = [], ""
    while True:
        page = await sums(billed, "t-3", page_size=10, page_token=token, **fields)
        results += [one.key for one in page.sums]
        token = page.next_page_token
        if not token:
            break
    assert results == whole


async def test_a_usage_window_has_its_settled_calls(billed: Any) -> None:
    hour = (await sums(billed, "t-3", **since(hours=1))).sums
    assert hour[0].calls < 20
    root = (await sums(billed, "t-3", root_task_id=ROOT.format(3))).sums
    assert [(one.key, one.calls) for one in root] == [("t-3", BILLS // ROOTS)]
    assert not (await sums(billed, "t-4", root_task_id=ROOT.format(3))).sums, "it is another tenant's"


async def test_simulated_and_unpriced_calls_are_counted_separately(shared_ledger: Checkpoint) -> None:
    root = ROOT.format(ROOTS + 1)  # without bills of `billed`
    bills = [
        ("claude-opus-4-8", "req_011", False, 50),
        ("claude-opus-4-8", "req_sim_a", False, 7),
        ("no-such-model", "req_012", True, 0),
        ("sim-hello", "req_sim_b", True, 0),
        ("sim-hello", "", True, 0),  # lost: no answer, no id
    ]
    for number, (model, request_id, unpriced, nano_usd) in enumerate(bills):
        await shared_ledger.query(
            "insert into ledger.token_usage (task_id, step, attempt_number, tenant, root_task_id, epoch, model,"
            " provider_request_id, lost, input_tokens, output_tokens, cache_creation_input_tokens,"
            " cache_read_input_tokens, nano_usd, unpriced, settled_at)"
            f" values ('{root}', {number}, 1, 't', '{root}', 1, '{model}', '{request_id}', false,"
            f" 1, 1, 0, 0, {nano_usd}, {unpriced}, now())"
        )
    for fields in (since(hours=1), {"root_task_id": root}):
        [one] = (await sums(shared_ledger, "t", **fields)).sums
        assert (one.calls, one.nano_usd) == (5, 57)
        assert (one.simulated_calls, one.simulated_nano_usd, one.unpriced_calls) == (3, 7, 1)


@pytest.mark.parametrize("grouping", ["TENANT", "ROOT", "MODEL", "DAY"])
async def test_each_sum_reads_one_index(billed: Any, grouping: str) -> None:
    now = datetime.now(UTC)
    simulated = {"simulated_request": "req_sim_", "simulated_model": "sim-"}
    shared = {"tenant": "t-3", "grouping": grouping, "after": "", "dearest": False, "limit": 100, **simulated}
    span = {"begin_at": now - timedelta(days=1), "end_at": now}
    assert await indexes(billed, TENANTS.usage, **shared, **span) == ["token_usage_tenant"]
    assert await indexes(billed, TENANTS.usage_of_root, **shared, root_task_id=ROOT.format(3)) == ["token_usage_root"]


async def indexes(replica: Any, statement: Any, **parameters: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger; set enable_seqscan to off")
        cursor = await postgres.execute(b"explain (format json, analyze) " + statement, parameters)
        ((rows,),) = await cursor.fetchall()
    plan = (json.loads(rows) if isinstance(rows, str) else rows)[0]["Plan"]
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    return [node["Index Name"] for node in nodes(plan) if "Index Name" in node]


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)
