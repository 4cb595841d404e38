"""The first write of the usual call: one statement records a batch of calls that have no record yet.

It accepts and never refuses. A call that it leaves out has a record already, or its claim is not the newest one:
accept.py decides it, with the rules of accept_rules.py, in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from services.tools.calls.accept_rules import RunCall, Verdict, decide_unknown
from services.tools.calls.records import CallRequest
from services.tools.statements import QUERIES
from tenure.runtime.postgres import Connection

FIRST_ATTEMPT: Final = RunCall(1)


async def accept_new_calls(postgres: Connection, batch: Sequence[CallRequest], runner_id: UUID) -> list[Verdict | None]:
    """Records the calls of a batch that have no record and an admitted claim, as ACCEPTED by this runner.

    Returns `FIRST_ATTEMPT` for each recorded call, and None for each that is left to accept.py. The calls are durable
    when it returns. A repeat after a lost answer leaves out what the first one recorded.
    """
    verdicts: list[Verdict | None] = [None] * len(batch)
    ordinary = [place for place, request in enumerate(batch) if decide_unknown(request) == FIRST_ATTEMPT]
    if ordinary:
        parameters = {**_columns([batch[place] for place in ordinary]), "runner_id": runner_id}
        rows = await (await postgres.execute(QUERIES.accept_new_calls, parameters)).fetchall()
        for (ordinal,) in rows:
            verdicts[ordinary[ordinal]] = FIRST_ATTEMPT
    return verdicts


def _columns(requests: Sequence[CallRequest]) -> dict[str, list[object]]:
    return {
        "task_ids": [request.key.task_id for request in requests],
        "tenants": [request.claims.tenant for request in requests],
        "call_ids": [request.key.call_id for request in requests],
        "tools": [request.tool for request in requests],
        "effect_classes": [request.effect_class.value for request in requests],
        "hashes": [request.arguments_hash for request in requests],
        "arguments": [request.arguments_json for request in requests],
        "epochs": [request.fence.epoch for request in requests],
        "claim_ids": [request.fence.claim_id for request in requests],
        "acts_elsewhere": [request.acts_elsewhere for request in requests],
    }
