"""Whatever fifty agents under one cap do at once, through several replicas: their budget holds at every instant.

What is used and set aside is looked at by triggers in the database, version by version, and the whole is audited.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

import pytest

from checker.collect import (
    bill,
    budget_row,
    ledger_entry,
    task_row,
)
from checker.history import History
from checker.verify import verify
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_pb2
from tests.model.budget_watch import versions, watch_budgets
from tests.model.spenders import PATIENCE_SECONDS, Spender
from tests.support.fix_checkpoint import MakeCheckpoint

pytestmark = [pytest.mark.server, pytest.mark.faults]

SPENDERS: Final = 50
TURNS: Final = 8
CAP: Final = 10_000
GRANTS: Final = (3_000, 2_000)
TO_BE_MET: Final = (
    "granted",
    "clamped",
    "BUDGET_BUSY",
    "TOKEN_LIMIT",
    "sent twice",
    "is_taken_over",
    "the loss was first",
)
TO_BE_MET_WITH_SURPRISES: Final = ("overrun", "reported")


async def family(replicas: Any, seed: Any, surprises: Any) -> Any:
    """A root and its 49 children, tied together in the database, and what they meet."""
    root = await replicas[0].create(limits=task_pb2.Limits(max_tokens=CAP))
    others = await asyncio.gather(*[replicas[n % len(replicas)].create() for n in range(SPENDERS - 1)])
    children = [task.task_id for task in others]
    await replicas[0].query(
        "update ledger.tasks set root_task_id = %s where task_id = any(%s::text[]::uuid[])", root.task_id, children
    )
    met: Counter[str] = Counter()
    rng = random.Random(seed)
    spenders = [
        Spender(replicas, task_id, random.Random(rng.random()), met, surprises) for task_id in (root.task_id, *children)
    ]
    return root.task_id, spenders, met


async def raise_the_cap(replica: Any, root_task_id: Any) -> None:
    for tokens in GRANTS:
        await asyncio.sleep(0.5)
        await replica.query(
            "update ledger.budgets set max_tokens = max_tokens + %s where root_task_id = %s", tokens, root_task_id
        )


async def spend_the_rest(spender: Spender, met: Counter[str]) -> None:
    """On a slow machine the last grant may come when most spenders have had their turns."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not met["TOKEN_LIMIT"]:
            if await spender.ask_for_a_call():
                await spender.is_answered()


@pytest.mark.parametrize(("seed", "surprises"), [(1, False), (2, True)])
async def test_fifty_spenders_of_one_root_never_pass_its_cap(
    checkpoint: MakeCheckpoint, seed: int, surprises: bool
) -> None:
    """`surprises`: calls that came to more than was set aside for them, which cannot be taken back, only counted."""
    first = await checkpoint()
    replicas = [first, await checkpoint(dsn=first.dsn), await checkpoint(dsn=first.dsn)]
    root_task_id, spenders, met = await family(replicas, seed, surprises)
    await watch_budgets(first)
    async with asyncio.TaskGroup() as run:
        for spender in spenders:
            run.create_task(spender.live(TURNS))
        run.create_task(raise_the_cap(first, root_task_id))
    await spend_the_rest(spenders[0], met)
    stood = await versions(first, root_task_id)
    assert [version for version in stood if version.taken > version.max_tokens + version.beyond_tokens] == []
    assert (stood[-1].beyond_tokens > 0) == surprises
    assert max(version.taken for version in stood) > 0.95 * CAP, "it was never near"
    assert stood[-1].reserved_tokens == 0
    expected = (*TO_BE_MET, *(TO_BE_MET_WITH_SURPRISES if surprises else ()))
    assert {kind for kind in expected if not met[kind]} == set(), "it proved less than it is to prove"
    assert verify(await reported_by(first, [spender.task_id for spender in spenders])) == []


async def reported_by(replica: Any, task_ids: Any) -> Any:
    """What a ledger has of these tasks."""
    tasks = await asyncio.gather(*[replica.get(task_id) for task_id in task_ids])
    entries = await asyncio.gather(*[replica.entries(task_id) for task_id in task_ids])
    bills = await asyncio.gather(*[bills_of(replica, task_id) for task_id in task_ids])
    return History(
        tasks=tuple(task_row(task) for task in tasks),
        budgets=tuple(budget_row(task) for task in tasks),
        entries=tuple(
            ledger_entry(task_id, one) for task_id, some in zip(task_ids, entries, strict=True) for one in some
        ),
        bills=tuple(bill(task_id, one) for task_id, some in zip(task_ids, bills, strict=True) for one in some),
    )


async def bills_of(replica: Any, task_id: Any) -> Any:
    request = admin_pb.ListBillsRequest(task_id=task_id, page_size=1000)
    listed = await replica.stub.ListBills(request, timeout=PATIENCE_SECONDS)
    assert not listed.more
    return listed.bills
