"""A worker that is cut off from its coordinator: nothing is lost, nothing done twice, and another one goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.fencing import DEFAULT_MARGIN_SECONDS
from tenure.domain.states import TaskState
from tenure.wire.common import state_name
from tests.support.fix_network import Network
from tests.support.fix_proxy import Lost
from tests.support.fix_worker import WorkerBench
from tests.support.partition import (
    at,
    check_whole,
    logged,
    model_calls,
    openings,
    placed_worker,
    recorded,
)


@pytest.mark.parametrize("zombie", [pytest.param(False, marks=pytest.mark.faults), True], ids=["obedient", "zombie"])
async def test_a_partitioned_owner_writes_until_the_next_open(
    bench: WorkerBench, network: Network, zombie: bool
) -> None:
    """F16. The zombie does not know its trust window: then the ledger's fence alone ends what it does."""
    cut = await placed_worker(bench, network, failpoints="worker.ignore_trust_window" if zombie else "")
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    cut.host.cut("coordinator")
    cut_at = datetime.now(UTC)
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 2)
    assert (TaskState.QUEUED, "LEASE_EXPIRED") in await bench.transitions(task_id)
    await check_whole(bench, task_id)
    entries = await recorded(bench, task_id)
    first, second = openings(entries)
    its_own = [at(entry) for entry in entries if entry.epoch == first.epoch]
    assert max(its_own) > cut_at, "it went on within its trust window, and that counts"
    begun = [one for one in model_calls(bench, task_id) if one < at(second)]
    if not zombie:
        assert (at(second) - max(begun)).total_seconds() > DEFAULT_MARGIN_SECONDS / 2, (
            "its window ends before its lease"
        )
    else:
        await logged(cut.process, "fenced: the task is dropped")
    cut.host.mend("coordinator")
    await logged(cut.process, '"attached"', times=2)


@pytest.mark.faults
@pytest.mark.parametrize("lost", [Lost.REQUESTS, Lost.ANSWERS])
async def test_a_coordinator_heard_one_way_only_is_as_good_as_none(
    bench: WorkerBench, network: Network, lost: Any
) -> None:
    """F19. Whichever half of the talk gets lost, another worker has the task within the lease's time."""
    cut = await placed_worker(bench, network)
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    cut.host.cut("coordinator", lost)
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 2)
    await check_whole(bench, task_id)
