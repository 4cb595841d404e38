"""The requests of coordinators: offers, pending endings, grants, and what the ledger knows about claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from services.checkpoint.locked_rows import without_locked
from services.checkpoint.queries import FIRST_ID, QUERIES, fetch_all
from services.checkpoint.queue.offering import OfferedTask, Offering, OfferRequest
from tenure.domain.close_out import SUSPECT_DEATHS, is_suspect
from tenure.domain.states import TaskState
from tenure.domain.task import Priority
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2, token_pb2, tool_pb2
from tenure.wire.common import PRIORITIES, STATES, seconds, timestamp
from tenure.wire.coordinator_service import slots_to_domain

T = TypeVar("T")

DEFAULT_RESERVE_SECONDS: Final = 1.0
ENDING_RESERVE_SECONDS: Final = 2.0
MAX_ENDING_RESERVE_SECONDS: Final = 30.0
"""The longest pause between two tries to end a task: after an outage, the last task may wait that long."""
DEFAULT_RUNNING_PAGE: Final = 500
_ANY_DEATHS: Final = 2**31


async def list_claimable(pool: Pool, offering: Offering, request: pb.ListClaimableRequest) -> list[pb.Offer]:
    """Returns queued tasks without a pending ending in the order of tenure.domain.fairness, reserved for the caller."""
    wanted = OfferRequest(
        queues=request.queues,
        loops=request.loops,
        tiers=sorted({PRIORITIES.to_domain(priority) for priority in request.priorities}) or list(Priority),
        worker_ids=request.worker_ids,
        deaths_below=SUSPECT_DEATHS if request.without_suspects else _ANY_DEATHS,
        reserve_seconds=seconds(request.reserve_duration) or DEFAULT_RESERVE_SECONDS,
        tenants=request.tenants,
    )
    lower = request.lower_tiers if request.HasField("lower_tiers") else None
    slots = slots_to_domain(request.limit, lower)

    async def work(connection: Connection) -> list[OfferedTask]:
        return await offering.offer(connection, wanted, slots)

    return [_offer(task) for task in await _offered(pool, work)]


async def list_endings(pool: Pool, request: pb.ListEndingsRequest) -> list[pb.ListEndingsResponse.Ending]:
    """Returns tasks that a coordinator must end under a claim of its own, oldest first, reserved for the caller."""
    parameters = {
        "grace_seconds": seconds(request.grace),
        "limit": request.limit,
        "reserve_seconds": ENDING_RESERVE_SECONDS,
        "most_seconds": MAX_ENDING_RESERVE_SECONDS,
    }

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        return await fetch_all(connection, QUERIES.offer_endings, parameters)

    rows = await _offered(pool, work)
    rows.sort(key=lambda row: row[6])
    return [
        pb.ListEndingsResponse.Ending(
            task_id=task_id,
            tenant=tenant,
            to_state=STATES.to_wire(TaskState(state)),
            reason=reason,
            message=message,
            attempt=attempt,
        )
        for task_id, tenant, state, reason, message, attempt, _ in rows
    ]


async def register_grants(pool: Pool, grants: Sequence[pb.RegisterGrantsRequest.Grant]) -> list[str]:
    """Registers claims as grants and returns the claim ids that became grants, in the caller's order.

    A claim whose task row is locked is left out: its coordinator deletes it, and the task is offered again.
    """
    await failpoint("checkpoint.before_register")
    registered = set(await without_locked(pool, grants, _register))
    await failpoint("checkpoint.after_register")
    return [grant.claim_id for grant in grants if grant.claim_id in registered]


async def _register(connection: Connection, grants: Sequence[pb.RegisterGrantsRequest.Grant]) -> list[str]:
    parameters = {
        "task_ids": [grant.task_id for grant in grants],
        "epochs": [grant.epoch for grant in grants],
        "claim_ids": [grant.claim_id for grant in grants],
    }
    return [claim_id for (claim_id,) in await fetch_all(connection, QUERIES.register_grants, parameters)]


async def inspect_claims(
    pool: Pool, claims: Sequence[pb.InspectClaimsRequest.Claim]
) -> list[pb.InspectClaimsResponse.Verdict]:
    """Returns the state of each claim, in the order of the request."""
    parameters = {
        "task_ids": [claim.task_id for claim in claims],
        "claim_ids": [claim.claim_id for claim in claims],
    }
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, QUERIES.inspect_claims, parameters)
    return [
        pb.InspectClaimsResponse.Verdict(
            registered=registered,
            state=STATES.to_wire(TaskState(state)) if state else task_pb2.TASK_STATE_UNSPECIFIED,
            running=running,
        )
        for registered, state, running in rows
    ]


async def list_running(pool: Pool, request: pb.ListRunningRequest) -> list[pb.ListRunningResponse.Running]:
    """Returns held tasks with their claims, by task_id."""
    parameters = {
        "after_task_id": request.after_task_id or FIRST_ID,
        "page_size": request.page_size or DEFAULT_RUNNING_PAGE,
    }
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, QUERIES.list_running, parameters)
    return [
        pb.ListRunningResponse.Running(
            task_id=task_id,
            claim_id=claim_id,
            epoch=epoch,
            owner=owner,
            update_time=timestamp(updated_at),
            suspect=is_suspect(deaths),
        )
        for task_id, claim_id, epoch, owner, updated_at, deaths in rows
    ]


async def _offered(pool: Pool, work: Callable[[Connection], Awaitable[T]]) -> T:
    await failpoint("checkpoint.before_offer")
    offered = await in_transaction(pool, work)
    await failpoint("checkpoint.after_offer")
    return offered


def _offer(task: OfferedTask) -> pb.Offer:
    policy = task_pb2.TaskPolicy.FromString(task.policy)
    timeouts = policy.timeouts
    return pb.Offer(
        task_id=task.task_id,
        tenant=task.tenant,
        queue=task.queue,
        priority=PRIORITIES.to_wire(PRIORITIES.to_domain(task.priority)),
        loop=task.loop,
        previous_epoch=task.epoch,
        reason=task.reason,
        tools=None if task.tools is None else task_pb2.ToolAllowlist(names=task.tools),
        suspect=is_suspect(task.deaths),
        not_worker_id=task.not_worker_id,
        only_worker_id=task.only_worker_id,
        start_timeout=timeouts.start.after if timeouts.start.HasField("after") else None,
        progress_timeout=timeouts.progress.after if timeouts.progress.HasField("after") else None,
        lease_ttl=policy.lease_ttl if policy.HasField("lease_ttl") else None,
        renew_interval=policy.renew_interval if policy.HasField("renew_interval") else None,
        reconnect_grace=policy.reconnect_grace if policy.HasField("reconnect_grace") else None,
        agent=task.agent,
        scopes=token_pb2.TaskScopes(tree=task.tree, conversation=task.conversation, source=task.source),
        labels=task.labels,
        approvals=[call for call in task.approved_calls if call.partition(":")[0] in task.open_calls],
        plans=map(tool_pb2.CallPlan.FromString, task.plans),
    )
