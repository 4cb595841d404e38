"""What a tenant was billed, summed up: read from the bills, by one index each; those of pruned tasks are there too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.queries import fetch_all, ledger_connection
from services.checkpoint.tenants.rows import TENANTS
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest
from tenure.domain.simulation import SIMULATED_MODEL_PREFIX, SIMULATED_REQUEST_PREFIX
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.task import usage_to_wire
from tenure.wire.times import moment

if TYPE_CHECKING:
    from tenure.runtime.postgres import Pool

DEFAULT_SUMS: Final = 100
DEFAULT_SPAN: Final = timedelta(days=1)
LONGEST_SPAN: Final = timedelta(days=366)
_GROUPINGS: Final = {
    pb.USAGE_GROUPING_UNSPECIFIED: "TENANT",
    pb.USAGE_GROUPING_TENANT: "TENANT",
    pb.USAGE_GROUPING_ROOT: "ROOT",
    pb.USAGE_GROUPING_MODEL: "MODEL",
    pb.USAGE_GROUPING_DAY: "DAY",
}


async def sum_up(pool: Pool, tenant: str, request: pb.GetTenantUsageRequest) -> pb.GetTenantUsageResponse:
    """A page of sums by their key; the token is the last one's. Raises InvalidRequest for a span that is too long."""
    page_size = request.page_size or DEFAULT_SUMS
    parameters: dict[str, Any] = {
        "tenant": tenant,
        "grouping": _GROUPINGS[request.group_by],
        "after": request.page_token,
        "limit": page_size + 1,
        "simulated_request": SIMULATED_REQUEST_PREFIX,
        "simulated_model": SIMULATED_MODEL_PREFIX,
    }
    if request.root_task_id:
        statement = TENANTS.usage_of_root
        parameters["root_task_id"] = request.root_task_id
    else:
        statement = TENANTS.usage
        parameters["begin_at"], parameters["end_at"] = _span(request, datetime.now(UTC))
    async with ledger_connection(pool) as connection:
        rows = await fetch_all(connection, statement, parameters)
    sums = [_sum(*columns) for columns in rows[:page_size]]
    return pb.GetTenantUsageResponse(sums=sums, next_page_token=sums[-1].key if len(rows) > page_size else "")


def _span(request: pb.GetTenantUsageRequest, now: datetime) -> tuple[datetime, datetime]:
    """Bills are timed by the database; where a span ends that was left open does not matter by seconds."""
    end_at = moment(request.end_time) if request.HasField("end_time") else now + timedelta(minutes=1)
    begin_at = moment(request.begin_time) if request.HasField("begin_time") else end_at - DEFAULT_SPAN
    if end_at - begin_at > LONGEST_SPAN + timedelta(minutes=1):
        raise InvalidRequest(violations=[("begin_time", "at most 366 days before end_time")])
    return begin_at, end_at


def _sum(
    key: str,
    calls: int,
    lost_calls: int,
    nano_usd: int,
    simulated_calls: int,
    simulated_nano_usd: int,
    unpriced_calls: int,
    *counts: int,
) -> pb.UsageSum:
    return pb.UsageSum(
        key=key,
        calls=calls,
        lost_calls=lost_calls,
        nano_usd=nano_usd,
        simulated_calls=simulated_calls,
        simulated_nano_usd=simulated_nano_usd,
        unpriced_calls=unpriced_calls,
        usage=usage_to_wire(TokenUsage(*counts)),
    )
