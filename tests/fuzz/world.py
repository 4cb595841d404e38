"""The services, tasks in several states for requests to name, and the control task that must be done at the end.

A whole stack of real processes without workers: a scripted worker holds what is RUNNING, so that nothing ends a task
but the requests that are made up, operators, and the coordinator.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from hypothesis import strategies as st

from devstack import Stack, StackOptions
from tenure.domain.errors import LimitReached, Refused, Unavailable
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tests.fault.suite.verdict import EXPECTED_ERRORS
from tests.fuzz.calling import FUZZED, Tally
from tests.fuzz.messages import Known
from tests.support.lives import LONG_LIFE
from tests.support.patience import AGAIN, CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

CONTROL: Final = "control"
"""Tenant and queue of the tasks that must be done whatever the others sent."""
OWNED: Final = "fuzz-owned"
"""Queue of the tasks that the scripted worker takes."""
PROCESSES: Final = ("gateway", "checkpoint", "coordinator", "tools")
LOOK_SECONDS: Final = 2.0
"""After so long in vain the worker's stream is looked at."""
MAX_MEMORY_MIB: Final = 250
"""More than a process needs for the largest requests at once, and than its caches may hold."""
ENDED: Final = frozenset(
    (
        task_pb2.TASK_STATE_SUCCEEDED,
        task_pb2.TASK_STATE_FAILED,
        task_pb2.TASK_STATE_CANCELLED,
        task_pb2.TASK_STATE_TIMED_OUT,
        task_pb2.TASK_STATE_COST_EXCEEDED,
    )
)


@dataclass(slots=True)
class Owner:
    """A task that the scripted worker holds and has opened."""

    task_id: str
    grant: coordinator_pb.Grant
    next_number: int
    known_sequence: int

    @property
    def token(self) -> token_pb2.FencingToken:
        return self.grant.token


@dataclass(slots=True, repr=False)
class World:
    """What a test has of the services. `tally` counts all that was sent."""

    stack: Stack
    bare: dict[str, grpc.aio.Channel]
    ledger: Any
    tasks: Any
    tenants: Any
    control_tasks: Any
    pids: dict[str, int]
    tally: Tally = field(default_factory=Tally)
    worker: ScriptedWorker | None = None
    _log_marks: dict[str, int] = field(default_factory=dict)
    _owner: Owner | None = None
    _ended: Owner | None = None
    _queued: str = ""
    _grants: dict[str, coordinator_pb.Grant] = field(default_factory=dict)
    _granted: asyncio.Condition = field(default_factory=asyncio.Condition)
    _taking: asyncio.Task[None] | None = None
    _attaching: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def known(self) -> Known:
        """Ids and tokens to name: of a task that waits in the queue, one that is owned, and one that has ended."""
        if not self._queued or not await self._is_in(self._queued, task_pb2.TASK_STATE_QUEUED):
            self._queued = await self.submit("fuzz")
        if self._ended is None:
            self._ended = await self.owned()
            await self.end(self._ended)
        if self._owner is None or not await self._is_in(self._owner.task_id, task_pb2.TASK_STATE_RUNNING):
            self._owner = await self.owned()
        ids = st.sampled_from([self._owner.task_id, self._owner.task_id, self._queued, self._ended.task_id])
        tokens = st.sampled_from([self._owner.token, self._owner.token, self._ended.token])
        claims = st.sampled_from([self._owner.grant.claim_id, self._ended.grant.claim_id, str(uuid.uuid4())])
        named = ("task_id", "root_task_id", "forked_from_task_id", "from_task_id", "task_ids", "after_task_id")
        return {
            **dict.fromkeys(named, ids),
            "tenure.v1.FencingToken": tokens,
            "claim_id": claims,
            "worker_id": st.sampled_from(["fuzz-decoy", "fuzz-other"]),
            "worker_ids": st.just("fuzz-decoy"),
            "tenant": st.just(FUZZED),
            "resource": st.sampled_from(["table/a", "table/b"]),
            "holder": st.sampled_from(["one", "two"]),
            "commit_number": st.sampled_from([self._owner.next_number, self._owner.next_number + 1]),
            "at_sequence": st.integers(1, 4),
            "expected": st.integers(1, 3),
        }

    async def submit(self, queue: str, **spec: Any) -> str:
        """A queued task of the fuzzed tenant."""
        request = api.SubmitTaskRequest(
            request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="go", queue=queue, **spec)
        )
        try:
            answer = await self.tasks.SubmitTask(request, timeout=CALL_SECONDS)
        except LimitReached:  # the tenant's limits were among what was made up
            await self._lift_limits()
            answer = await self.tasks.SubmitTask(request, timeout=CALL_SECONDS)
        return str(answer.task.task_id)

    async def owned(self, **spec: Any) -> Owner:
        """A new task, granted and opened."""
        worker = await self._attached()
        task_id = await self.submit(OWNED, **spec)
        grant = await self._grant_of(task_id)
        header = await worker.open(grant)
        return Owner(task_id, grant, header.next_commit_number, header.task.sequence)

    async def granted_again(self, task_id: str) -> Owner:
        """The next claim of a task that is in the queue, opened."""
        worker = await self._attached()
        grant = await self._grant_of(task_id)
        header = await worker.open(grant)
        return Owner(task_id, grant, header.next_commit_number, header.task.sequence)

    async def end(self, owner: Owner) -> None:
        """Closed out by its owner, whose claim is given back."""
        assert self.worker is not None
        ended = ledger_pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
        await self.worker.commit(owner.grant, owner.next_number, transition=ended)
        await self.worker.release(owner.grant, "CLOSED")

    async def cancel(self, task_id: str) -> None:
        """Acknowledged, or refused because the task has ended."""
        try:
            await self.tasks.CancelTask(api.CancelTaskRequest(task_id=task_id, reason="enough"), timeout=CALL_SECONDS)
        except Refused:
            assert (await self.task(task_id)).state in ENDED

    async def task(self, task_id: str) -> task_pb2.Task:
        answer: api.GetTaskResponse = await self.tasks.GetTask(
            api.GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS
        )
        return answer.task

    async def ends(self, task_id: str, within_seconds: float = PATIENCE_SECONDS) -> task_pb2.Task:
        """The task, once it has ended."""
        async with asyncio.timeout(within_seconds):
            while (task := await self.task(task_id)).state not in ENDED:
                await asyncio.sleep(0.05)
        return task

    async def entries(self, task_id: str) -> list[ledger_pb2.Entry]:
        request = api.ListTaskEntriesRequest(task_id=task_id, page_size=1000)
        return list((await self.tasks.ListTaskEntries(request, timeout=CALL_SECONDS)).entries)

    async def control(self) -> None:
        """A task of another test is done. As any client, it tries again when an error says so: a generation that was
        raised is settled first.
        """
        await retrying(self._is_done, AGAIN)

    async def _is_done(self) -> None:
        """Submitted, granted, opened and closed out, by a worker that just came."""
        address = self.stack.services["coordinator"].address
        worker = ScriptedWorker(address, self.ledger, worker_id="control", queues=[CONTROL], free_slots=1)
        try:
            await worker.attach()
            request = api.SubmitTaskRequest(
                request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="go", queue=CONTROL)
            )
            await self.control_tasks.SubmitTask(request, timeout=CALL_SECONDS)
            grant = await _next_grant(worker)
            await worker.succeed(grant)
        finally:
            await worker.break_off()

    def check_processes(self) -> None:
        """Each lives, as it began, and has logged no error."""
        for name in PROCESSES:
            service = self.stack.services[name]
            assert service.exit_code is None, f"{name} ended with {service.exit_code}: {service.log_tail()}"
            assert service.pid == self.pids[name]
            errors = self._new_errors(name, service.log_path)
            assert not errors, f"{name} logged:\n" + "\n".join(errors[:3])

    def memory_bytes(self) -> dict[str, int]:
        """What each process holds of the machine's memory."""
        return {name: _resident_bytes(pid) for name, pid in self.pids.items()}

    def check_memory(self, before: dict[str, int]) -> None:
        """What was sent is not kept: caches are bounded by their bytes."""
        for name, now in self.memory_bytes().items():
            grown = (now - before[name]) // 2**20
            assert grown <= MAX_MEMORY_MIB, f"{name} holds {grown} MiB more than before: {self.tally.told()}"

    def _new_errors(self, name: str, path: Path) -> list[str]:
        with path.open("rb") as log:
            log.seek(self._log_marks.get(name, 0))
            lines = log.read().decode(errors="replace").splitlines()
            self._log_marks[name] = log.tell()
        return [line[:3000] for line in lines if _is_error(line)]

    async def _lift_limits(self) -> None:
        kinds: Any = [value.number for value in tenant_pb.QuotaKind.DESCRIPTOR.values if value.number]
        request = tenant_pb.UpdateTenantLimitsRequest(follow_defaults=kinds, reason="to go on", actor="fuzz")
        await self.tenants.UpdateTenantLimits(request, timeout=CALL_SECONDS)

    async def _end_stops(self) -> None:
        stops = (await self.ledger.ListStops(admin_pb.ListStopsRequest(), timeout=CALL_SECONDS)).stops
        for stop in stops:
            if stop.by_quota:  # _lift_limits ends it
                continue
            named = {field: getattr(stop, field) for field in ("tenant", "agent", "queue", "tool")}
            request = admin_pb.EndStopRequest(**named, reason="to go on", actor="fuzz")
            await self.ledger.EndStop(request, timeout=CALL_SECONDS)

    async def _is_in(self, task_id: str, state: task_pb2.TaskState.ValueType) -> bool:
        try:
            task = await self.task(task_id)
        except Refused:  # pruned
            return False
        return task.state == state and not task.cancel_requested

    async def _attached(self) -> ScriptedWorker:
        """The worker of the owned tasks; another one when its stream has ended."""
        async with self._attaching:
            if self.worker is None or self.worker.ended_with is not None:
                await self.close()
                self.worker = await retrying(self._attach, AGAIN)
                self._taking = asyncio.create_task(self._take_grants(self.worker))
            return self.worker

    async def _attach(self) -> ScriptedWorker:
        address = self.stack.services["coordinator"].address
        made = ScriptedWorker(address, self.ledger, worker_id="fuzz-owner", queues=[OWNED], free_slots=200)
        try:
            return await made.attach()
        except BaseException:
            await made.break_off()
            raise

    async def close(self) -> None:
        """The scripted worker leaves."""
        if self.worker is not None and self._taking is not None:
            self._taking.cancel()
            await self.worker.break_off()

    async def _grant_of(self, task_id: str) -> coordinator_pb.Grant:
        """Several wait at once, so grants are kept until the one who waits for them comes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while task_id not in self._grants:
                await self._attached()  # its session ends when a generation is raised, or when it drains
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS), self._granted:
                        await self._granted.wait_for(lambda: task_id in self._grants)
                        break
                await self._lift_limits()  # a quota or a stop that was among what was made up holds the task
                await self._end_stops()
            return self._grants.pop(task_id)

    async def _take_grants(self, worker: ScriptedWorker) -> None:
        while True:
            grant = await worker.next_grant(within_seconds=86_400)
            async with self._granted:
                self._grants[grant.task_id] = grant
                self._granted.notify_all()


async def _next_grant(worker: ScriptedWorker) -> coordinator_pb.Grant:
    """Returns the worker's next grant. Raises Unavailable when its session ends first, as it does after a raise."""
    while True:
        with suppress(TimeoutError):
            return await worker.next_grant(within_seconds=LOOK_SECONDS)
        if worker.ended_with is not None:
            raise Unavailable("the worker's session ended before a grant") from worker.ended_with


def _is_error(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return "Traceback" in line
    return record.get("level") in {"ERROR", "CRITICAL"} and not EXPECTED_ERRORS.search(record.get("message", ""))


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def open_world(folder: Path, postgres_dsn: str) -> AsyncIterator[World]:
    """Everything serves inside."""
    environment = {
        "*": LONG_LIFE,
        "checkpoint": {"TENURE_CHECKPOINT_SWEEP_INTERVAL_SECONDS": "0.2"},
        "coordinator": {"TENURE_COORDINATOR_RECONCILE_INTERVAL_SECONDS": "1"},
        "tools": {"TENURE_TOOLS_SANDBOX_WARM": "0"},
    }
    options = StackOptions(data_dir=folder, workers=0, postgres_dsn=postgres_dsn, environment=environment)
    async with Stack(options) as stack, AsyncExitStack() as channels:

        async def opened(name: str, tenant: str) -> TenureChannel:
            return await channels.enter_async_context(open_channel(stack.services[name].address, tenant=tenant))

        fuzzed = {name: await opened(name, FUZZED) for name in PROCESSES}
        world = World(
            stack,
            {name: channel.raw for name, channel in fuzzed.items()},
            CheckpointServiceStub(fuzzed["checkpoint"]),
            TaskServiceStub(fuzzed["gateway"]),
            TenantServiceStub(fuzzed["checkpoint"]),
            TaskServiceStub(await opened("gateway", CONTROL)),
            {name: stack.services[name].pid for name in PROCESSES},
        )
        try:
            yield world
        finally:
            await world.close()
