"""A commit without a model call and a tool call is written by a shorter statement, to the same row."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from services.checkpoint.commit import writing
from tenure.domain.errors import TenureError
from tests.conformance.test_ledger_outputs import intent, outcome
from tests.support.examples import examples
from tests.support.fix_checkpoint import Checkpoint, Owner, answer, reserve, words

COMMITS = 12
OF_ONE_TASK = {
    "task_id",
    "root_task_id",
    "request_id",
    "request_hash",
    "claim_id",
    "granted_claim",
    "epoch",
    "granted",
    "last_commit_id",
    "change_xid",
    "created_at",
    "updated_at",
    "queued_at",
    "started_at",
    "deadline_at",
    "offered_until",
}
"""Columns with ids, epochs and times: no two tasks have the same."""
ROW = "select to_jsonb(t)::text from ledger.tasks t where task_id = %s::uuid"
ENTRIES = "select kind, step, body from ledger.entries where task_id = %s::uuid and sequence > 3 order by sequence"


async def commit_at_random(owner: Owner, rng: Random) -> None:
    """Makes commits of a worker in any order. Those that cannot follow are refused."""
    step = 1
    for _ in range(COMMITS):
        step += rng.random() < 0.3
        requests: list[Any] = [
            ([words(step=step)], {}),
            ([], {"reserve": reserve(step=step, attempt=rng.randrange(1, 4), input_tokens=50, output=50)}),
            ([answer(attempt=rng.randrange(1, 3), step=step), intent(f"{step}.0", "t")], {}),
            ([outcome(f"{step}.0"), words(step=step)], {}),
        ]
        entries, fields = rng.choice(requests)
        with suppress(TenureError):
            await owner.commit(*entries, **fields)


async def written(replica: Checkpoint, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Returns the row and the entries of a new task after the commits of a seed."""
    owner = await replica.claim((await replica.create()).task_id)
    await commit_at_random(owner, Random(seed))
    [(row,)] = await replica.query(ROW, owner.task.task_id)
    columns = {name: value for name, value in json.loads(row).items() if name not in OF_ONE_TASK}
    return columns, await replica.query(ENTRIES, owner.task.task_id)


async def test_both_statements_write_the_same_row(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[bool] = []
    decide = writing._only_advances

    def noted(draft: Any) -> bool:
        chosen.append(decide(draft))
        return chosen[-1]

    for seed in range(examples(8)):
        monkeypatch.setattr(writing, "_only_advances", noted)
        by_either = await written(replica, seed)
        monkeypatch.setattr(writing, "_only_advances", lambda _draft: False)
        assert await written(replica, seed) == by_either
    assert set(chosen) == {True, False}
