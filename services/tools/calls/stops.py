"""The stops of operators in this service: what each replica knows of them, and how a stop reaches its calls.

Each accept and each start compares the epoch of the stops in its own statement, and writes nothing under another epoch
than the one by whose stops its replica decided. `StopKeeper.take` commits a stop, then waits for the transactions that
had begun before it. So no call that the stop covers begins after its answer, and no statement waits for a stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from services.tools.calls.records import CallRequest
from services.tools.calls.runs import STOPPING_SECONDS, RunningCall, RunningCalls, StopReason
from services.tools.statements import QUERIES, like
from tenure.domain.errors import Unavailable
from tenure.domain.stops import Stop, StopsInForce, Subject, certainty_of
from tenure.domain.tools import CallState, EffectClass
from tenure.runtime.process import rest
from tenure.runtime.store.barrier import earlier_have_ended
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.wire.common import EFFECT_CLASSES
from tenure.wire.stops import CERTAINTIES

_log: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 0.2
BARRIER_SECONDS: Final = 3.0
MAX_CALLS: Final = 1000


class StopView:
    """The stops in force as this replica last read them."""

    def __init__(self) -> None:
        self.in_force = StopsInForce()

    def of(self, request: CallRequest) -> Stop | None:
        """Returns a stop that covers the call."""
        return covering(self.in_force, request)

    def stop_covered(self, run: RunningCall, in_force: StopsInForce | None = None) -> bool:
        """Stops a run that a stop covers and that may run again. An UNSAFE call that has begun may finish.

        `in_force`: the stops, if the caller has read them itself.
        """
        stop = covering(self.in_force if in_force is None else in_force, run.request)
        if stop is None or run.stop is not None or run.effect is None or not run.request.effect_class.may_run_again:
            return False
        run.stopped_by = stop
        run.request_stop(StopReason.STOPPED)
        return True

    async def refresh(self, postgres: Connection) -> StopsInForce:
        """Reads the stops, and returns them: another read, of an earlier moment, may replace `in_force` at any time."""
        return self.take(await (await postgres.execute(QUERIES.read_stops)).fetchall())

    def take(self, rows: Sequence[tuple[Any, ...]]) -> StopsInForce:
        """Takes the rows of `read_stops`, and returns them as stops."""
        epoch: int = rows[0][0]
        if epoch != self.in_force.epoch:
            self.in_force = StopsInForce(epoch, tuple(Stop(*row[1:]) for row in rows if row[1] is not None))
        return self.in_force


def covering(in_force: StopsInForce, request: CallRequest) -> Stop | None:
    """Returns a stop that covers the call."""
    claims = request.claims
    return in_force.of_call(Subject(claims.tenant, claims.agent, claims.queue), request.tool)


class StopKeeper:
    """Takes stops for all replicas, and cancels the covered calls of this one. The duty is `follow`."""

    def __init__(self, pool: Pool, runs: RunningCalls, view: StopView) -> None:
        self._pool, self._runs, self._view = pool, runs, view

    async def take(self, epoch: int, stops: Sequence[Stop]) -> StopsInForce:
        """Takes the ledger's stops, if they are newer. Returns those that this service keeps to.

        Raises Unavailable (STOP_UNCONFIRMED) when a transaction that began before does not end: repeat the request.
        """
        await in_transaction(self._pool, lambda postgres: _replace(postgres, epoch, stops))
        if not await earlier_have_ended(self._pool, BARRIER_SECONDS):
            message = (
                f"a transaction of the tool service from before the stop has not ended within {BARRIER_SECONDS:g} s"
            )
            raise Unavailable(f"{message}: repeat the request", reason="STOP_UNCONFIRMED")
        await self._refresh()
        if effects := self._cancel_covered():
            await asyncio.wait(effects, timeout=STOPPING_SECONDS)
        return self._view.in_force

    async def follow(self) -> None:
        """Follows the stops that other replicas took, as a duty."""
        while True:
            await self._refresh()
            if self._view.in_force.stops:  # also those whose start was on its way when the stop came
                self._cancel_covered()
            await rest(POLL_SECONDS)

    async def _refresh(self) -> None:
        async with pool_connection(self._pool) as postgres:
            await self._view.refresh(postgres)

    def _cancel_covered(self) -> set[asyncio.Task[Any]]:
        """Cancels the covered calls that may run again, and returns their effects."""
        covered = [run for run in self._runs.running() if self._view.stop_covered(run)]
        return {run.effect for run in covered if run.effect is not None}


async def _replace(postgres: Connection, epoch: int, stops: Sequence[Stop]) -> None:
    raised = await (await postgres.execute(QUERIES.raise_stop_epoch, {"epoch": epoch})).fetchall()
    if not raised:
        return
    await postgres.execute(QUERIES.clear_stops, {})
    if stops:
        columns = {
            "tenants": [stop.tenant for stop in stops],
            "agents": [stop.agent for stop in stops],
            "queues": [stop.queue for stop in stops],
            "tools": [stop.tool for stop in stops],
            "reasons": [stop.reason for stop in stops],
            "actors": [stop.stopped_by for stop in stops],
            "stopped_ats": [stop.stop_time for stop in stops],
            "epochs": [stop.epoch for stop in stops],
            "by_quotas": [stop.by_quota for stop in stops],
        }
        await postgres.execute(QUERIES.insert_stops, columns)


async def list_calls_in_flight(
    pool: Pool, task_ids: Sequence[str], since: datetime, tool: str
) -> tools_pb.ListCallsInFlightResponse:
    """Returns the calls of these tasks that were in flight at a time, with what is certain of each.

    Those without an outcome come first, so that ended ones do not take their places among MAX_CALLS.
    """
    ids = [UUID(task_id) for task_id in task_ids]
    parameters = {"task_ids": ids, "since": since, "tool": like(tool) or "%", "most": MAX_CALLS + 1}
    async with pool_connection(pool) as postgres:
        rows = await (await postgres.execute(QUERIES.calls_in_flight, parameters)).fetchall()
    calls = map(_in_flight, rows[:MAX_CALLS])
    return tools_pb.ListCallsInFlightResponse(calls=calls, more=len(rows) > MAX_CALLS)


def _in_flight(row: tuple[Any, ...]) -> admin_pb.CallInFlight:
    task_id, tenant, call_id, tool, effect_class, state, is_run, begun_before = row
    certainty = certainty_of(CallState(state), EffectClass(effect_class), is_run=is_run, begun_before=begun_before)
    return admin_pb.CallInFlight(
        task_id=task_id,
        tenant=tenant,
        call_id=call_id,
        tool=tool,
        effect_class=EFFECT_CLASSES.to_wire(EffectClass(effect_class)),
        certainty=CERTAINTIES.to_wire(certainty),
    )
