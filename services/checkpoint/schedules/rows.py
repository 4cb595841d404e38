"""The row of a schedule and the records of its runs, in the database and as messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.columns import Unlisted, Uuid, select_list
from services.checkpoint.queries import fetch_all, fetch_one
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.schedules import RunOutcome, RunReason, Times, check_cron, read_zone, run_id_of
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.codec import writer

RUNS_KEPT: Final = 100
ACTIVE_AT_ONCE: Final = 100


class ScheduleRow(NamedTuple):
    """A schedule. `now` is the database's time, `waiting_runs` a count."""

    schedule_id: Uuid
    tenant: str
    name: str
    request_hash: bytes
    spec: bytes
    cron: str
    time_zone: str
    overlap_policy: str
    catch_up_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    paused: bool
    pause_reason: str
    pause_actor: str
    next_due_at: datetime | None
    started_runs: int
    skipped_runs: int
    failed_runs: int
    problem: str
    created_at: datetime
    updated_at: datetime
    revision: int
    now: Unlisted[datetime]
    waiting_runs: Unlisted[int]

    @property
    def times(self) -> Times:
        """The schedule's times. Raises WrongState (UNKNOWN_TIME_ZONE, UNREADABLE_CRON): the schedule may come from a
        server with other time zone data, or with another reader of cron expressions.
        """
        try:
            zone = read_zone(self.time_zone)
        except ValueError:
            raise WrongState(
                f"the schedule's time zone {self.time_zone} is not in the time zone data of this server: update the"
                " schedule with another time zone, or update the package tzdata of the server",
                reason="UNKNOWN_TIME_ZONE",
                metadata={"time_zone": self.time_zone},
            ) from None
        try:
            check_cron(self.cron)
        except ValueError as error:
            raise WrongState(
                f"the schedule's cron expression {self.cron} cannot be read ({error}): update it with another one",
                reason="UNREADABLE_CRON",
                metadata={"cron": self.cron},
            ) from None
        return Times(self.cron, zone, self.starts_at, self.ends_at)

    def schedule(self) -> pb.Schedule:
        """Returns the schedule as callers see it."""
        return _schedule_to_wire(self._replace(next_due_at=None) if self.paused else self)


_schedule_to_wire = writer(
    ScheduleRow,
    pb.Schedule,
    rename={"starts_at": "start_time", "ends_at": "end_time", "catch_up_seconds": "catch_up_window"},
    skip="now tenant request_hash",
)


SCHEDULES: Final = Queries.load("services.checkpoint", "sql/schedules.sql", {"schedule": select_list(ScheduleRow, "s")})


class _Run(NamedTuple):
    """The columns of `runs`, in their order."""

    source_run_id: str
    due_at: datetime
    outcome: str
    reason: str
    message: str
    due_times: int
    task_id: str
    task_state: str
    recorded_at: datetime


_run_to_wire = writer(_Run, pb.ScheduleRun)


@dataclass(slots=True)
class RunRecord:
    """The schedule runs that one transaction decided; written at its end."""

    schedule_id: str
    rows: list[tuple[str, str, str, str, str, int, str]] = field(default_factory=list)

    def add(
        self,
        due: datetime,
        outcome: RunOutcome,
        reason: RunReason | None = None,
        message: str = "",
        *,
        due_times: int = 1,
        task_id: str = "",
        source_run_id: str = "",
    ) -> None:
        """Adds one run. `source_run_id`: of a trigger."""
        run_id = source_run_id or run_id_of(due)
        self.rows.append((run_id, due.isoformat(), outcome, reason or "", message, due_times, task_id))

    def count(self, outcome: RunOutcome) -> int:
        """Returns how many due times had this outcome."""
        return sum(row[5] for row in self.rows if row[2] == outcome)

    async def write(self, connection: Connection) -> None:
        """Writes the runs, and prunes older ones beyond the number to keep. Call `read_active` before: a run whose task
        has ended is pruned only once it is seen to have ended.
        """
        if not self.rows:
            return
        names = ("source_run_ids", "due_ats", "outcomes", "reasons", "messages", "due_times", "task_ids")
        columns = dict(zip(names, map(list, zip(*self.rows, strict=True)), strict=True))
        await connection.execute(SCHEDULES.record, {"schedule_id": self.schedule_id, **columns})
        await connection.execute(SCHEDULES.prune, {"schedule_id": self.schedule_id, "kept": RUNS_KEPT})


async def read_schedule(connection: Connection, tenant: str, id_or_name: str, *, lock: bool = False) -> ScheduleRow:
    """Returns a schedule by id or name. Raises NotFound, also for another tenant's schedule."""
    statement = SCHEDULES.lock if lock else SCHEDULES.find
    row = await fetch_one(connection, statement, {"tenant": tenant, **_named(id_or_name)})
    if row is None:
        raise NotFound(f"schedule {id_or_name} not found", reason="SCHEDULE_NOT_FOUND")
    return ScheduleRow(*row)


async def read_active(connection: Connection, schedule_id: str) -> list[str]:
    """Returns the live tasks of the schedule, a bounded number of them; its other runs are not active any more."""
    parameters = {"schedule_id": schedule_id, "limit": ACTIVE_AT_ONCE}
    return [task_id for (task_id,) in await fetch_all(connection, SCHEDULES.active_tasks, parameters)]


async def read_runs(connection: Connection, schedule_id: str, limit: int) -> list[pb.ScheduleRun]:
    """Returns runs, newest first."""
    rows: list[tuple[Any, ...]] = await fetch_all(
        connection, SCHEDULES.runs, {"schedule_id": schedule_id, "limit": limit}
    )
    return [_run_to_wire(_Run(*columns)) for columns in rows]


def _named(id_or_name: str) -> dict[str, str]:
    """Returns the parameters for an id or a name. By the contract a name is never a UUID."""
    try:
        return {"schedule_id": str(UUID(id_or_name)), "name": ""}
    except ValueError:
        return {"schedule_id": "", "name": id_or_name}
