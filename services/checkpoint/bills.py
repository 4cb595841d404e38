"""The bills of a task: what each settled model attempt used. They are kept beside the entries; audits compare both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.commit.draft import clean
from services.checkpoint.commit.prepared import task_of
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.not_found import task_not_found, was_pruned
from services.checkpoint.queries import QUERIES, USAGE_REPORTS, fetch_all, fetch_one, ledger_transaction
from services.checkpoint.reads import position_of
from tenure.domain.budget import Prices, TokenUsage, cost
from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import RecordedModelCall, bill_of_report, decide_report
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.runtime.store.sql_arrays import Int4s, Uuids
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.common import timestamp
from tenure.wire.task import prices_to_domain, usage_to_domain, usage_to_wire

DEFAULT_BILLS: Final = 200


async def list_bills(pool: Pool, tenant: str, request: admin_pb.ListBillsRequest) -> admin_pb.ListBillsResponse:
    """Returns one page, also for pruned tasks. Raises NotFound. Reads one extra row to know whether there are more."""
    page_size = request.page_size or DEFAULT_BILLS
    parameters = {
        "task_id": request.task_id,
        "after_step": request.after_step,
        "after_attempt_number": request.after_attempt_number,
        "limit": page_size + 1,
    }
    async with pool_connection(pool) as connection:
        if not await was_pruned(connection, tenant, request.task_id):
            await position_of(connection, tenant, request.task_id)
        rows = await fetch_all(connection, QUERIES.page_of_bills, parameters)
    return admin_pb.ListBillsResponse(bills=map(_bill, rows[:page_size]), more=len(rows) > page_size)


def _bill(row: tuple[Any, ...]) -> ledger_pb2.Bill:
    step, attempt_number, *counts, lost, model, provider_request_id, epoch, root_task_id, settled_at = row[:-6]
    nano_usd, unpriced, *estimated = row[-6:]
    return ledger_pb2.Bill(
        step=step,
        attempt_number=attempt_number,
        usage=usage_to_wire(TokenUsage(*counts)),
        lost=lost,
        model=model,
        provider_request_id=provider_request_id,
        epoch=epoch,
        root_task_id=root_task_id,
        settle_time=timestamp(settled_at),
        nano_usd=nano_usd,
        unpriced=unpriced,
        estimated_usage=None if estimated[0] is None else usage_to_wire(TokenUsage(*estimated)),
    )


# Usage reports: what a lost model call used, reported by its worker. Only its bill and its budget change.


class _Attempt(NamedTuple):
    """A model attempt as it was reserved."""

    made_under: Fence
    input_tokens: int
    max_output_tokens: int
    outlives_worker: bool
    prices: Prices | None

    def call(self, *, is_settled: bool = False, is_lost: bool = False, is_reported: bool = False) -> RecordedModelCall:
        return RecordedModelCall(
            self.made_under,
            is_settled=is_settled,
            is_lost=is_lost,
            is_reported=is_reported,
            outlives_worker=self.outlives_worker,
        )


@ledger_transaction
async def report_usage(connection: Connection, claims: Claims, request: pb.ReportUsageRequest) -> None:
    """Bills the reported usage, once. Raises NotFound or WrongState; then nothing has changed."""
    task_id = task_of(claims)
    place = {"task_id": task_id, "step": request.step, "attempt_number": request.attempt_number}
    tasks, _ = await lock_tasks(connection, [task_id])
    row = tasks.get(task_id)
    if row is None or row.tenant != claims.tenant:
        raise await task_not_found(connection, claims.tenant, task_id)
    attempt = await _find_attempt(connection, place)
    call = None if attempt is None else await _find_call(connection, place, attempt)
    if not decide_report(call, claims.fence) or attempt is None:
        return
    reservation = attempt.input_tokens, attempt.max_output_tokens, attempt.prices
    usage = bill_of_report(usage_to_domain(request.usage), *reservation)
    report = {
        "holder": clean(claims.holder),
        "locked_at": row.locked_at,
        "provider_request_id": clean(request.provider_request_id),
        "nano_usd": cost(attempt.prices, usage),
        **asdict(usage),
    }
    await connection.execute(USAGE_REPORTS.keep_report, {**place, **report})
    await connection.execute(USAGE_REPORTS.correct, place)
    metrics.count("tenure_usage_reports_total")


async def inspect_calls(
    pool: Pool, calls: Sequence[pb.InspectModelCallsRequest.ModelCall]
) -> list[pb.InspectModelCallsResponse.Verdict]:
    """Returns whether each of these attempts is settled, in the caller's order."""
    parameters = {
        "task_ids": Uuids(UUID(call.task_id) for call in calls),
        "steps": Int4s(call.step for call in calls),
        "attempt_numbers": Int4s(call.attempt_number for call in calls),
    }
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, USAGE_REPORTS.settled_calls, parameters)
    return [pb.InspectModelCallsResponse.Verdict(settled=settled) for (settled,) in rows]


async def _find_attempt(connection: Connection, place: dict[str, Any]) -> _Attempt | None:
    """Returns the newest attempt with the number. Copies in a fork have no epoch, because another task made them."""
    for epoch, claim_id, body in await fetch_all(connection, USAGE_REPORTS.find_attempts, place):
        attempt = ledger_pb2.EntryBody.FromString(body).model_attempt
        if attempt.attempt_number == place["attempt_number"]:
            prices = prices_to_domain(attempt.prices)
            reserved = attempt.input_tokens, attempt.max_output_tokens
            return _Attempt(Fence(epoch, claim_id), *reserved, attempt.outlives_worker, prices)
    return None


async def _find_call(connection: Connection, place: dict[str, Any], attempt: _Attempt) -> RecordedModelCall:
    bill = await fetch_one(connection, USAGE_REPORTS.find_bill, place)
    if bill is None:
        return attempt.call()
    is_lost, is_reported = bill[:2]
    return attempt.call(is_settled=True, is_lost=is_lost, is_reported=is_reported)
