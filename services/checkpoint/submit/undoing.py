"""PlanUndo and UndoTask: lists the effects of a task, and creates the task that undoes them.

The plan is made from the ledger under the lock of the task's row, so that a caller chooses no call and no argument. A
row of `undone_calls` is the exclusive right of one undo to a call: two people at once, a repeat of a request and the
policy on_failure get only calls that no other undo has or has undone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.entries import read_page
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import QUERIES, UNDOS, fetch_all, fetch_one
from services.checkpoint.reads import position_of, read_task
from services.checkpoint.submit.create import CreateResult, Submit, create_in, in_creation
from services.checkpoint.submit.undone_history import tell_agent
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.effects_of_task import PLAN_KINDS, EffectsOfTask, Present
from tenure.domain.entries import Entry, ToolOutcome, ToolsDefined
from tenure.domain.errors import AlreadyExists, WrongState
from tenure.domain.replay import check_no_replay
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Priority, UndoCall
from tenure.domain.tools import Outcome, ToolDefinition
from tenure.domain.undo import (
    MAX_CALLS,
    EarlierUndo,
    TaskEffect,
    newest_that_fit,
    obstacle_of,
    outcomes_of_undo,
    plan_digest,
    plan_undo,
    refuse_plan,
    spec_of_undo,
    too_large,
    undoable,
    undone_calls,
)
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.ledger import read_entries
from tenure.wire.task import spec_to_domain, spec_to_wire
from tenure.wire.undo import effect_to_wire, present_to_domain

_log: Final = logging.getLogger(__name__)


class _Source(NamedTuple):
    """The task whose effects are undone, as its row is now. `tools`: those that it may call; None: all."""

    task_id: str
    state: TaskState
    queue: str
    priority: Priority
    tools: list[str] | None


async def plan(pool: Pool, tenant: str, request: tasks_pb.PlanUndoRequest) -> tasks_pb.PlanUndoResponse:
    """Returns the effects of a task. Raises NotFound and WrongState (UNDO_TOO_LARGE)."""
    async with pool_connection(pool) as connection:
        source = await _source(connection, UNDOS.unlocked_source, tenant, request.task_id)
        planned = await _plan(connection, tenant, source, request.since_step, present_to_domain(request))
    effects = planned.effects
    if not planned.is_whole or newest_that_fit(effects) != effects:
        raise too_large()
    return tasks_pb.PlanUndoResponse(
        effects=map(effect_to_wire, effects),
        plan_digest=plan_digest(effects),
        obstacle=obstacle_of(source.state, request.since_step),
        declarations_unchecked=not request.present_tools,
    )


async def undo_task(pool: Pool, tenant: str, request: tasks_pb.UndoTaskRequest, defaults: TaskDefaults) -> CreateResult:
    """Creates an undo, or returns the one that the request id created before.

    Raises NotFound, AlreadyExists (REQUEST_ID_REUSED), LimitReached, and WrongState (WRONG_STATE, PLAN_CHANGED,
    NOTHING_TO_UNDO, UNDO_TOO_LARGE).
    """

    async def work(connection: Connection) -> CreateResult:
        return await undo_in(connection, tenant, request, defaults)

    return await in_creation(lambda: in_transaction(pool, work))


async def undo_in(
    connection: Connection,
    tenant: str,
    request: tasks_pb.UndoTaskRequest,
    defaults: TaskDefaults,
    *,
    may_refuse: bool = True,
) -> CreateResult:
    """Creates an undo within the caller's transaction.

    Without `may_refuse`, a quota delays it but never refuses it, and of too many effects it takes the newest.
    """
    source = await _source(connection, UNDOS.lock_source, tenant, request.task_id)
    if (earlier := await _earlier_result(connection, tenant, request)) is not None:
        return earlier
    if obstacle := obstacle_of(source.state, request.since_step):
        raise WrongState(obstacle, metadata={"state": source.state.value})
    waiting = None if source.state in TERMINAL else await _locked(connection, request.task_id)
    planned = await _plan(connection, tenant, source, request.since_step, present_to_domain(request))
    effects, is_whole = planned.effects, planned.is_whole
    fitting = newest_that_fit(effects)
    if not may_refuse and any(undoable(fitting)):  # no person would repeat a refused undo: it takes what it can
        effects, is_whole = fitting, is_whole and fitting == effects
    if refusal := refuse_plan(effects, request.plan_digest, is_whole=is_whole or not may_refuse):
        raise refusal
    spec = spec_of_undo(
        spec_to_domain((await read_task(connection, tenant, request.task_id)).spec),
        request.task_id,
        effects,
        source.queue,
        source.priority,
        go_on=request.go_on,
        is_whole=is_whole,
    )
    create = pb.CreateTaskRequest(request_id=request.request_id, spec=spec_to_wire(spec))
    created = await create_in(connection, Submit(tenant, create), defaults, may_refuse=may_refuse)
    await _take_calls(connection, request.task_id, created.task.task_id, effects, planned.ended)
    if waiting is not None:
        created.announcement.add(await tell_agent(connection, waiting, effects))
    if not is_whole:
        _log.warning(
            "an undo by policy takes the newest effects only: undo the task again",
            extra={"task": request.task_id, "undo": created.task.task_id, "most": MAX_CALLS},
        )
    return created


async def _source(connection: Connection, statement: bytes, tenant: str, task_id: str) -> _Source:
    row = await fetch_one(connection, statement, {"task_id": task_id, "tenant": tenant})
    if row is None:
        raise await task_not_found(connection, tenant, task_id)
    check_no_replay(row[5], "it has no effects that could be undone")
    return _Source(task_id, TaskState(row[0]), row[1], Priority(row[2]), row[4])


async def _locked(connection: Connection, task_id: str) -> Draft:
    """Locks a task that goes on, with its budget."""
    tasks, budgets = await lock_tasks(connection, [task_id])
    return Draft(tasks[task_id], budgets[tasks[task_id].root_task_id])


async def _earlier_result(
    connection: Connection, tenant: str, request: tasks_pb.UndoTaskRequest
) -> CreateResult | None:
    """Returns the undo of the same request id. Raises AlreadyExists when another request had it."""
    row = await fetch_one(connection, QUERIES.find_request, {"tenant": tenant, "request_id": request.request_id})
    if row is None:
        return None
    task = await read_task(connection, tenant, row[0])
    if task.undo_of != request.task_id:
        message = "this request_id was used for another task: use a new request_id"
        raise AlreadyExists(message, reason="REQUEST_ID_REUSED", metadata={"task_id": task.task_id})
    return CreateResult(task, Announcement())


async def _take_calls(
    connection: Connection, task_id: str, undo_task_id: str, effects: Sequence[TaskEffect], ended: Sequence[str]
) -> None:
    """Gives the calls to the undo. The row of the task is locked, so only a fault could leave one to another undo."""
    wanted = {effect.call_id for effect in undoable(effects)}
    taken = await fetch_all(
        connection,
        UNDOS.take_calls,
        {"task_id": task_id, "undo_task_id": undo_task_id, "call_ids": sorted(wanted), "ended": list(ended)},
    )
    if {call_id for (call_id,) in taken} != wanted:
        raise WrongState("another undo has an effect of this one: read the list again", reason="PLAN_CHANGED")


# The plan.


class _Plan(NamedTuple):
    """`is_whole`: it has all effects that can be undone. `ended`: the undos whose calls a new undo may take."""

    effects: tuple[TaskEffect, ...]
    is_whole: bool
    ended: list[str]


async def _plan(
    connection: Connection, tenant: str, source: _Source, since_step: int, present: Present | None
) -> _Plan:
    rows = await fetch_all(connection, UNDOS.undos_of, {"task_id": source.task_id})
    undos = {undo_id: None if state is None else TaskState(state) for _, undo_id, state in rows}
    outcomes = {undo_id: await _outcomes(connection, tenant, undo_id) for undo_id, state in undos.items() if state}
    earlier = {
        call_id: _earlier(call_id, undo_id, undos[undo_id], outcomes.get(undo_id)) for call_id, undo_id, _ in rows
    }
    effects = EffectsOfTask(since_step, present, undone_calls(earlier))
    async for entry in _entries(connection, tenant, source.task_id, PLAN_KINDS):
        effects.add(entry)
    ended = [undo_id for undo_id, state in undos.items() if state in TERMINAL]
    return _Plan(plan_undo(effects.newest_first(), earlier, present, source.tools), effects.is_whole, ended)


async def _entries(connection: Connection, tenant: str, task_id: str, kinds: Sequence[str]) -> AsyncIterator[Entry]:
    """Yields the entries of some kinds, page by page."""
    until, after = (await position_of(connection, tenant, task_id)).sequence, 0
    while page := await read_page(connection, task_id, after=after, until=until, kinds=kinds):
        for entry in read_entries(page):
            yield entry
        after = page[-1].sequence


class _Undone(NamedTuple):
    """What an undo did, by the undone call: its calls, their outcomes, and whose tools may be called twice."""

    calls: Mapping[str, UndoCall]
    outcomes: Mapping[str, Outcome]
    may_run_again: frozenset[str]


def _earlier(call_id: str, undo_id: str, state: TaskState | None, undone: _Undone | None) -> EarlierUndo:
    if undone is None:
        return EarlierUndo(undo_id, state)
    made, outcome = undone.calls[call_id], undone.outcomes.get(call_id)
    may_run_again = call_id in undone.may_run_again
    return EarlierUndo(undo_id, state, outcome, may_run_again, made.tool, made.arguments_json)


async def _outcomes(connection: Connection, tenant: str, undo_id: str) -> _Undone:
    work = spec_to_domain((await read_task(connection, tenant, undo_id)).spec).undo
    assert work is not None, "only undos have rows of undone calls"
    outcomes: dict[str, Outcome] = {}
    tools: dict[str, ToolDefinition] = {}
    async for entry in _entries(connection, tenant, undo_id, ("tools_defined", "tool_outcome")):
        match entry.body:
            case ToolsDefined(tools=defined):
                tools = {tool.name: tool for tool in defined}
            case ToolOutcome(call_id=name, outcome=outcome):
                outcomes[name] = outcome
            case _:
                pass
    again = {call.call_id for call in work.calls if call.tool in tools and tools[call.tool].effect_class.may_run_again}
    calls = {call.call_id: call for call in work.calls}
    return _Undone(calls, outcomes_of_undo(work, outcomes), frozenset(again))
