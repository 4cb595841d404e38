"""Undo of effects of own tools: the compensations are own tools, too, so the undo needs a worker that has them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from checker.verify import verify
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_control import Workers, submit, workers
from tests.end_to_end.test_verify import recorded
from tests.support.patience import PATIENCE_SECONDS

__all__ = ["workers"]  # the fixture

MODULE = "tests.support.undoing_functions"
ORDERED = ["began-tea", "tea", "began-milk", "milk", "began-pay", "pay"]


class Store:
    """The shop of one test, by the lines that its tools write."""

    def __init__(self, installation: Installation, workers: Workers) -> None:
        self.installation, self.workers = installation, workers

    async def worker(self, failpoint: str = "", **environment: str) -> None:
        settings = {"TENURE_WORKER_CONTROL_MODULES": MODULE, "TENURE_FAILPOINTS": failpoint, **environment}
        await self.workers.start(settings)

    def kill(self) -> None:
        for worker in self.workers.started:
            worker.kill()

    async def shopped(self) -> str:
        """A task that ordered and paid. Its gate stays closed for the cancellations."""
        await self.worker()
        gate = self.workers.folder / "gate"
        gate.touch()
        task_id = await submit(self.installation, self.workers, "shopping", self.workers.given())
        task = await self.installation.ended(task_id)
        assert task.state == task_pb2.TASK_STATE_SUCCEEDED, task.message
        gate.unlink()
        assert self.lines() == ORDERED
        return task_id

    def lines(self) -> list[str]:
        return [line.split()[0] for line in self.written()]

    def written(self) -> list[str]:
        path = self.workers.folder / "trace"
        return path.read_text().splitlines() if path.exists() else []

    async def has_begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.lines().count("began-cancelled") < count:
                await asyncio.sleep(0.02)

    async def check_undone(self, undo_id: str, task_id: str) -> task_pb2.Task:
        """Each compensation was made once: two cancellations by own tools, the refund by a tool of the service."""
        undone = await self.installation.ended(undo_id)
        assert (undone.reason, undone.undo_of) == ("UNDONE", task_id), undone.message
        keys = Counter(line.split()[2].rpartition("/")[0] for line in self.written() if line.startswith("cancelled"))
        assert set(keys) == {f"{task_id}/1.0/undo", f"{task_id}/2.0/undo"}
        assert self.installation.effects(self.workers.queue) == ["refunded"]
        assert verify(await recorded(self.installation, undo_id)) == []
        return undone


@pytest.fixture
def store(installation: Installation, workers: Workers) -> Store:
    return Store(installation, workers)


async def test_worker_killed_in_an_undo_with_own_tools(store: Store) -> None:
    """A worker whose code lacks the tool gives the undo back; the one with the tool dies in the middle of it."""
    task_id = await store.shopped()
    address = store.installation.stack.gateway_address
    plan = await store.installation.client.plan_undo(api.PlanUndoRequest(task_id=task_id))
    found = [(effect.tool, effect.verdict, effect.undo_by_own_tool) for effect in plan.effects]
    possible = api.UNDO_VERDICT_CAN_BE_UNDONE
    assert found == [("pay_order", possible, False), ("place_order", possible, True), ("place_order", possible, True)]
    store.kill()
    await store.worker(UNDO_TOOLS="cancel_order_2")
    undo_id = (await tenure("tasks", "undo", task_id, "--yes", address=address)).out.strip()
    halted = await store.installation.until(
        undo_id, "transition", lambda entry: entry.body.transition.reason == "WORKER_HALTED"
    )
    assert "does not have cancel_order" in halted.body.transition.message
    store.kill()
    await store.worker()
    await store.has_begun(1)
    store.kill()
    (store.workers.folder / "gate").touch()
    await store.worker()
    undone = await store.check_undone(undo_id, task_id)
    assert json.loads(undone.result)["undone"] == ["3.0", "2.0", "1.0"]
    assert Counter(store.lines())["cancelled"] == 2


async def test_undo_waits_for_a_worker_with_its_own_tools(store: Store) -> None:
    """Also those of agents, whose tools get their dependencies from the input of the undone task."""
    task_id = await store.shopped()
    bookings = {}
    for agent in ("clerk", "driver"):
        bookings[agent] = await submit(store.installation, store.workers, agent, store.workers.given())
        booked = await store.installation.ended(bookings[agent])
        assert booked.state == task_pb2.TASK_STATE_SUCCEEDED, booked.message
    store.kill()
    (store.workers.folder / "gate").touch()
    await store.worker(TENURE_WORKER_CONTROL_MODULES="tests.support.control_functions")
    address = store.installation.stack.gateway_address
    undo_id = (await tenure("tasks", "undo", task_id, "--yes", address=address)).out.strip()
    explained = (await tenure("explain", undo_id, address=address)).out
    assert "the agent or function shopping and its tools that undo effects" in explained
    await store.worker()
    undone = await store.check_undone(undo_id, task_id)
    assert undone.claim_count == 1
    for agent, line in (("clerk", "released-blue"), ("driver", "returned-van")):
        released = await tenure("tasks", "undo", bookings[agent], "--yes", address=address)
        assert released.code == 0, released.err
        assert (await store.installation.ended(released.out.strip())).reason == "UNDONE"
        assert store.lines()[-1] == line
        assert store.written()[-1].split()[2].startswith(f"{bookings[agent]}/2.0/undo/")


@pytest.mark.faults
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(
    "failpoint",
    ["after_open", "after_intent", "before_own_tool", "after_own_tool", "after_execute", "before_close_out"],
)
async def test_worker_killed_at_each_step_of_own_tools(store: Store, failpoint: str, step: int) -> None:
    """Cancellations are KEYED: each has one key, whichever worker died."""
    task_id = await store.shopped()
    store.kill()
    (store.workers.folder / "gate").touch()
    await store.worker(failpoint=f"worker.{failpoint}={step}#kill9")
    undo = await store.installation.client.undo(api.UndoTaskRequest(task_id=task_id, request_id=f"{task_id}-undo"))
    dying = store.workers.started[-1]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while dying.exit_code is None and not (await store.installation.client.get(undo.task_id)).HasField("end_time"):
            await asyncio.sleep(0.05)
    await store.worker()
    await store.check_undone(undo.task_id, task_id)
