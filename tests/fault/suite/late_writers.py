"""Owners of old that still write: only the fences of ledger and tools are there to stop them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGCONT
from typing import Any, Final
from uuid import uuid4

from checker.collect import collect_task
from checker.reading import of_kind
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import SequenceConflict, StaleEpoch, TryLater
from tenure.domain.fencing import Claims
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Signer
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.common import STATES
from tenure.wire.token import sign_task_claims
from tests.fault.suite.installation import DEAF, Installation
from tests.fault.suite.prunes import until_answered
from tests.fault.suite.schedule import PlannedFault, PlannedTask
from tests.fault.suite.signals import send
from tests.fault.suite.traffic import cancel
from tests.support.patience import PATIENCE_SECONDS

CALL_SECONDS: Final = 5.0
RUNNING_SECONDS: Final = 5.0
ASLEEP_SECONDS: Final = 10.0
MAX_TASKS: Final = 24
CALLING_SECONDS: Final = 4.0
PAUSE_SECONDS: Final = 0.2


async def stale_write(install: Installation, _fault: PlannedFault) -> None:
    """A commit under an epoch of long ago, for a task that runs: as a worker sends it that was away."""
    assert install.traffic is not None
    ends_at = time.monotonic() + RUNNING_SECONDS
    async with open_channel(install.stack.replicas("checkpoint")[0].address) as channel:
        ledger = CheckpointServiceStub(channel)
        while time.monotonic() < ends_at:
            with suppress(TryLater):
                answer = await ledger.ListRunning(pb.ListRunningRequest(page_size=100), timeout=CALL_SECONDS)
                ours = {one.task_id for one in answer.running} & install.traffic.task_ids(guests=False)
                if ours:
                    await _write_stale(install, ledger, min(ours))
                    return
            await asyncio.sleep(PAUSE_SECONDS)


async def _write_stale(install: Installation, ledger: Any, task_id: str) -> None:
    claims = Claims(f"tasks/{task_id}", "default", 1, str(uuid4()), "worker-of-old", installation=DEFAULT_INSTALLATION)
    token = sign_task_claims(Signer.load(install.stack.layout.signing_key), claims, datetime.now(UTC))
    drained = pb.Transition(to_state=STATES.to_wire(TaskState.QUEUED), reason=Reason.WORKER_DRAINED)
    request = pb.CommitRequest(token=token, commit_id=str(uuid4()), commit_number=1, transition=drained)
    try:
        await ledger.Commit(request, timeout=CALL_SECONDS)
    except StaleEpoch:
        return
    except SequenceConflict as error:
        raise AssertionError("a commit of a stale epoch came past the fence: its number was looked at") from error
    raise AssertionError("a commit of a stale epoch was taken")


async def late_calls(install: Installation, fault: PlannedFault) -> None:
    """A worker falls asleep with intents in the ledger and their calls not made. An operator ends those tasks, it wakes
    up, and calls: only the tools' closed fence refuses it.

    `detail`: at which of its answers it falls asleep.
    """
    armed, deaths = f"{DEAF};worker.after_intent={fault.detail}", len(install.keeper.deaths)
    process = install.keeper.expect_death(fault.target, armed=armed)
    process.kill()
    await install.keeper.serves_or_died(fault.target, deaths)
    if process.exit_code is None and await _falls_asleep_at_work(install, process.pid):
        async with asyncio.timeout(PATIENCE_SECONDS):
            about_to_call = await _end_what_is_about_to_call(install, fault.target)
        if process.exit_code is None:
            send(process.pid, SIGCONT)
            await _refused(install, about_to_call, fault.target)


async def _falls_asleep_at_work(install: Installation, pid: int) -> bool:
    """It has only been started: there is new work until it has got some."""
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_give_work(install, enough))
        asleep = await _falls_asleep(pid)
        enough.set()
    return asleep


async def _give_work(install: Installation, enough: asyncio.Event) -> None:
    assert install.traffic is not None
    for _ in range(MAX_TASKS):
        if enough.is_set():
            return
        await install.traffic.submit_another(PlannedTask(0.0, "keyed"), "late")
        await asyncio.sleep(PAUSE_SECONDS)


async def _end_what_is_about_to_call(install: Installation, worker_id: str) -> list[str]:
    """Its tasks with a call that the ledger has and the tools have not, once each has ended."""
    user, traffic = install.users[0], install.traffic
    assert traffic is not None
    ours = traffic.task_ids(guests=False)
    claims = (await until_answered(user.claims)).claims
    held = [one.task_id for one in claims if one.worker_id == worker_id and one.task_id in ours]
    results = await asyncio.gather(*(_is_about_to_call(user, task_id) for task_id in held))
    wanted = [task_id for task_id, is_about_to in zip(held, results, strict=True) if is_about_to]
    await asyncio.gather(*(cancel(traffic.log, task_id, "operator", user) for task_id in wanted))
    await asyncio.gather(*(_ended(user, task_id) for task_id in wanted))
    return wanted


async def _is_about_to_call(user: Client, task_id: str) -> bool:
    history = await until_answered(lambda: collect_task(user, task_id))
    known = {call.call_id for call in history.calls or ()}
    known |= {expected.call_id for _, expected in of_kind(history.entries or (), ToolOutcome)}
    return any(intent.call_id not in known for _, intent in of_kind(history.entries or (), ToolIntent))


async def _ended(user: Client, task_id: str) -> None:
    while True:
        task = await until_answered(lambda: user.get(task_id))
        if STATES.to_domain(task.state) in TERMINAL:
            return
        await asyncio.sleep(PAUSE_SECONDS)


async def _falls_asleep(pid: int) -> bool:
    stat, ends_at = Path(f"/proc/{pid}/stat"), time.monotonic() + ASLEEP_SECONDS
    while time.monotonic() < ends_at:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "T":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return False
        await asyncio.sleep(PAUSE_SECONDS)
    return False


async def _refused(install: Installation, task_ids: list[str], worker_id: str) -> None:
    """Waits until the tools refused it, for a while: a service without the fence refuses nothing."""
    ends_at = time.monotonic() + CALLING_SECONDS
    while task_ids and time.monotonic() < ends_at:
        for task_id in task_ids:
            with suppress(TryLater):
                refusals = await install.users[0].refusals(task_id)
                if any(one.holder == worker_id for one in refusals.tools):
                    return
        await asyncio.sleep(PAUSE_SECONDS)
