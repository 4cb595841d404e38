"""Reading fences and calls under the locks that decisions are made with, and writing fences back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from services.tools.accept_rules import FenceRow
from services.tools.records import CallKey, CallRow
from services.tools.statements import QUERIES
from tenure.domain.epochs import Fence
from tenure.domain.tools import CallState, EffectClass
from tenure.runtime.postgres import Connection


async def lock_fences(postgres: Connection, tenants: Mapping[UUID, str]) -> dict[UUID, FenceRow]:
    """The fences of these tasks, made where they are not there yet. Their locks last as long as the transaction."""
    task_ids = sorted(tenants)
    found = await _locked(postgres, task_ids)
    if missing := [task_id for task_id in task_ids if task_id not in found]:
        await postgres.execute(
            QUERIES.ensure_fences, {"task_ids": missing, "tenants": [tenants[task_id] for task_id in missing]}
        )
        found |= await _locked(postgres, task_ids)
    return found


async def _locked(postgres: Connection, task_ids: list[UUID]) -> dict[UUID, FenceRow]:
    cursor = await postgres.execute(QUERIES.lock_fences, {"task_ids": task_ids})
    return {row[0]: FenceRow(Fence(row[2], row[3]), row[4]) for row in await cursor.fetchall()}


async def raise_fences(postgres: Connection, fences: Mapping[UUID, FenceRow]) -> None:
    """Write fences that lock_fences has locked."""
    if not fences:
        return
    rows = fences.values()
    await postgres.execute(
        QUERIES.raise_fences,
        {
            "task_ids": list(fences),
            "epochs": [row.current.epoch for row in rows],
            "claim_ids": [row.current.claim_id for row in rows],
            "closed": [row.closed for row in rows],
        },
    )


async def lock_calls(postgres: Connection, keys: Iterable[CallKey]) -> dict[CallKey, CallRow]:
    """The records of these calls, as far as there are any."""
    ordered = list(keys)
    cursor = await postgres.execute(
        QUERIES.lock_calls,
        {"task_ids": [key.task_id for key in ordered], "call_ids": [key.call_id for key in ordered]},
    )
    return {row.key: row for row in map(_call_row, await cursor.fetchall())}


def _call_row(row: tuple[Any, ...]) -> CallRow:
    return CallRow(
        key=CallKey(row[0], row[1]),
        effect_class=EffectClass(row[2]),
        arguments_hash=row[3],
        state=CallState(row[4]),
        call_attempt=row[5],
        fence=Fence(row[6], row[7]),
        runner_id=row[8],
        runner_alive=row[9],
        outcome=row[10],
    )
