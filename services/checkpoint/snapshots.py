"""Tasks as callers see them: the snapshot row, with the spec from the first entry and the root's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from services.checkpoint.begun_waits import shown_wait
from services.checkpoint.missing import missing
from services.checkpoint.queries import QUERIES, fetch_all
from services.checkpoint.resolving import calls_in_doubt
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.enums import STATES
from tenure.wire.in_doubt import calls_in_doubt_to_wire
from tenure.wire.times import optional_timestamp, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tenure.runtime.postgres import Connection


class _Snapshot(NamedTuple):
    """The columns of the statement `tasks_by_id`, in its order."""

    task_id: str
    tenant: str
    submitted: bytes
    state: str
    reason: str
    message: str
    attempt: int
    epoch: int
    owner: str
    step: int
    sequence: int
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    result: bytes
    claim_count: int
    ending_state: str
    parent_task_id: str | None
    root_task_id: str
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_retry_at: datetime | None
    deadline_at: datetime
    wait: bytes
    forked_from_task_id: str | None
    forked_from_sequence: int | None
    result_json: bytes
    own_nano_usd: int
    max_nano_usd: int
    used_nano_usd: int
    reserved_nano_usd: int
    unpriced_calls: int
    depth: int
    spawn_call_id: str
    spawn_index: int
    calls_in_doubt: list[str]

    def task(self) -> task_pb2.Task:
        state = TaskState(self.state)
        return task_pb2.Task(
            task_id=self.task_id,
            tenant=self.tenant,
            spec=ledger_pb2.EntryBody.FromString(self.submitted).submitted.spec,
            state=STATES.to_wire(state),
            reason=self.reason,
            message=self.message,
            attempt=self.attempt,
            epoch=self.epoch,
            owner=self.owner,
            step=self.step,
            sequence=self.sequence,
            usage=self._usage(),
            budget=self._budget(),
            result=self.result.decode(),
            claim_count=self.claim_count,
            cancel_requested=bool(self.ending_state) and state not in TERMINAL,
            parent_task_id=self.parent_task_id or "",
            root_task_id=self.root_task_id,
            create_time=timestamp(self.created_at),
            update_time=timestamp(self.updated_at),
            start_time=optional_timestamp(self.started_at),
            end_time=optional_timestamp(self.ended_at),
            next_retry_time=optional_timestamp(self.next_retry_at),
            deadline_time=timestamp(self.deadline_at),
            wait=shown_wait(self.wait),
            forked_from=self._forked_from(),
            result_json=self.result_json.decode(),
            depth=self.depth,
            spawn_call_id=self.spawn_call_id,
            spawn_index=self.spawn_index,
            used_nano_usd=self.own_nano_usd,
            calls_in_doubt=calls_in_doubt_to_wire(calls_in_doubt(self.calls_in_doubt)),
        )

    def _budget(self) -> task_pb2.BudgetStatus:
        return task_pb2.BudgetStatus(
            max_tokens=self.max_tokens,
            used_tokens=self.used_tokens,
            reserved_tokens=self.reserved_tokens,
            max_nano_usd=self.max_nano_usd,
            used_nano_usd=self.used_nano_usd,
            reserved_nano_usd=self.reserved_nano_usd,
            unpriced_calls=self.unpriced_calls,
        )

    def _forked_from(self) -> task_pb2.ForkedFrom | None:
        if self.forked_from_task_id is None:
            return None
        return task_pb2.ForkedFrom(task_id=self.forked_from_task_id, sequence=self.forked_from_sequence or 0)

    def _usage(self) -> task_pb2.TokenUsage:
        return task_pb2.TokenUsage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_creation_input_tokens=self.cache_creation_input_tokens,
            cache_read_input_tokens=self.cache_read_input_tokens,
        )


async def read_tasks(connection: Connection, tenant: str, task_ids: Sequence[str]) -> list[task_pb2.Task]:
    """The tenant's tasks among these, in this order."""
    rows: list[tuple[Any, ...]] = await fetch_all(
        connection, QUERIES.tasks_by_id, {"task_ids": list(task_ids), "tenant": tenant}
    )
    return [_Snapshot(*columns).task() for columns in rows]


async def read_task(connection: Connection, tenant: str, task_id: str) -> task_pb2.Task:
    """The task. NotFound also when it is another tenant's: the two are not told apart."""
    found = await read_tasks(connection, tenant, [task_id])
    if not found:
        raise await missing(connection, tenant, task_id)
    return found[0]
