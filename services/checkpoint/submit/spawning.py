"""Creates sub-agents in the transaction that commits their call's intent, or closes the call with a refusal as outcome.

Nothing here may raise because of a model's arguments: other tasks' commits are in the same transaction.
"""

from __future__ import annotations

from datetime import timedelta

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import SUB_AGENTS, fetch_one
from services.checkpoint.rows import NewTaskRow
from services.checkpoint.submit.create import NewLedger, NewTask, TreePosition, insert_ledgers, insert_tasks, row_of
from services.checkpoint.waits.waits import close_call
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import Unavailable
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import (
    SPAWN_SUB_AGENTS,
    Parent,
    Share,
    SpawnRequest,
    decide_spawn,
    read_spawn,
    spawns_at_once,
    spec_of_sub_agent,
    sub_agent_id,
)
from tenure.domain.tool_arguments import InvalidArguments, unfit
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import WaitKind
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES, timestamp
from tenure.wire.task import allowlist_to_wire, spec_to_domain, spec_to_wire

_IDS_TAKEN = Outcome(OutcomeStatus.FAILED, "No sub-agents were started: their request_ids are used for other tasks.")


async def spawn(connection: Connection, draft: Draft, call: ToolIntent, *, is_approved: bool = False) -> None:
    """Creates the sub-agents of the call, or closes the call. Leaves a call that needs an approval or is not allowed
    open.
    """
    parent = await _parent(connection, draft)
    if not is_approved and not spawns_at_once(parent.spec, call.tool):
        return
    decided = await _decide(connection, draft, call, parent)
    metrics.count("tenure_spawns_total", refused=str(isinstance(decided, Outcome)).lower())
    if isinstance(decided, Outcome):
        close_call(draft, call.call_id, decided, LEDGER)
        return
    spawn_request, share = decided
    ids = _ids(draft, call, spawn_request)
    seconds_left = (draft.row.deadline_at - draft.row.locked_at).total_seconds()
    new: list[NewTask] = []
    ledgers: list[NewLedger] = []
    for index, task_id in enumerate(ids):
        spec = spec_of_sub_agent(parent.spec, spawn_request.goals[index], share, seconds_left)
        place = TreePosition(task_id, draft.row.root_task_id, parent.task_id, parent.depth + 1, call.call_id, index)
        message = spec_to_wire(spec)
        row = row_of(place, draft.row.tenant, _request_id(task_id), b"", spec, message.policy)
        new.append(NewTask(row, spec))
        ledgers.append(_ledger(row, message))
    await insert_tasks(connection, new)
    await insert_ledgers(connection, ledgers)
    noted = await fetch_one(connection, SUB_AGENTS.note_spawned, {"task_id": parent.task_id, "task_ids": ids})
    if noted is None:
        raise Unavailable(
            "another request took the names of the sub-agents at the same moment: commit again",
            reason="SUB_AGENTS_TAKEN",
        )
    draft.row.sub_agents += len(ids)
    draft.spawned += tuple(ids)
    _append_spawned(draft, call, spawn_request, share, ids)


async def _parent(connection: Connection, draft: Draft) -> Parent:
    row = draft.row
    parameters = {"task_id": row.task_id, "tools_defined": KINDS["tools_defined"]}
    record = await fetch_one(connection, SUB_AGENTS.parent, parameters)
    assert record is not None, "its row is locked, and its entries live as long as the row"
    submitted, depth, living, recorded = record
    return Parent(
        task_id=row.task_id,
        spec=spec_to_domain(ledger_pb2.EntryBody.FromString(submitted).submitted.spec),
        depth=depth,
        budgets=(draft.budget.budget, row.own_budget),
        living=living,
        is_to_end=row.ending is not None,
        tools_defined=_tool_names(draft, recorded),
    )


def _tool_names(draft: Draft, recorded: bytes | None) -> tuple[str, ...] | None:
    """Returns the names of the parent's tools, or None. A control function defines its tools in the commit of its first
    call.
    """
    bodies = [recorded, *(entry.body for entry in draft.entries if entry.kind == KINDS["tools_defined"])]
    if bodies[-1] is None:
        return None
    return tuple(tool.name for tool in ledger_pb2.EntryBody.FromString(bodies[-1]).tools_defined.tools)


async def _decide(
    connection: Connection, draft: Draft, call: ToolIntent, parent: Parent
) -> tuple[SpawnRequest, Share] | Outcome:
    try:
        spawn_request = read_spawn(call.arguments_json)
    except InvalidArguments as error:
        return unfit(f"The arguments do not fit {SPAWN_SUB_AGENTS}: {error}.")
    share = decide_spawn(spawn_request, parent)
    if isinstance(share, Outcome):
        return share
    ids = _ids(draft, call, spawn_request)
    names = {"task_ids": ids, "tenant": draft.row.tenant, "request_ids": [_request_id(one) for one in ids]}
    taken = await fetch_one(connection, SUB_AGENTS.taken, names)
    return _IDS_TAKEN if taken is not None and taken[0] else (spawn_request, share)


def _ids(draft: Draft, call: ToolIntent, spawn_request: SpawnRequest) -> list[str]:
    return [sub_agent_id(draft.row.task_id, call.call_id, index) for index in range(len(spawn_request.goals))]


def _request_id(task_id: str) -> str:
    return f"sub-agent/{task_id}"


def _ledger(row: NewTaskRow, spec: task_pb2.TaskSpec) -> NewLedger:
    """Returns the first entries of a sub-agent. It has no budget of its own: it uses its root's."""
    by = ledger_pb2.SpawnedBy(task_id=row.parent_task_id or "", call_id=row.spawn_call_id, index=row.spawn_index)
    submitted = ledger_pb2.TaskSubmitted(spec=spec, request_id=row.request_id, spawned_by=by)
    queued = ledger_pb2.StateTransition(to_state=STATES.to_wire(TaskState.QUEUED), reason=Reason.SPAWNED)
    bodies = ledger_pb2.EntryBody(submitted=submitted), ledger_pb2.EntryBody(transition=queued)
    return NewLedger(row.task_id, row.tenant, bodies, limits=None)


def _append_spawned(draft: Draft, call: ToolIntent, spawn_request: SpawnRequest, share: Share, ids: list[str]) -> None:
    seconds = draft.row.task_policy.timeouts.wait_seconds(WaitKind.SUB_AGENTS, spawn_request.deadline_seconds)
    spawned = ledger_pb2.SubAgentsSpawned(
        call_id=call.call_id,
        task_ids=ids,
        max_tokens=share.max_tokens,
        tools=allowlist_to_wire(share.tools),
        deadline_time=timestamp(draft.row.locked_at + timedelta(seconds=seconds)),
    )
    body = ledger_pb2.EntryBody(sub_agents_spawned=spawned).SerializeToString()
    draft.append(KINDS["sub_agents_spawned"], body, step=draft.row.step, actor=LEDGER, by_claim=False)
