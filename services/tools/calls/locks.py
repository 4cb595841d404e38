"""Reading fences and calls under the locks that decisions are made with, and writing fences back.

Asking and fetching are apart, so that several questions can be on their way together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from services.tools.calls.accept_rules import FenceRow
from services.tools.calls.records import CallKey, CallRow
from services.tools.statements import QUERIES
from tenure.domain.epochs import Fence
from tenure.domain.tools import CallState, EffectClass
from tenure.runtime.postgres import Connection


class Cursor(Protocol):
    """An answer on its way."""

    async def fetchall(self) -> list[Any]: ...


async def lock_fences(postgres: Connection, tenants: Mapping[UUID, str]) -> dict[UUID, FenceRow]:
    """The fences of these tasks, made where they are not there yet. Their locks last as long as the transaction."""
    found = await locked_fences(await ask_for_fences(postgres, tenants))
    missing = {task_id: tenant for task_id, tenant in tenants.items() if task_id not in found}
    return found | await make_fences(postgres, missing) if missing else found


async def ask_for_fences(postgres: Connection, tenants: Iterable[UUID]) -> Cursor:
    """Lock those that are there."""
    return await postgres.execute(QUERIES.lock_fences, {"task_ids": sorted(tenants)})


async def make_fences(postgres: Connection, missing: Mapping[UUID, str]) -> dict[UUID, FenceRow]:
    """Fences that were not there; another replica may be making them too, and raise them before they are locked."""
    task_ids = sorted(missing)
    await postgres.execute(
        QUERIES.ensure_fences, {"task_ids": task_ids, "tenants": [missing[task_id] for task_id in task_ids]}
    )
    return await locked_fences(await ask_for_fences(postgres, task_ids))


async def locked_fences(asked: Cursor) -> dict[UUID, FenceRow]:
    """What was asked for."""
    return {row[0]: FenceRow(Fence(row[2], row[3]), row[4]) for row in await asked.fetchall()}


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


async def ask_for_calls(postgres: Connection, keys: Sequence[CallKey]) -> Cursor:
    """Lock the records of these calls, as far as there are any; after their fences."""
    return await postgres.execute(
        QUERIES.lock_calls, {"task_ids": [key.task_id for key in keys], "call_ids": [key.call_id for key in keys]}
    )


async def locked_calls(asked: Cursor) -> dict[CallKey, CallRow]:
    """What was asked for."""
    return {row.key: row for row in map(_call_row, await asked.fetchall())}


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
        runner_gone=row[11],
        doubt_note=row[12],
    )
