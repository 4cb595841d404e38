"""Serves ExplainTask: collects the knowledge of the ledger, the coordinators and the tools, and puts it into lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from services.gateway.explanation import (
    CallFact,
    Facts,
    OpenModelCallFact,
    PinFact,
    StopFact,
    WorkerFact,
    explain,
    obstacle_text,
    span,
)
from services.gateway.peers import Peers, read_task, with_retries
from tenure.domain.errors import TenureError
from tenure.domain.states import TERMINAL
from tenure.domain.stops import StopsInForce, Subject
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import agent_service_pb2 as agents
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1 import tool_service_pb2 as tools
from tenure.wire.common import CALL_STATES, PRIORITIES, STATES, held_back_seconds, seconds, unix_seconds
from tenure.wire.ledger import lease_end_to_domain
from tenure.wire.stops import in_force_of
from tenure.wire.task import budget_to_domain, pin_to_domain, spec_to_domain
from tenure.wire.tenant_service import describe_use

T = TypeVar("T")

NO_STOPS: Final = StopsInForce()
NEWEST_ENTRIES: Final = 500
"""The number of newest entries that are read for open calls: more than a step has."""
_TIMEOUT_SECONDS: Final = 3.0
FIRST_ENTRIES: Final = 100
"""The number of first entries that are read, too: a provider refuses a tool at the first model call."""
_ENDS: Final = frozenset(map(STATES.to_wire, TERMINAL))
_ENDS_OF_MODEL_CALLS: Final = frozenset({"assistant_message", "model_failure", "attempt_lost"})


async def explain_task(peers: Peers, task_id: str) -> api.ExplainTaskResponse:
    """Raises NotFound, and Unavailable when the ledger does not answer.

    Without the other services the answer is shorter.
    """
    task = await read_task(peers, task_id)
    newest_after = max(0, task.sequence - NEWEST_ENTRIES)
    entries = await _entries(peers, task_id, newest_after, NEWEST_ENTRIES)
    first = await _entries(peers, task_id, 0, min(newest_after, FIRST_ENTRIES)) if newest_after else []
    others = asyncio.gather(
        _unless_away(_claims(peers, task_id)),
        _unless_away(_workers(peers)),
        _unless_away(_calls(peers, task_id)),
        _unless_away(_refusals(peers, task_id)),
        _unless_away(_caps(peers)),
        _unless_away(_builds(peers, task)),
    )
    in_force, (claims, workers, calls, refusals, caps, builds) = await asyncio.gather(
        _unless_away(_stops(peers)), others
    )
    facts = gather_facts(
        *(task, entries, claims, workers, calls, refusals, caps or (), builds, first),
        in_force=in_force or NO_STOPS,
        now=time.time(),
    )
    return api.ExplainTaskResponse(lines=explain(facts), task=task, obstacle=obstacle_text(facts))


async def _entries(peers: Peers, task_id: str, after: int, count: int) -> Sequence[ledger_pb2.Entry]:
    page = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after, page_size=count)
    entries: Sequence[ledger_pb2.Entry] = (await with_retries(lambda: peers.checkpoint.ListTaskEntries(page))).entries
    return entries


def gather_facts(
    task: task_pb2.Task,
    entries: Sequence[ledger_pb2.Entry],
    claims: Sequence[admin_pb.Claim] | None,
    workers: Sequence[admin_pb.Worker] | None,
    calls: Sequence[tool_pb2.CallTrail] | None,
    refusals: int | None,
    caps: Sequence[tenants.QuotaUse] = (),
    builds: Sequence[str] | None = (),
    first: Sequence[ledger_pb2.Entry] = (),
    *,
    in_force: StopsInForce = NO_STOPS,
    now: float,
) -> Facts:
    """Collects the input of `explain`. None stands for a service that did not answer.

    `entries`: the newest ones. `first`: the first ones, unless they are among the newest.
    """
    moved = [entry for entry in entries if entry.body.HasField("transition")]
    own = None if claims is None else [claim for claim in claims if claim.epoch == task.epoch]
    waits, open_calls = task.HasField("wait"), _open_calls(entries, calls or (), now)
    running = [use for use in caps if use.quota.kind == tenants.QUOTA_KIND_RUNNING_TASKS]
    return Facts(
        state=STATES.to_domain(task.state),
        reason=task.reason,
        message=task.message,
        attempt=task.attempt,
        step=task.step,
        queue=task.queue,
        loop=spec_to_domain(task.spec).dispatch_loop,
        owner=task.owner,
        epoch=task.epoch,
        budget=budget_to_domain(task.budget),
        since_move=now - unix_seconds(moved[-1].record_time if moved else task.update_time),
        since_entry=now - unix_seconds(entries[-1].record_time if entries else task.update_time),
        until_deadline=unix_seconds(task.deadline_time) - now,
        until_start=held_back_seconds(task, now),
        until_too_long=_until_too_long(task, moved, now),
        until_retry=unix_seconds(task.next_retry_time) - now if task.HasField("next_retry_time") else None,
        is_to_end=task.cancel_requested,
        waits_for=_waits_for(task.wait, now) if waits else "",
        until_answer=unix_seconds(task.wait.deadline_time) - now if waits else None,
        lease_seconds=None if own is None else max((seconds(claim.remaining) for claim in own), default=0.0),
        workers=None if workers is None else tuple(_worker(worker, task.tenant) for worker in workers),
        calls=open_calls,
        tools_answered=calls is not None,
        refusals=refusals,
        caps=tuple(map(_cap, caps)),
        running_cap=next(map(_cap, running), ""),
        starts_none=any(use.quota.most == 0 for use in running),
        priority=PRIORITIES.to_domain(task.spec.priority),
        error_class=moved[-1].body.transition.error_class if moved else "",
        pin=_pin(task, builds),
        model_call=_open_model_call(entries, own or (), now),
        failed_call=_failed_model_call(entries),
        refused_tools=_refused_tools([*first, *entries]),
        stop=_stop(task, open_calls, in_force, now),
        lost_lease=_lost_lease(moved),
        at_most=task.spec.source.at_most if task.in_line else 0,
    )


def _stop(task: task_pb2.Task, calls: Sequence[CallFact], in_force: StopsInForce, now: float) -> StopFact | None:
    """Returns the stop that covers the task, or one of its calls without an outcome."""
    subject = Subject(task.tenant, task.spec.agent_pin.agent, task.queue)
    stops = [in_force.of_task(subject), *(in_force.of_call(subject, call.tool) for call in calls)]
    stop = next((one for one in stops if one is not None), None)
    if stop is None or stop.stop_time is None:
        return None
    return StopFact(stop, now - stop.stop_time.timestamp())


def _lost_lease(moved: Sequence[ledger_pb2.Entry]) -> str:
    lost = next((entry for entry in reversed(moved) if entry.body.transition.HasField("lease_end")), None)
    if lost is None:
        return ""
    return f"{lost.body.transition.reason}: {lease_end_to_domain(lost.body.transition.lease_end).describe()}"


def _refused_tools(entries: Sequence[ledger_pb2.Entry]) -> tuple[str, ...]:
    """Returns the tools that a provider refused in the newest attempt of the task."""
    refused: dict[str, None] = {}
    for entry in entries:
        if entry.body.transition.from_state in _ENDS:
            refused.clear()
        refused |= dict.fromkeys(entry.body.model_failure.refused_tools)
    return tuple(refused)


def _pin(task: task_pb2.Task, builds: Sequence[str] | None) -> PinFact | None:
    if not task.spec.HasField("agent_pin"):
        return None
    pin = pin_to_domain(task.spec.agent_pin)
    return PinFact(pin.reference, pin.needs_build, None if builds is None else tuple(builds))


def _until_too_long(task: task_pb2.Task, moved: Sequence[ledger_pb2.Entry], now: float) -> float | None:
    after_seconds = seconds(task.spec.policy.timeouts.queued.after)
    if task.state != task_pb2.TASK_STATE_QUEUED or not after_seconds or not moved:
        return None
    return max(unix_seconds(moved[-1].record_time), unix_seconds(task.spec.start_time)) + after_seconds - now


def _open_calls(
    entries: Sequence[ledger_pb2.Entry], calls: Sequence[tool_pb2.CallTrail], now: float
) -> tuple[CallFact, ...]:
    """Returns the intents without an outcome, with their call states at the tool service."""
    status = {call.record.call_id: CALL_STATES.to_domain(call.record.state).value for call in calls}
    settled = {
        call.record.call_id: now - unix_seconds(call.settling_time)
        for call in calls
        if call.HasField("settling_time") and call.record.state == tool_pb2.CALL_STATE_STARTED
    }
    intents = {}
    for entry in entries:
        if entry.body.HasField("tool_intent"):
            intents[entry.body.tool_intent.call_id] = entry.body.tool_intent.tool
        elif entry.body.HasField("tool_outcome"):
            intents.pop(entry.body.tool_outcome.call_id, None)
    return tuple(
        CallFact(call_id, tool, status.get(call_id, ""), settled.get(call_id)) for call_id, tool in intents.items()
    )


def _open_model_call(
    entries: Sequence[ledger_pb2.Entry], claims: Sequence[admin_pb.Claim], now: float
) -> OpenModelCallFact | None:
    """Returns the open model attempt, if its call outlives its worker."""
    opened: ledger_pb2.Entry | None = None
    for entry in entries:
        kind = entry.body.WhichOneof("body")
        if kind == "model_attempt":
            opened = entry
        elif kind in _ENDS_OF_MODEL_CALLS:
            opened = None
    if opened is None or not opened.body.model_attempt.outlives_worker:
        return None
    since = now - unix_seconds(opened.record_time)
    waits = any(claim.renewals.model_call_waits for claim in claims)
    return OpenModelCallFact(opened.step, opened.body.model_attempt.attempt_number, since, waits)


def _failed_model_call(entries: Sequence[ledger_pb2.Entry]) -> str:
    """Returns the failure after which the model call is made again; "": none."""
    for entry in reversed(entries):
        match entry.body.WhichOneof("body"):
            case "model_failure":
                return f"{entry.body.model_failure.error_class}: {entry.body.model_failure.message}"
            case "model_attempt" | "assistant_message" | "transition":
                return ""
    return ""


def _worker(worker: admin_pb.Worker, tenant: str) -> WorkerFact:
    return WorkerFact(
        worker.worker_id,
        tuple(worker.queues) or ("default",),
        tuple(worker.loops) or ("messages",),
        worker.draining,
        not worker.tenants or tenant in worker.tenants,
        worker.build,
        frozenset(map(PRIORITIES.to_domain, worker.priorities)),
    )


def _waits_for(wait: task_pb2.Wait, now: float) -> str:
    """Returns what the task waits for, whom the wait is assigned to, and when its next step is due."""
    assigned = f", assigned to {wait.assignee}" if wait.assignee else ""
    action = (wait.next_step.WhichOneof("action") or "event only").replace("_", " ")
    due = span(unix_seconds(wait.next_step_time) - now) if wait.HasField("next_step") else ""
    return f"{_awaited(wait)}{assigned}{f', next step ({action}) in {due}' if due else ''}"


def _awaited(wait: task_pb2.Wait) -> str:
    if wait.kind == task_pb2.WAIT_KIND_EVENT:
        return f"the event {wait.correlation_id}"
    if wait.kind == task_pb2.WAIT_KIND_SUB_AGENTS:
        ids = wait.sub_agent_task_ids
        return f"its {len(ids)} sub-agent{'s' if len(ids) > 1 else ''}: {', '.join(ids)}"
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        calls = wait.calls or [wait]
        return f"permission to call {', '.join(f'{call.tool} ({call.call_id})' for call in calls)}"
    if wait.kind == task_pb2.WAIT_KIND_BUDGET:
        request = wait.budget_request
        return f"budget: {request.limit}, its next call needs {request.needed_tokens:,} tokens"
    if wait.kind == task_pb2.WAIT_KIND_OPERATOR:
        return f"an operator: {wait.question}"
    return f"an answer to: {wait.question}"


async def _claims(peers: Peers, task_id: str) -> Sequence[admin_pb.Claim]:
    request = admin_pb.ListClaimsRequest(task_id=task_id)
    claims: Sequence[admin_pb.Claim] = (await peers.coordinator.ListClaims(request, timeout=_TIMEOUT_SECONDS)).claims
    await peers.add_renewals(claims, task_id)
    return claims


async def _workers(peers: Peers) -> Sequence[admin_pb.Worker]:
    request, workers = admin_pb.ListWorkersRequest(), list[admin_pb.Worker]()
    while True:
        page = await peers.coordinator.ListWorkers(request, timeout=_TIMEOUT_SECONDS)
        workers += page.workers
        request.page_token = page.next_page_token
        if not request.page_token:
            return workers


async def _calls(peers: Peers, task_id: str) -> Sequence[tool_pb2.CallTrail]:
    request = admin_pb.ListCallsRequest(task_id=task_id, page_size=1000)
    return (await peers.tools.ListCalls(request, timeout=_TIMEOUT_SECONDS)).calls


async def _refusals(peers: Peers, task_id: str) -> int:
    writes = ledger.ListRefusedWritesRequest(task_id=task_id)
    refused = (await peers.checkpoint.ListRefusedWrites(writes, timeout=_TIMEOUT_SECONDS)).refused_writes
    calls = tools.ListRefusedCallsRequest(task_id=task_id)
    return len(refused) + len((await peers.tools.ListRefusedCalls(calls, timeout=_TIMEOUT_SECONDS)).refused_calls)


async def _caps(peers: Peers) -> Sequence[tenants.QuotaUse]:
    """Returns the reached quotas of the caller's tenant, which is the task's tenant."""
    tenant = (await peers.tenants.GetTenant(tenants.GetTenantRequest(), timeout=_TIMEOUT_SECONDS)).tenant
    return [use for use in tenant.quotas if use.hard_reached]


def _cap(use: tenants.QuotaUse) -> str:
    return describe_use(use.quota.kind, use.used, use.quota.most)


async def _stops(peers: Peers) -> StopsInForce:
    return in_force_of(await peers.checkpoint.ListStops(admin_pb.ListStopsRequest(), timeout=_TIMEOUT_SECONDS))


async def _builds(peers: Peers, task: task_pb2.Task) -> Sequence[str]:
    """Returns the builds that can run the task, if it needs one."""
    pin = task.spec.agent_pin
    if not pin.needs_build:
        return ()
    request = agents.GetAgentRequest(name=pin.agent, revision=pin.revision)
    (revision,) = (await peers.agents.GetAgent(request, timeout=_TIMEOUT_SECONDS)).revisions
    return [each.build for each in revision.builds]


async def _unless_away(awaitable: Awaitable[T]) -> T | None:
    """Returns None when the service does not answer: the answer explains the task, not the installation."""
    try:
        return await awaitable
    except (TenureError, PeerFailed, TimeoutError):
        return None
