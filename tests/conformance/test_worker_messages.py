"""A worker and the words that others say to its agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tenure.domain import entries as facts
from tests.support.fix_worker import WorkerBench
from tests.support.patience import PATIENCE_SECONDS


async def test_words_that_come_after_the_last_answer_are_answered(bench: WorkerBench, tmp_path: Path) -> None:
    """The answer is in the ledger, the end not yet: without asking the ledger the words would be lost."""
    reached, go_on = tmp_path / "reached", tmp_path / "go-on"
    await bench.start_worker(failpoints=f"worker.before_close_out=1#touch({reached})->1#wait({go_on})")
    task_id = await bench.submit("sim-hello")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached.exists():
            await asyncio.sleep(0.02)
    await bench.tell(task_id, "one thing more")
    go_on.touch()
    task = await bench.ended(task_id)
    assert task.reason == "FINAL_ANSWER"
    answers = [entry for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    [said] = [entry for entry in await bench.entries(task_id) if isinstance(entry.body, facts.UserMessage)]
    assert [answer.step for answer in answers] == [1, 2]
    assert answers[0].sequence < said.sequence < answers[1].sequence
    assert len(bench.model_calls(task_id)) == 2
    assert task.claim_count == 1
