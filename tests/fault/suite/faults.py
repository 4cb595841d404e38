"""How things are broken, by name, and how everything is mended.

To add a fault: an injector here, its name in INJECTORS, and a maker in schedule.py that plans it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import uuid4

from tenure.client.leases import HeldLease
from tenure.client.retries import RETURN_PATIENCE
from tenure.domain.errors import Fenced, NotFound, TryLater
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2, task_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import webhook_service_pb2 as webhooks
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tests.fault.suite.forks import fork
from tests.fault.suite.installation import Installation
from tests.fault.suite.late_writers import late_calls, stale_write
from tests.fault.suite.lost_runners import runner_of_unsafe_calls
from tests.fault.suite.prunes import prune, until_answered
from tests.fault.suite.scenarios import model_of
from tests.fault.suite.schedule import PlannedFault, Schedule
from tests.fault.suite.signals import send
from tests.fault.suite.store_faults import freeze_store, kill_store, lose_generation, mend_stores, replace_etcd
from tests.support.fix_proxy import Lost
from tests.support.fix_webhooks import receiving
from tests.support.patience import slowness_now

Inject = Callable[[Installation, PlannedFault], Awaitable[None]]
CALL_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.2
QUIET_SECONDS: Final = 5.0
STORES: Final = "postgres", "etcd"


async def carry_out(install: Installation, schedule: Schedule, done: Counter[str]) -> None:
    """All faults of a schedule at their times; returns when the last one is over. Counts them by kind."""
    async with asyncio.TaskGroup() as faults:
        for fault in schedule.faults:
            faults.create_task(_at_its_time(install, fault, done))


async def _at_its_time(install: Installation, fault: PlannedFault, done: Counter[str]) -> None:
    await asyncio.sleep(fault.at)
    done[label(fault)] += 1
    await INJECTORS[fault.kind](install, fault)


def label(fault: PlannedFault) -> str:
    """What is counted together: `kill worker`, `cut worker>tools`, `arm worker.after_open`."""
    if fault.kind == "arm":
        name, _, terms = fault.detail.partition("=")
        return f"{terms.rpartition('#')[2].rpartition('*')[2].partition('(')[0]} at {name}"
    if fault.kind == "lose_runner":
        return f"{fault.detail} tools with calls that must not be repeated"
    target = ">".join(part.partition("-")[0] for part in fault.target.split(">"))
    return f"{fault.kind} {target}"


async def mend(install: Installation) -> None:
    """Everything works again, and nothing is armed. Returns once all processes serve."""
    await mend_stores(install)
    await install.links.heal()
    await asyncio.to_thread(install.simulator.reset)
    for process in install.stack.services.values():
        if process.exit_code is None:
            send(process.pid, signal.SIGCONT)
    for name in install.keeper.armed():
        armed = install.keeper.expect_death(name)
        if armed.exit_code is None:
            armed.kill()
    install.keeper.hasten()
    await install.keeper.all_serve()


async def kill(install: Installation, fault: PlannedFault) -> None:
    """SIGKILL; back after `seconds`."""
    if fault.target.startswith(STORES):
        return await kill_store(install, fault)
    process = install.keeper.expect_death(fault.target, down_seconds=fault.seconds)
    process.kill()
    return await asyncio.sleep(fault.seconds)


async def kill_at_work(install: Installation, fault: PlannedFault) -> None:
    """SIGKILL for a worker as soon as it has a task to lose, or after `seconds`."""
    ends_at = time.monotonic() + fault.seconds
    async with open_channel(install.stack.replicas("checkpoint")[0].address) as channel:
        ledger = CheckpointServiceStub(channel)
        while time.monotonic() < ends_at:
            with suppress(TryLater):
                answer = await ledger.ListRunning(pb.ListRunningRequest(page_size=100), timeout=CALL_SECONDS)
                if any(one.owner == fault.target for one in answer.running):
                    break
            await asyncio.sleep(PAUSE_SECONDS)
    await kill(install, PlannedFault(0.0, "kill", fault.target))


async def terminate(install: Installation, fault: PlannedFault) -> None:
    """SIGTERM: it drains; back after `seconds`."""
    process = install.keeper.expect_death(fault.target, down_seconds=fault.seconds)
    if process.exit_code is None:
        send(process.pid, signal.SIGTERM)
    await asyncio.sleep(fault.seconds)


async def freeze(install: Installation, fault: PlannedFault) -> None:
    """SIGSTOP for `seconds`."""
    if fault.target.startswith(STORES):
        return await freeze_store(install, fault)
    process = install.stack.services[fault.target]
    if process.exit_code is not None:
        return None
    pid = process.pid
    send(pid, signal.SIGSTOP)
    await asyncio.sleep(fault.seconds)
    if process.exit_code is None and process.pid == pid:
        send(pid, signal.SIGCONT)
    return None


async def lose_runner(install: Installation, fault: PlannedFault) -> None:
    """Killed, or frozen and cut off, in the middle of calls that must not be repeated. Without any nothing happens."""
    runner = await runner_of_unsafe_calls(install)
    if runner is None:
        return
    losing = asyncio.ensure_future(INJECTORS[fault.detail](install, replace(fault, target=runner)))
    for name, link in install.links.by_name.items():
        if name.endswith(f">{runner}"):  # else its callers would wait for it longer than it is away
            await link.reset()
    await losing


async def arm(install: Installation, fault: PlannedFault) -> None:
    """Started anew with failpoints, as after a crash. Returns when they killed it, or `seconds` after it serves."""
    before = len(install.keeper.deaths)
    process = install.keeper.expect_death(fault.target, armed=fault.detail)
    process.kill()
    if fault.seconds:
        await install.keeper.serves_or_died(fault.target, before)
    await install.keeper.died_armed(fault.target, fault.detail, before, fault.seconds)


async def dies(install: Installation, fault: PlannedFault) -> None:
    """Waits for the death of who was armed before, for `seconds` at most."""
    await install.keeper.died_armed(fault.target, fault.detail, 0, fault.seconds)


async def cut(install: Installation, fault: PlannedFault) -> None:
    """Connections stay, nothing gets through for `seconds`."""
    await _deaf(install, fault, Lost.EVERYTHING)


async def cut_back(install: Installation, fault: PlannedFault) -> None:
    """What is said arrives, the answers do not."""
    await _deaf(install, fault, Lost.ANSWERS)


async def refuse(install: Installation, fault: PlannedFault) -> None:
    """Connections end and are refused for `seconds`."""
    link = install.links.by_name[fault.target]
    await link.stop()
    await asyncio.sleep(fault.seconds)
    await link.start()


async def reset(install: Installation, fault: PlannedFault) -> None:
    """Connections end by RST."""
    await install.links.by_name[fault.target].reset()


async def use_lease(install: Installation, fault: PlannedFault) -> None:
    """A backend that leases a resource of its own and gives it back, as often as it takes."""
    ends_at = asyncio.get_running_loop().time() + fault.seconds
    while asyncio.get_running_loop().time() < ends_at:
        with suppress(TryLater, Fenced):
            async with HeldLease(install.users[0].leases, f"tables/{uuid4().hex}", holder="backend", ttl_seconds=5):
                pass
        await asyncio.sleep(PAUSE_SECONDS)


async def send_signals(install: Installation, fault: PlannedFault) -> None:
    """A backend that sends events that no task waits for yet, as often as it takes."""
    ends_at = asyncio.get_running_loop().time() + fault.seconds
    while asyncio.get_running_loop().time() < ends_at:
        with suppress(TryLater):
            await install.users[0].signal(uuid4().hex, "{}")
        await asyncio.sleep(PAUSE_SECONDS)


async def receive_webhooks(install: Installation, fault: PlannedFault) -> None:
    """An endpoint that gets events of tasks until so many succeeded: each event in its task's order, none left out.

    They are submitted here: what happened before a webhook was created is not told.
    """
    name, user = f"faults-{uuid4().hex}", install.users[0]
    async with receiving() as receiver:
        made = await user.webhooks.CreateWebhook(
            webhooks.CreateWebhookRequest(name=name, url=receiver.url, event_types=["task.*"])
        )
        receiver.secrets = [made.secret]
        for _ in range(int(fault.detail)):
            spec = api.SubmitTaskRequest(
                request_id=uuid4().hex, spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model_of("plain")))
            )
            await until_answered(partial(user.submit, "told of", request=spec))
        await receiver.until(int(fault.detail), lambda one: one.type == "task.succeeded")
        done = webhooks.DeleteWebhookRequest(webhook=name)
        with suppress(NotFound):  # of a repeat
            await retrying(lambda: user.webhooks.DeleteWebhook(done, timeout=CALL_SECONDS), RETURN_PATIENCE)
    assert all(one.valid for one in receiver.came)
    first = {one.webhook_id: one for one in reversed(receiver.took)}
    for task_id in {one.task_id for one in receiver.took}:
        seen = [one for one in receiver.took if one.task_id == task_id and first[one.webhook_id] is one]
        sequences = [one.data["sequence"] for one in seen]
        assert sequences == sorted(sequences), [(one.type, one.data["sequence"]) for one in seen]


async def drain_worker(install: Installation, fault: PlannedFault) -> None:
    """An operator drains the worker, as often as it takes; then it is killed, and the next one of its name works."""
    ends_at = asyncio.get_running_loop().time() + fault.seconds
    while asyncio.get_running_loop().time() < ends_at:
        with suppress(TryLater, NotFound):
            await install.users[0].admin.DrainWorker(
                admin_service_pb2.DrainWorkerRequest(worker_id=fault.target, reason="a new kernel")
            )
        await asyncio.sleep(PAUSE_SECONDS)
    await kill(install, PlannedFault(0.0, "kill", fault.target))


async def overtake(install: Installation, fault: PlannedFault) -> None:
    """Waits until each process was stopped and met an operator, or no new one was for long; for `seconds` at most."""
    assert install.between is not None
    await install.keeper.all_serve()
    install.between.begin()
    ends_at = time.monotonic() + fault.seconds
    while time.monotonic() < ends_at and not install.between.nothing_left(QUIET_SECONDS * slowness_now()):
        await asyncio.sleep(PAUSE_SECONDS)
    await install.between.leave()


async def model(install: Installation, fault: PlannedFault) -> None:
    """The next model calls fail as `detail` says."""
    order = json.loads(fault.detail)
    await asyncio.to_thread(lambda: install.simulator.order_fault(**order))


async def _deaf(install: Installation, fault: PlannedFault, lost: Lost) -> None:
    link = install.links.by_name[fault.target]
    link.deaf(lost)
    await asyncio.sleep(fault.seconds)
    link.observe()


INJECTORS: Final[dict[str, Inject]] = {
    "kill": kill,
    "kill_at_work": kill_at_work,
    "terminate": terminate,
    "freeze": freeze,
    "lose_runner": lose_runner,
    "arm": arm,
    "dies": dies,
    "replace_etcd": replace_etcd,
    "cut": cut,
    "cut_back": cut_back,
    "refuse": refuse,
    "reset": reset,
    "model": model,
    "lose_generation": lose_generation,
    "stale_write": stale_write,
    "late_calls": late_calls,
    "use_lease": use_lease,
    "drain_worker": drain_worker,
    "send_signals": send_signals,
    "receive_webhooks": receive_webhooks,
    "prune": prune,
    "fork": fork,
    "overtake": overtake,
}
