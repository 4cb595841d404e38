"""Owners of old that still write: only the fences of ledger and tools are there to stop them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGCONT
from typing import Any, Final
from uuid import uuid4

from tenure.audit.collect import collect_task
from tenure.audit.reading import of_kind
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import SequenceConflict, StaleEpoch, TryLater
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.token import Claims
from tenure.runtime.rpc_channel import open_channel
from tenure.runtime.signing import Signer
from tenure.runtime.tenancy import DEFAULT_TENANT
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.enums import STATES
from tenure.wire.token import sign_claims
from tests.fault.suite.installation import DEAF, Installation
from tests.fault.suite.prunes import until_answered
from tests.fault.suite.schedule import PlannedFault
from tests.fault.suite.signals import send
from tests.fault.suite.traffic import cancel
from tests.patience import PATIENCE_SECONDS

CALL_SECONDS: Final = 5.0
RUNNING_SECONDS: Final = 5.0
ASLEEP_SECONDS: Final = 10.0
CALLING_SECONDS: Final = 4.0
PAUSE_SECONDS: Final = 0.2


async def stale_write(install: Installation, _fault: PlannedFault) -> None:
    """A commit under an epoch of long ago, for a task that runs: as a worker sends it that was away."""
    ends_at = time.monotonic() + RUNNING_SECONDS
    async with open_channel(install.stack.replicas("checkpoint")[0].address) as channel:
        ledger = CheckpointServiceStub(channel)
        while time.monotonic() < ends_at:
            with suppress(TryLater):
                answer = await ledger.ListRunning(pb.ListRunningRequest(page_size=1), timeout=CALL_SECONDS)
                if answer.running:
                    await _write_stale(install, ledger, answer.running[0].task_id)
                    return
            await asyncio.sleep(PAUSE_SECONDS)


async def _write_stale(install: Installation, ledger: Any, task_id: str) -> None:
    claims = Claims(f"tasks/{task_id}", "default", 1, str(uuid4()), "worker-of-old", None)
    token = sign_claims(Signer.load(install.stack.layout.signing_key), claims, datetime.now(UTC))
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
    up, and calls: the tools' closed fence refuses it, or nobody does.

    `detail`: at which of its answers it falls asleep. Without one in time nothing happens.
    """
    armed, deaths = f"{DEAF};worker.after_intent={fault.detail}", len(install.keeper.deaths)
    process = install.keeper.expect_death(fault.target, armed=armed)
    process.kill()
    await install.keeper.serves_or_died(fault.target, deaths)
    if process.exit_code is not None or not await _falls_asleep(process.pid):
        return
    async with asyncio.timeout(PATIENCE_SECONDS):
        about_to_call = [task_id async for task_id in _between_intent_and_call(install, fault.target)]
        for task_id in about_to_call:
            await cancel(install.log, task_id, "operator", install.users[0])
        for task_id in about_to_call:
            await _ended(install, task_id)
    if process.exit_code is None:
        send(process.pid, SIGCONT)
        await _refused(install, about_to_call, fault.target)


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


async def _between_intent_and_call(install: Installation, worker_id: str) -> AsyncIterator[str]:
    """Tasks of this worker with a call that the ledger has and the tools have not."""
    user, ours = install.users[0], install.log.acknowledged(DEFAULT_TENANT)
    claims = (await until_answered(user.claims)).claims
    for task_id in (one.task_id for one in claims if one.worker_id == worker_id and one.task_id in ours):
        history = await until_answered(lambda task_id=task_id: collect_task(user, task_id))
        known = {call.call_id for call in history.calls or ()}
        known |= {told.call_id for _, told in of_kind(history.entries or (), ToolOutcome)}
        if any(intent.call_id not in known for _, intent in of_kind(history.entries or (), ToolIntent)):
            yield task_id


async def _ended(install: Installation, task_id: str) -> None:
    while True:
        task = await until_answered(lambda: install.users[0].get(task_id))
        if STATES.to_domain(task.state) in TERMINAL:
            return
        await asyncio.sleep(PAUSE_SECONDS)


async def _refused(install: Installation, task_ids: list[str], worker_id: str) -> None:
    """Waits until the tools refused it, for a while: whoever has lost the fence refuses nothing."""
    ends_at = time.monotonic() + CALLING_SECONDS
    while task_ids and time.monotonic() < ends_at:
        for task_id in task_ids:
            with suppress(TryLater):
                refusals = await install.users[0].refusals(task_id)
                if any(one.holder == worker_id for one in refusals.tools):
                    return
        await asyncio.sleep(PAUSE_SECONDS)
