"""Lists call records for the ledger after a restore, and puts lost calls in doubt, for an operator.

A restored database may lack the record of a call that ran. Without the record the call would run again. So the record
is made anew, in doubt: then a person decides, as for a call whose runner was lost.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from services.tools.statements import QUERIES
from tenure.runtime.store.postgres import Connection as PostgresConnection
from tenure.runtime.store.postgres import Pool, in_transaction, pool_connection
from tenure.runtime.store.sql import Queries

RESTORE: Final = Queries.load("services.tools", "sql/restore.sql")
PAGE: Final = 500
LOST: Final = "LOST_RECORD"
"""The finding of `tenure serve checkpoint compare-records` whose calls this module puts in doubt."""
MAY_RUN_AGAIN: Final = frozenset({"PURE", "IDEMPOTENT", "KEYED"})
NOTE: Final = "The record of this call was lost when the database was restored: it may have run before."


async def list_records(pool: Pool) -> AsyncIterator[dict[str, Any]]:
    """Yields each task with its calls, in the order of the ids, for `tenure serve checkpoint compare-records`."""
    after = str(UUID(int=0))
    while True:
        async with pool_connection(pool) as postgres:
            fences = await (await postgres.execute(RESTORE.page_of_fences, {"after": after, "limit": PAGE})).fetchall()
            calls = await _calls(postgres, [task_id for task_id, _ in fences])
        for task_id, tenant in fences:
            yield {"task_id": task_id, "tenant": tenant, "calls": calls[task_id]}
        if len(fences) < PAGE:
            return
        after = fences[-1][0]


async def _calls(postgres: PostgresConnection, task_ids: list[str]) -> Mapping[str, list[dict[str, str]]]:
    rows = await (await postgres.execute(RESTORE.calls_of_tasks, {"task_ids": task_ids})).fetchall()
    calls: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for task_id, call_id, tool, effect_class, state, accepted_at in rows:
        call = {"call_id": call_id, "tool": tool, "effect_class": effect_class, "state": state}
        calls[task_id].append({**call, "accepted_at": accepted_at.isoformat()})
    return calls


async def doubt_lost_calls(pool: Pool, lines: Iterable[str]) -> int:
    """Puts the UNSAFE calls of LOST_RECORD findings in doubt, unless they have records. Returns how many it put so.

    Calls of other effect classes may run again. Raises ValueError for a line that is not a finding.
    """
    lost = list(_lost_calls(lines))
    fences = {call["task_id"]: call["tenant"] for call in lost}

    async def work(postgres: PostgresConnection) -> int:
        parameters = {"task_ids": [UUID(task_id) for task_id in fences], "tenants": list(fences.values())}
        await postgres.execute(QUERIES.ensure_fences, parameters)
        done = 0
        for call in lost:
            row = await (await postgres.execute(RESTORE.insert_doubts, _row(call))).fetchone()
            done += row is not None
        return done

    return await in_transaction(pool, work)


def _lost_calls(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in filter(str.strip, lines):
        try:
            finding = json.loads(line)
            if finding["finding"] == LOST and finding["effect_class"] not in MAY_RUN_AGAIN:
                yield finding
        except (KeyError, TypeError, ValueError) as error:
            message = f"not a line of `tenure serve checkpoint compare-records`: {line.strip()[:80]!r}"
            raise ValueError(message) from error


def _row(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["arguments_json"].encode()
    return {
        **{name: call[name] for name in ("task_id", "call_id", "tool", "effect_class", "epoch", "claim_id")},
        "arguments": arguments,
        "arguments_hash": hashlib.sha256(call["tool"].encode() + b"\0" + arguments).digest(),
        "note": NOTE,
    }
