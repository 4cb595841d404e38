"""Reads the results of a run of `scale` from the ledger and the effects: pickups, takeovers, lost and repeated work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.checkpoint.entries import KINDS
from tenure.domain.states import Reason, TaskState
from tenure.runtime.postgres import Pool
from tenure.runtime.postgres import connection as pool_connection

LOST: Final = (Reason.WORKER_LOST, Reason.LEASE_EXPIRED, Reason.CLAIM_LOST)
"""The reasons with which a coordinator puts the task of a lost worker back into the queue."""
TAKEOVER_SECONDS: Final = 30.0
"""A task that is put back later than this after a kill was lost for another reason."""
_STARTS: Final = """
select was.reason, extract(epoch from was.changed_at)::float8, extract(epoch from now.changed_at)::float8
  from (select *, lag(sequence) over (partition by task_id order by sequence) as before from changes) as now
  join changes was on was.task_id = now.task_id and was.sequence = now.before
 where now.state = 'RUNNING' and was.state = 'QUEUED' and now.changed_at >= to_timestamp(%b::float8)
"""
_SEQUENCES: Final = "select task_id::text, state, sequence from tasks where task_id = any(%b::text[]::uuid[])"
_ANSWERED_TWICE: Final = """
select count(*)::int
  from (select from entries where kind = %b group by task_id, step having count(*) > 1) as repeated
"""
_MODEL_CALLS: Final = """
with calls as (
  select task_id, count(*) as made, count(distinct step) as steps from entries where kind = %b group by 1
), losses as (
  select task_id, count(*) as lost from changes where state = 'QUEUED' and reason = any(%b::text[]) group by 1
)
select coalesce(sum(made), 0)::int, coalesce(sum(made - steps), 0)::int,
       (count(*) filter (where made - steps > coalesce(lost, 0)))::int
  from calls left join losses using (task_id)
"""
_STEPS: Final = "select coalesce(sum(step), 0)::int from tasks"
_RUNNING: Final = "select count(*)::int from tasks where state = %b"


@dataclass(frozen=True, slots=True)
class Start:
    """A task that left the queue. `queued_at` and `running_at` are seconds since 1970, by Postgres's clock."""

    reason: str
    queued_at: float
    running_at: float

    @property
    def seconds(self) -> float:
        return self.running_at - self.queued_at


@dataclass(frozen=True, slots=True)
class Takeovers:
    """The seconds of each takeover: from the kill, and from the ledger's record that the worker is lost."""

    from_kill: list[float]
    from_detection: list[float]


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """The model calls of a run. `beyond`: the tasks that repeated more calls than they lost workers."""

    made: int
    repeated: int
    beyond: int


def is_takeover(start: Start) -> bool:
    return start.reason in LOST


def takeovers(starts: Sequence[Start], kills: Sequence[float]) -> Takeovers:
    """Returns the takeovers after kills, each counted from the last kill before the task was put back."""
    result = Takeovers([], [])
    for start in filter(is_takeover, starts):
        killed_at = max((kill for kill in kills if kill <= start.queued_at), default=None)
        if killed_at is not None and start.queued_at - killed_at <= TAKEOVER_SECONDS:
            result.from_kill.append(start.running_at - killed_at)
            result.from_detection.append(start.seconds)
    return result


def repeated_lines(records: Path) -> int:
    """Returns how many effects happened again: lines of append_record with the key of an earlier line of the file."""
    repeated = 0
    for file in records.rglob("*.jsonl"):
        keys = Counter(json.loads(line)["key"] for line in file.read_text().splitlines())
        repeated += keys.total() - len(keys)
    return repeated


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Reads the ledger's tables."""

    pool: Pool

    async def starts(self, since: float) -> list[Start]:
        """Returns all moves from QUEUED to RUNNING since a time."""
        return [Start(*row) for row in await self._read(_STARTS, since)]

    async def tasks(self, task_ids: Sequence[str]) -> dict[str, tuple[TaskState, int]]:
        """Returns the state and the sequence of each task that exists."""
        rows = await self._read(_SEQUENCES, list(task_ids))
        return {task_id: (TaskState(state), sequence) for task_id, state, sequence in rows}

    async def model_calls(self) -> ModelCalls:
        (row,) = await self._read(_MODEL_CALLS, KINDS["model_attempt"], list(LOST))
        return ModelCalls(*row)

    async def answered_twice(self) -> int:
        """Returns the steps with more than one answer of the model in the ledger."""
        return await self._number(_ANSWERED_TWICE, KINDS["assistant_message"])

    async def steps(self) -> int:
        return await self._number(_STEPS)

    async def running(self) -> int:
        return await self._number(_RUNNING, TaskState.RUNNING)

    async def _number(self, statement: str, *parameters: Any) -> int:
        ((number,),) = await self._read(statement, *parameters)
        return int(number)

    async def _read(self, statement: str, *parameters: Any) -> list[Any]:
        async with pool_connection(self.pool) as connection:
            return await (await connection.execute(statement, parameters)).fetchall()
