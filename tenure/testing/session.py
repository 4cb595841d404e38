"""`tenure`: what one test does with the stack. It has a tenant of its own, and leaves nothing running behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from tenure.client import Client as GatewayClient
from tenure.client.replays import check_replay, compare_runs, record_for_worker, replay_request, worker_settings
from tenure.domain.errors import WrongState
from tenure.domain.states import TERMINAL
from tenure.sdk.client import Client
from tenure.sdk.from_wire import entry_event
from tenure.sdk.loop_thread import LoopCalls
from tenure.sdk.sync_client import SyncClient
from tenure.testing.durations import Duration, seconds_of
from tenure.testing.errors import InvariantViolated, NotCleanedUp
from tenure.testing.gate import Gate, Hold
from tenure.testing.recording import Recording, Replay
from tenure.testing.script import SCRIPTED_MODEL, ScriptedModel
from tenure.testing.task import WAIT_SECONDS, TaskHandle
from tenure.testing.worker import WorkerHandle
from tenure.v1 import ledger_pb2, schedule_service_pb2, task_pb2
from tenure.wire.common import STATES

if TYPE_CHECKING:
    from tenure.sdk.events import Event
    from tenure.sdk.submit_options import SubmitOptions
    from tenure.sdk.sync_client import SyncTask
    from tenure.testing.stack import Stack

T = TypeVar("T")
CLOCK_SLACK_SECONDS: Final = 5.0
END_SECONDS: Final = 30.0
_CODE: Final = "program=… or functions=…"
_LIBRARIES: Final = {"OPENAI_API_KEY": "simulated", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
"""For the libraries of agents in a worker: what they need besides the simulator's address, and no traces to OpenAI."""


class Tenure:
    """One test's use of a stack: the fixture `tenure`, or `with Stack() as tenure`.

    `model`: the scripted model. `stack`: the processes. `tenant`: the test's own. `sync_client`: a SyncClient of it.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.tenant = f"test-{uuid.uuid4().hex[:12]}"
        self.model = ScriptedModel(stack.simulator_address)
        self.sync_client = SyncClient(stack.address, tenant=self.tenant)
        self._calls, self._hold = LoopCalls(), Hold()
        self._workers: list[tuple[WorkerHandle, Gate]] = []
        self._ahead_seconds = self._furthest_seconds = 0.0
        self.model.reset()
        self._gateway = self._calls.run(self._connected)

    async def _connected(self) -> GatewayClient:
        return GatewayClient(self.address, tenant=self.tenant).connect()

    @property
    def address(self) -> str:
        """The address of the gateway. The fixture also sets TENURE_ADDRESS and TENURE_TENANT for the test."""
        return self.stack.address

    @cached_property
    def client(self) -> Client:
        """A Client for asyncio, for the event loop of the test. Its tasks are never held (see `go`)."""
        return Client(self.address, tenant=self.tenant)

    def submit(
        self,
        goal: str,
        *,
        agent: str = "",
        input: Any = None,  # noqa: A002  the contract's word
        result: Any = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskHandle[Any]:
        """Submits a goal for an agent, with the arguments of `Client.submit`. The model is the scripted one.

        The task waits at the first point of its loop until the test's next call (see `go`).
        """
        return self._submitted(
            lambda: self.sync_client.submit(goal, agent=agent, input=input, result=result, **options)
        )

    def submit_function(self, function: str, input: Any = None, **options: Any) -> TaskHandle[Any]:  # noqa: A002  the contract's word
        """Submits a function, with the options of `Client.submit_function`. Otherwise as `submit`."""
        return self._submitted(lambda: self.sync_client.submit_function(function, input, **options))

    def _submitted(self, submit: Any) -> TaskHandle[Any]:
        self._calls.run(self._hold.begin_submit)
        task: SyncTask[Any] | None = None
        try:
            task = submit()
        finally:
            task_id = task.id if task is not None else None
            self._calls.run(lambda: self._hold.end_submit(task_id))
        return TaskHandle(task, self.go)

    def task(self, task_id: str) -> TaskHandle[Any]:
        """Returns a task of this test that another client submitted. Raises NotFound."""
        return TaskHandle(self.sync_client.get(task_id), self.go)

    @property
    def tasks(self) -> list[TaskHandle[Any]]:
        """The test's tasks, the oldest first."""
        self.go()
        return [TaskHandle(task, self.go) for task in reversed(list(self.sync_client.tasks()))]

    def go(self) -> None:
        """Lets held tasks continue.

        A task that `submit` made is held before its first step, and all of them are after a kill or a freeze at a
        point, until the test's next call: `task.result()`, `worker.kill(at=…)`, … So no task runs past a point before
        the test has named it. Call `go` if the test continues without any of these, for example with your own program.
        """
        self._calls.run(self._hold.go)

    def worker(
        self,
        *,
        functions: str | Iterable[str] = (),
        program: str | Path = "",
        queues: Iterable[str] = ("default",),
        environment: Mapping[str, str] | None = None,
    ) -> WorkerHandle:
        """Starts a worker process, and returns when it serves.

        functions: modules with FUNCTIONS (docs/control.md, docs/agents.md), found on the path of this process. program:
        your own program, which runs a `tenure.agents.Worker`, instead of `tenure serve worker`. queues: those that it
        takes tasks from. environment: further variables of the process, which inherits nothing but the path.

        Raises devstack's ServiceDied, with the end of the log, if the worker does not start.
        """
        modules = (functions,) if isinstance(functions, str) else tuple(functions)
        worker = self._start_worker(modules, program, queues, environment or {})
        if program or modules:
            self._calls.run(worker.wait_registered)
        return worker

    def _start_worker(
        self, modules: tuple[str, ...], program: str | Path, queues: Iterable[str], environment: Mapping[str, str]
    ) -> WorkerHandle:
        gate = Gate(self.stack.next_socket(), self._hold, self._entries)
        self._calls.run(gate.open)
        variables = {
            "TENURE_FAILPOINTS": gate.setting,
            "TENURE_WORKER_QUEUES": ",".join(queues),
            "TENURE_WORKER_AGENT_TENANTS": self.tenant,
            **({} if program else _loops_of(modules)),
            "PYTHONPATH": os.pathsep.join(_own_path()),
            **_LIBRARIES,
            **environment,
        }
        command = [sys.executable, str(Path(program).absolute())] if program else []
        process = self.stack.start_worker(variables, command)
        worker = WorkerHandle(process, gate, self._calls, self.go, self.story)
        self._workers.append((worker, gate))
        self._calls.run(process.wait_ready)
        return worker

    def replay(
        self,
        recording: Recording | str | Path,
        *,
        model: str = SCRIPTED_MODEL,
        functions: str | Iterable[str] = (),
        program: str | Path = "",
        timeout: float = WAIT_SECONDS,
    ) -> Replay:
        """Runs a recorded task again as a new task, and returns when it has ended, in any terminal state.

        The model is the scripted one; give it `Recording.answers` to repeat the recorded run. Its tool calls, also
        those for people, events and sub-agents, are answered from the record, and the messages that people sent are
        read at the steps of the record: nothing is executed. A worker of its own runs it.

        functions, program: the code of an agent in Python or of a function, as in `worker`. It runs again; its steps
        and its own tools do not, and get the recorded results. model "": the record also answers its model calls.

        Raises UnreadableLedger, ReplayError, and TimeoutError, which says what the task did.
        """
        recorded = recording if isinstance(recording, Recording) else Recording(recording)
        modules = (functions,) if isinstance(functions, str) else tuple(functions)
        has_code = bool(modules or program)
        check_replay(recorded.spec, recorded.path.name, _CODE, has_code=has_code, has_model=bool(model), system=False)
        request = replay_request(recorded.spec, recorded.path.name, model)
        with tempfile.TemporaryDirectory(prefix="tenure-replay-") as folder:
            record = Path(folder) / "entries"
            record.write_bytes(record_for_worker(recorded.entries))
            settings = worker_settings(record, request.spec, model, modules)
            worker = self._start_worker(modules, program, (request.spec.queue,), settings)
        submitted = self._calls.run(lambda: self._gateway.submit(request.spec.goal, request=request))
        task = self.task(submitted.task_id)
        task.wait(timeout=timeout)
        self._remove_worker(worker)
        return Replay(task, compare_runs(recorded.entries, self._calls.run(lambda: self._ledger(task.id))))

    async def _ledger(self, task_id: str) -> list[ledger_pb2.Entry]:
        async with aclosing(self._gateway.entries(task_id)) as entries:
            return [entry async for entry in entries]

    async def _entries(self, task_id: str) -> list[Event]:
        return [entry_event(entry) for entry in await self._ledger(task_id)]

    def advance(self, duration: Duration) -> None:
        """Moves the clock of the ledger forward: waits, schedules, delays of retries, timeouts and escalations are due.

        Stops at each due time of a schedule until the ledger has decided it. What a process times by its own clock (a
        model call, a tool call, a step, a session) is not moved. The next test begins at the right time again. Raises
        ValueError.
        """
        self._ahead_seconds += seconds_of(duration)
        self._furthest_seconds = self._ahead_seconds
        self.go()
        self.stack.pass_due_times(self.tenant, self._ahead_seconds)
        self.stack.set_ahead(self._ahead_seconds)

    def schedule(
        self,
        name: str,
        *,
        cron: str,
        goal: str = "",
        function: str = "",
        input: Any = None,  # noqa: A002  the contract's word
        zone: str = "",
    ) -> None:
        """Creates a schedule of a goal, or of a function with its input. `tenure.tasks` are then the tasks of its runs.

        `zone`: the time zone of the cron expression; UTC without one. Raises InvalidRequest.
        """
        control = task_pb2.ControlWork(function=function, input_json=json.dumps(input)) if function else None
        request = schedule_service_pb2.CreateScheduleRequest(
            name=name, cron=cron, time_zone=zone, spec=task_pb2.TaskSpec(goal=goal, control=control)
        )
        self._calls.run(lambda: self._gateway.schedules.CreateSchedule(request))

    def now(self) -> datetime:
        """Returns the time of the ledger, for `start_at` after an `advance`."""
        return self.stack.ledger_time()

    def effects(self, tool: str) -> int:
        """Returns the number of effects that calls of a tool began in this test, by the records of the tool service.

        All attempts of one call have the same idempotency key, so they count once.
        """
        self.go()
        return self._calls.run(lambda: self._started_calls(tool))

    async def _started_calls(self, tool: str) -> int:
        count = 0
        for task_id in await self._task_ids():
            async with aclosing(self._gateway.calls(task_id)) as pages:
                async for page in pages:
                    records = [trail.record for trail in page.calls]
                    count += sum(each.tool == tool and each.HasField("start_time") for each in records)
        return count

    def records(self, file: str) -> list[str]:
        """Returns the lines that append_record and append_record_unsafe wrote to a file in this test."""
        self.go()
        path = self.stack.records / self.tenant / f"{file}.jsonl"
        return [json.loads(line)["line"] for line in path.read_text().splitlines()] if path.exists() else []

    def verify(self) -> None:
        """Checks all invariants of the histories of the test's tasks, which may still run. Raises InvariantViolated.

        The fixture does so at the end of each test.
        """
        self.go()
        violations = self._calls.run(self._violations)
        if violations:
            raise InvariantViolated("\n".join(map(str, violations)))

    async def _violations(self) -> list[Any]:
        checker = self.stack.checker
        history = await checker.collect_tasks(self._gateway, await self._task_ids())
        effects = checker.read_effects(self.stack.records / self.tenant)
        # The clock of the ledger may be ahead of that of the tool service by as much as the test has moved it.
        slack_seconds = CLOCK_SLACK_SECONDS + self._furthest_seconds
        return list(checker.verify(replace(history, effects=effects, clock_slack_seconds=slack_seconds)))

    async def _task_ids(self) -> list[str]:
        return [task.task_id async for task in self._gateway.list_tasks(limit=2**31)]

    def story(self) -> str:
        """Returns what the tasks of the test did, for messages of failures."""
        tasks = [TaskHandle(task, self.go) for task in self.sync_client.tasks()]
        return "\n".join(task.story() for task in reversed(tasks)) or "the test has no task"

    def close(self, *, verify: bool = True) -> None:
        """Ends the test: starts killed services again, cancels tasks, deletes schedules, kills workers, and verifies.

        Raises InvariantViolated, and NotCleanedUp when a task does not end.
        """
        self.go()
        try:
            self.stack.restart_dead()
            self._calls.run(self._cancel_all)
            self._remove_workers()
            self._calls.run(self._all_ended)
            if verify:
                self.verify()
            if self._ahead_seconds:
                self._ahead_seconds = 0.0
                self.stack.set_ahead(0.0)
        finally:
            self._remove_workers()
            self.stack.forget_programs()
            self.sync_client.close()
            self._calls.run(self._gateway.close)

    def _remove_workers(self) -> None:
        while self._workers:
            self._remove_worker(self._workers[-1][0])

    def _remove_worker(self, worker: WorkerHandle) -> None:
        (pair,) = (each for each in self._workers if each[0] is worker)
        self._workers.remove(pair)
        self.stack.remove_worker(worker.name)
        self._calls.run(pair[1].close)  # after the kill: a worker that asks a gate while it closes leaves a socket open

    async def _cancel_all(self) -> None:
        async for schedule in self._gateway.items(
            self._gateway.schedules.ListSchedules,
            schedule_service_pb2.ListSchedulesRequest(),
            lambda page: page.schedules,
        ):
            request = schedule_service_pb2.DeleteScheduleRequest(schedule=schedule.schedule_id)
            await self._gateway.schedules.DeleteSchedule(request)
        for task_id in await self._live_tasks():
            with suppress(WrongState):  # it has ended meanwhile
                await self._gateway.cancel(task_id, "the test has ended")

    async def _all_ended(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                for task_id in await self._live_tasks():
                    await self._gateway.wait(task_id)
        except TimeoutError:
            raise NotCleanedUp(f"tasks did not end within {END_SECONDS:g} s of the end of the test") from None

    async def _live_tasks(self) -> list[str]:
        tasks = [task async for task in self._gateway.list_tasks(limit=2**31)]
        return [task.task_id for task in tasks if STATES.to_domain(task.state) not in TERMINAL]


def _loops_of(modules: tuple[str, ...]) -> dict[str, str]:
    """Returns the settings of a worker of agents, and of the functions of these modules."""
    loops = "messages,control" if modules else "messages"
    return {"TENURE_WORKER_LOOPS": loops, "TENURE_WORKER_CONTROL_MODULES": ",".join(modules)}


def _own_path() -> list[str]:
    """Returns the folders in which this process finds modules, without those of its environment."""
    base = Path(sys.prefix).resolve()
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    standard = Path(os.__file__).resolve().parent
    return [
        str(each)
        for each in folders
        if each.is_dir() and not each.is_relative_to(base) and not each.is_relative_to(standard)
    ]
