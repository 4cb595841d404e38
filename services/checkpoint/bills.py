"""The bill of a task: what each settled model attempt used. Kept beside the entries; audits compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.missing import was_pruned
from services.checkpoint.queries import QUERIES, fetch_all, ledger_connection
from services.checkpoint.reads import place_of
from tenure.domain.budget import TokenUsage
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.task import usage_to_wire
from tenure.wire.times import timestamp

if TYPE_CHECKING:
    from tenure.runtime.postgres import Pool

DEFAULT_BILLS: Final = 200


async def list_bills(pool: Pool, tenant: str, request: pb.ListBillsRequest) -> pb.ListBillsResponse:
    """A page; one row more than asked for tells whether there are more. Also of pruned tasks. Raises NotFound."""
    page_size = request.page_size or DEFAULT_BILLS
    parameters = {
        "task_id": request.task_id,
        "after_step": request.after_step,
        "after_attempt_number": request.after_attempt_number,
        "limit": page_size + 1,
    }
    async with ledger_connection(pool) as connection:
        if not await was_pruned(connection, tenant, request.task_id):
            await place_of(connection, tenant, request.task_id)
        rows = await fetch_all(connection, QUERIES.page_of_bills, parameters)
    return pb.ListBillsResponse(bills=map(_bill, rows[:page_size]), more=len(rows) > page_size)


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
