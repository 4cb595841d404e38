"""The first write of the usual call: one statement records a batch of calls that have no record yet.

It accepts and never refuses. A call that it leaves out has a record already, or its claim is not the newest one:
accept.py decides it, with the rules of accept_rules.py, in a transaction. A call that can begin at once is marked
STARTED in the same statement, so it needs no second write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from services.tools.calls.accept_rules import RunCall, Verdict, decide_unknown
from services.tools.calls.records import CallRequest
from services.tools.calls.stops import StopView
from services.tools.statements import QUERIES
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql_arrays import Bools, Byteas, Column, Int8s, Texts, Uuids

FIRST_ATTEMPT: Final = RunCall(1)


async def accept_new_calls(
    postgres: Connection, batch: Sequence[CallRequest], starts: Sequence[bool], runner_id: UUID, stops: StopView
) -> list[Verdict | None]:
    """Records the calls of a batch that have no record and an admitted claim, as ACCEPTED by this runner, or STARTED.

    `starts`: the calls that begin at once. Returns `FIRST_ATTEMPT` for each recorded call, and None for each that is
    left to accept.py. The calls are durable when it returns. A repeat after a lost answer leaves out what the first one
    recorded.
    """
    verdicts: list[Verdict | None] = [None] * len(batch)
    ordinary = [
        place
        for place, request in enumerate(batch)
        if not request.has_recorded_key and decide_unknown(request) == FIRST_ATTEMPT
    ]
    if stops.in_force.stops:
        ordinary = [place for place in ordinary if stops.of(batch[place]) is None]
    if ordinary:
        parameters = {
            **_columns([batch[place] for place in ordinary]),
            "starts": Bools(starts[place] for place in ordinary),
            "runner_id": runner_id,
            "stop_epoch": stops.in_force.epoch,
        }
        rows = await (await postgres.execute(QUERIES.accept_new_calls, parameters)).fetchall()
        for (ordinal,) in rows:
            verdicts[ordinary[ordinal]] = FIRST_ATTEMPT
    return verdicts


def _columns(requests: Sequence[CallRequest]) -> dict[str, Column[Any]]:
    return {
        "task_ids": Uuids(request.key.task_id for request in requests),
        "tenants": Texts(request.claims.tenant for request in requests),
        "call_ids": Texts(request.key.call_id for request in requests),
        "tools": Texts(request.tool for request in requests),
        "effect_classes": Texts(request.effect_class.value for request in requests),
        "hashes": Byteas(request.arguments_hash for request in requests),
        "arguments": Byteas(request.arguments_json for request in requests),
        "epochs": Int8s(request.claims.epoch for request in requests),
        "claim_ids": Texts(request.claims.claim_id for request in requests),
        "acts_elsewhere": Bools(request.acts_elsewhere for request in requests),
    }
