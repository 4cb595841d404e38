"""Prunes ended tasks when their retention is over or an operator asks for it: first the task row, then its other rows.

One transaction deletes the task row and writes a row of `prunings` in its place. From then on the ledger does not know
the task: no commit, requeue or grant can touch it. That row leads to everything that remains, after any crash: the
entries and the tool service's records (both clearing.py). Bills are never touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final, NamedTuple

from services.checkpoint.commit.draft import LEDGER, clean
from services.checkpoint.not_found import task_not_found, was_pruned
from services.checkpoint.queries import RETENTION, fetch_all, fetch_one
from services.checkpoint.retention_rules import retention_text
from tenure.domain.errors import WrongState
from tenure.domain.states import TERMINAL, TaskState
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.wire.common import moment

_log: Final = logging.getLogger(__name__)
TASKS_A_BATCH: Final = 100
LONGEST_INTERVAL_SECONDS: Final = 60.0


class _PruningRecord(NamedTuple):
    """The recorded actor and reason of a pruning."""

    actor: str
    reason: str


class _Due(NamedTuple):
    """Tasks that can be pruned now. `more`: there may be others, among them those that another transaction holds."""

    task_ids: list[str]
    more: bool


class TaskPruner:
    """Prunes tasks by age. Any number of replicas may run it: each takes tasks that no other has locked."""

    def __init__(self, pool: Pool, kept_seconds: float) -> None:
        self._pool = pool
        self._kept_seconds = kept_seconds
        self._record = _PruningRecord(LEDGER, f"ended tasks are kept for {retention_text(kept_seconds)}")
        self._interval_seconds = min(LONGEST_INTERVAL_SECONDS, max(0.1, kept_seconds / 10))
        self._pruned = metrics.cell("tenure_pruned_tasks_total", by="retention")

    async def run(self) -> None:
        """Runs as a duty until cancelled. After a full batch it pauses as long as that took, to use at most half of the
        time.
        """
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            pruned = await self.prune_once()
            rest_seconds = clock() - began if pruned == TASKS_A_BATCH else self._interval_seconds
            await rest(rest_seconds * random.uniform(0.8, 1.2))

    async def prune_once(self) -> int:
        """Prunes one batch and returns the number of tasks."""
        parameters = {"kept_seconds": self._kept_seconds, "limit": TASKS_A_BATCH}

        async def work(connection: Connection) -> int:
            due = await _due(connection, RETENTION.due_by_age, parameters)
            await _prune(connection, due.task_ids, self._record)
            return len(due.task_ids)

        pruned = await in_transaction(self._pool, work)
        if pruned:
            await _after_prune()
        self._pruned.value += pruned
        return pruned


async def prune_for_operator(
    pool: Pool, tenant: str, request: admin_pb.PruneTasksRequest
) -> admin_pb.PruneTasksResponse:
    """Prunes tasks now, or only lists them (dry run). Raises NotFound or WrongState."""
    limit = request.limit or TASKS_A_BATCH

    async def work(connection: Connection) -> _Due:
        if request.WhichOneof("which") == "task_id":
            if not request.dry_run and await was_pruned(connection, tenant, request.task_id):
                return _Due([], more=False)
            due = _Due([await _one(connection, tenant, request.task_id)], more=False)
        else:
            ended = {"tenant": tenant, "ended_before": moment(request.ended_before).isoformat(), "limit": limit}
            due = await _due(connection, RETENTION.due_before, ended)
        if not request.dry_run:
            await _prune(connection, due.task_ids, _PruningRecord(clean(request.actor), clean(request.reason)))
        return due

    chosen, more = await in_transaction(pool, work)
    if not request.dry_run and chosen:
        await _after_prune()
        metrics.count("tenure_pruned_tasks_total", len(chosen), by="operator")
        _log.warning("an operator pruned tasks", extra=_log_fields(tenant, request, chosen))
    if request.WhichOneof("which") == "task_id":
        return admin_pb.PruneTasksResponse(task_ids=[request.task_id])
    return admin_pb.PruneTasksResponse(task_ids=chosen, more=more)


async def _due(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> _Due:
    """Returns tasks to prune, locked together with the rest of their trees until the transaction ends.

    A tree that another transaction has locked is left for later: it may be requeueing one of its tasks. Where all are
    left, `more` is false: a repeat at once would find the same.
    """
    rows = await fetch_all(connection, statement, parameters)
    roots = {root_task_id for _, root_task_id, has_family in rows if has_family}
    free: set[str] = set()
    if roots:
        held = await fetch_all(connection, RETENTION.hold_families, {"root_task_ids": sorted(roots)})
        free = {root_task_id for (root_task_id,) in held}
        free -= await _living(connection, sorted(free))
    task_ids = [task_id for task_id, root_task_id, has_family in rows if not has_family or root_task_id in free]
    return _Due(task_ids, more=bool(task_ids) and len(rows) == parameters["limit"])


async def _living(connection: Connection, root_task_ids: list[str]) -> set[str]:
    rows = await fetch_all(connection, RETENTION.living_families, {"root_task_ids": root_task_ids})
    return {root_task_id for (root_task_id,) in rows}


async def _one(connection: Connection, tenant: str, task_id: str) -> str:
    row = await fetch_one(connection, RETENTION.lock_one, {"task_id": task_id, "tenant": tenant})
    if row is None:
        raise await task_not_found(connection, tenant, task_id)
    state, root_task_id = row
    await connection.execute(RETENTION.hold_family, {"root_task_id": root_task_id})
    if TaskState(state) not in TERMINAL or await _living(connection, [root_task_id]):
        problem = "another task of its tree has not ended" if TaskState(state) in TERMINAL else f"it is {state}"
        raise WrongState(f"only an ended task can be pruned: {problem}", metadata={"state": state})
    return task_id


async def _prune(connection: Connection, task_ids: list[str], record: _PruningRecord) -> None:
    """Prunes tasks that this transaction has locked."""
    if task_ids:
        await failpoint("checkpoint.before_prune")
        parameters: dict[str, Any] = {"task_ids": task_ids, "actor": record.actor, "reason": record.reason}
        await connection.execute(RETENTION.prune, parameters)


async def _after_prune() -> None:
    """Failpoint: the tasks are gone, their other rows remain."""
    await failpoint("checkpoint.after_prune")


def _log_fields(tenant: str, request: admin_pb.PruneTasksRequest, task_ids: list[str]) -> dict[str, object]:
    return {
        "tenant": tenant,
        "actor": request.actor,
        "reason": request.reason,
        "tasks": len(task_ids),
        "first_task": task_ids[0],
    }
