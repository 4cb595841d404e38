"""What a lost model call used after all, said by the worker that made it: its bill and its budget change, nothing else.

The token may be stale. A fence keeps a former owner from the task's work, and this is none of it: no entry is written,
no state, no epoch, nothing that a successor reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from services.checkpoint.draft import clean
from services.checkpoint.missing import missing
from services.checkpoint.prepared import task_of
from services.checkpoint.queries import USAGE_REPORTS, fetch_all, fetch_one, in_ledger_transaction
from services.checkpoint.rows import lock_tasks
from tenure.domain.epochs import Fence
from tenure.domain.lost_calls import MadeCall, decide_report
from tenure.domain.money import Prices, cost
from tenure.runtime import metrics
from tenure.v1 import ledger_pb2
from tenure.wire.task import prices_to_domain, usage_to_domain

if TYPE_CHECKING:
    from tenure.domain.budget import TokenUsage
    from tenure.domain.token import Claims
    from tenure.runtime.postgres import Connection, Pool
    from tenure.v1 import checkpoint_service_pb2 as pb


class _Attempt(NamedTuple):
    """As it was reserved."""

    made_under: Fence
    reserved_tokens: int
    reserved_nano_usd: int
    prices: Prices | None


async def report_usage(pool: Pool, claims: Claims, request: pb.ReportUsageRequest) -> None:
    """Bill what is reported, once. Raises NotFound, WrongState, InvalidRequest; then nothing has changed."""
    task_id = task_of(claims)
    usage = usage_to_domain(request.usage)
    place = {"task_id": task_id, "step": request.step, "attempt_number": request.attempt_number}

    async def work(connection: Connection) -> None:
        tasks, _ = await lock_tasks(connection, [task_id])
        row = tasks.get(task_id)
        if row is None or row.tenant != claims.tenant:
            raise await missing(connection, claims.tenant, task_id)
        attempt = await _find_attempt(connection, place)
        call = None if attempt is None else await _find_call(connection, place, attempt)
        nano_usd = 0 if attempt is None else cost(attempt.prices, usage)
        if not decide_report(call, claims.fence, usage, nano_usd):
            return
        report = {
            "holder": clean(claims.holder),
            "locked_at": row.locked_at,
            "provider_request_id": clean(request.provider_request_id),
            "nano_usd": nano_usd,
            **_counts(usage),
        }
        await connection.execute(USAGE_REPORTS.keep_report, {**place, **report})
        await connection.execute(USAGE_REPORTS.correct, place)
        metrics.count("tenure_usage_reports_total")

    await in_ledger_transaction(pool, work)


async def _find_attempt(connection: Connection, place: dict[str, Any]) -> _Attempt | None:
    """The newest of its number: a fork's copies were made elsewhere, and have no epoch."""
    for epoch, claim_id, body in await fetch_all(connection, USAGE_REPORTS.find_attempts, place):
        attempt = ledger_pb2.EntryBody.FromString(body).model_attempt
        if attempt.attempt_number == place["attempt_number"]:
            prices = prices_to_domain(attempt.prices)
            return _Attempt(Fence(epoch, claim_id), attempt.reserved_tokens, attempt.reserved_nano_usd, prices)
    return None


async def _find_call(connection: Connection, place: dict[str, Any], attempt: _Attempt) -> MadeCall:
    bill = await fetch_one(connection, USAGE_REPORTS.find_bill, place)
    if bill is None:
        return MadeCall(*attempt[:3])
    is_lost, is_reported = bill[:2]
    return MadeCall(*attempt[:3], is_settled=True, is_lost=is_lost, is_reported=is_reported)


def _counts(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
    }
