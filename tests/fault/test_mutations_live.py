"""The guards of those who only call: a worker and a coordinator without one of theirs, among services that have all.

What test_mutations.py says of the others holds for these too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from checker.collect import collect_tasks, read_effects
from checker.history import History
from checker.verify import verify
from tenure.client import Client
from tests.fault.mutants.catalogue import MUTATIONS
from tests.support.fix_coordinator import Fleet
from tests.support.fix_worker import WorkerBench

pytestmark = [pytest.mark.server, pytest.mark.faults]


async def history(bench: WorkerBench, task_id: str) -> History:
    """What ledger, tools and outside have of a task."""
    async with Client(bench.stack.gateway_address) as auditor:
        collected = await collect_tasks(auditor, [task_id])
    effects = read_effects(bench.stack.layout.records)
    return replace(collected, effects=tuple(each for each in effects if each.task_id == task_id))


@pytest.mark.parametrize("mutation", ["", "intent_before_effect"])
async def test_a_tool_called_before_its_intent_is_noticed(bench: WorkerBench, mutation: str) -> None:
    """The worker dies between the answer of the model and the commit that has its intents."""
    worker = await bench.start_worker(failpoints="worker.after_model=kill9", mutation=mutation)
    task_id = await bench.submit("sim-worker-unsafe")
    await bench.died(worker)
    await bench.cancel(task_id)
    await bench.ended(task_id)
    names = {each.invariant for each in verify(await history(bench, task_id))}
    assert names & set(MUTATIONS[mutation].invariants) if mutation else not names


@pytest.mark.parametrize("mutation", ["", "session_end_is_conditional"])
async def test_a_session_ended_by_the_replica_it_has_left_is_noticed(fleet: Fleet, mutation: str) -> None:
    """No history tells of this: nothing unsafe happens, a worker that lives only loses all it has."""
    left, other = await fleet.coordinator(mutation=mutation), await fleet.coordinator()
    worker = await fleet.worker(left)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    fleet.keep(await worker.reattach(other.address))
    await worker.break_off()
    await left.logged("ended a session" if mutation else "a worker attached to another coordinator")
    kept = [claim.claim_id for claim in await fleet.claims(other, task_id)]
    assert kept == ([] if mutation else [grant.claim_id])
