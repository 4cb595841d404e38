"""Measures what thousands of active tasks cost: the figures behind the costs of sizing.py."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bench.processes import ProcessUse, memory_by_kind
from bench.report import Section
from bench.run import Options
from devstack import Stack, StackOptions
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.domain.errors import TryLater, WrongState
from tenure.domain.states import TaskState
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool, pool_connection
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

PAIRS: Final = 30
ANSWER_CHARACTERS: Final = 2400
FIRST_TOKEN_SHARE: Final = 0.1
CALLS_AT_ONCE: Final = 8
ANSWERS_A_POLL: Final = 500
POLL_SECONDS: Final = 1.0
SETTLING_SECONDS: Final = 2.0
STARTING_SECONDS: Final = 60.0
STREAM_SECONDS: Final = 600
PIECE_CHARACTERS: Final = 10
QUIET_SECONDS: Final = 55
LONG_LEASES: Final = {
    "TENURE_COORDINATOR_TTL_SECONDS": "15",
    "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS": "4.5",
    "TENURE_COORDINATOR_START_TIMEOUT_SECONDS": "15",
}
"""On a full machine a renewal waits for seconds. With the default, 5 s, sessions of live workers expire."""
NO_LIMITS: Final = {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "10000", "TENURE_GATEWAY_LIMIT_CLIENT_PERCENT": "100"}
HOW: Final = (
    "A development stack with two coordinators and leases of 15 s, whose tasks go on for the whole time. A turn is "
    "a streamed answer of 2,400 bytes, then a call of append_record with a delay, or in every second turn a question "
    "that a person answers later; about half of the tasks wait at any time. Pickups: moves from QUEUED to RUNNING. "
    "Memory: proportional set size beyond that of the idle stack, divided by all tasks. The simulator is not "
    "Tenure's, but shares the cores."
)
STREAMING_HOW: Final = (
    "A development stack with one worker, first without tasks, then with tasks whose model call has begun and sends "
    "nothing, then with as many tasks more whose answers arrive in one piece a second. No client watches. 1,000 µs a "
    "second is 0.1 % of a core."
)
_DUE: Final = """
select task_id::text, wait from tasks
 where wait_deadline_at is not null and waiting_since < now() - make_interval(secs => %b::float8)
 order by wait_deadline_at limit %b::int
"""
_PICKUPS: Final = "select count(*)::int from changes where state = %b"
_STEPS: Final = "select coalesce(sum(step), 0)::int from tasks"
_RUNNING: Final = "select count(*)::int from tasks where state = %b"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run; times in seconds: the model's answers, a tool, a person."""

    tasks: int
    seconds: float
    ramp: float
    workers: int
    slots: int
    answers: tuple[float, ...]
    tool: float
    person: float

    @property
    def step_seconds(self) -> float:
        """The mean time of a step, which is an answer with the tool or the person after it."""
        return sum(self.answers) / len(self.answers) + (self.tool + self.person) / 2

    def scenario_files(self, folder: Path) -> tuple[Path, ...]:
        """Writes the scenarios: for each duration of an answer one that begins with a tool and one with a person."""
        arguments = {"file": "{{goal}}", "line": "turn {{turn}}", "delay_ms": int(self.tool * 1000)}
        tool: dict[str, Any] = {"name": "append_record", "arguments": arguments}
        question: dict[str, Any] = {"name": "ask_user", "arguments": {"question": "Shall I go on?"}}
        folder.mkdir(parents=True)
        files = []
        for number, seconds in enumerate(self.answers):
            turns = [_turn(seconds, tool), _turn(seconds, question)]
            for name, pair in (("tool", turns), ("person", turns[::-1])):
                files.append(folder / f"scale-{name}-{number}.yaml")
                files[-1].write_text(yaml.safe_dump([*pair * PAIRS, {"text": "Done."}]))
        return tuple(files)


def _turn(seconds: float, call: dict[str, Any]) -> dict[str, Any]:
    milliseconds = int(seconds * 1000)
    return {
        "text": "{{turn}}".ljust(ANSWER_CHARACTERS, "."),
        "latency_ms": milliseconds,
        "first_token_ms": int(milliseconds * FIRST_TOKEN_SHARE),
        "calls": [call],
    }


@dataclass(slots=True)
class Installation:
    """A running stack with its client, and the ledger's tables."""

    stack: Stack
    client: Client
    pool: Pool
    running: list[int] = field(default_factory=list)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))

    async def submit(self, count: int, seconds: float, models: tuple[str, ...]) -> None:
        """Submits the tasks at a steady rate, as fast as the gateway takes them."""
        loop = asyncio.get_running_loop()
        began, names = loop.time(), itertools.cycle(models)

        async def one(number: int) -> None:
            await asyncio.sleep(max(0.0, began + number * seconds / count - loop.time()))
            async with self._limit:
                request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=next(names))))
                await self.client.submit(f"task-{number}", request=request)

        await asyncio.gather(*(one(number) for number in range(count)))

    async def answer(self, person_seconds: float) -> None:
        """Answers each question when its person has thought, until it is cancelled."""
        while True:
            rows = await self._read(_DUE, person_seconds, ANSWERS_A_POLL)
            await asyncio.gather(*(self._answer(task_id, wait_id) for task_id, wait_id in _waits(rows)))
            await asyncio.sleep(POLL_SECONDS)

    async def _answer(self, task_id: str, wait_id: str) -> None:
        """Answers one wait. An answer that comes too early or too late is found again by the next poll."""
        async with self._limit:
            try:
                await self.client.resume(task_id, wait_id, reply="yes", request_id=f"{task_id}/{wait_id}")
            except (TryLater, WrongState):
                return

    async def count_running(self) -> None:
        """Counts the tasks with a worker, until it is cancelled."""
        while True:
            self.running.append(await self.number(_RUNNING, TaskState.RUNNING))
            await asyncio.sleep(5 * POLL_SECONDS)

    async def until_running(self, count: int) -> None:
        """Waits until so many tasks have a worker."""
        async with asyncio.timeout(STARTING_SECONDS):
            while await self.number(_RUNNING, TaskState.RUNNING) < count:  # noqa: ASYNC110  workers take the tasks
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLING_SECONDS)

    async def micros_a_second(self, seconds: float) -> dict[str, float]:
        """Returns the processor time by kind of process, in µs a second."""
        use = ProcessUse(self.stack)
        use.start()
        await asyncio.sleep(seconds)
        return {kind: value * 1e6 / seconds for kind, value in use.seconds().items()}

    async def number(self, statement: str, *parameters: Any) -> int:
        """Returns the number that a statement selects."""
        ((number,),) = await self._read(statement, *parameters)
        return int(number)

    async def _read(self, statement: str, *parameters: Any) -> list[Any]:
        async with pool_connection(self.pool) as connection:
            return await (await connection.execute(statement, parameters)).fetchall()


async def measure(options: Options) -> list[Section]:
    """Returns the rates and costs of a mix of tasks, and those of streamed answers."""
    return [await _measure_mix(options), await _measure_streams(options)]


async def _measure_mix(options: Options) -> Section:
    plan = options.choose(
        smoke=Plan(8, 6.0, 0.5, 2, 16, (0.3, 0.5), 0.2, 0.3),
        quick=Plan(1_000, 90.0, 10.0, 4, 512, (30.0, 45.0), 12.0, 45.0),
        full=Plan(10_000, 600.0, 100.0, 8, 1024, (30.0, 45.0, 60.0), 12.0, 75.0),
    )
    files = plan.scenario_files(options.folder / "scale-scenarios")
    stack_options = StackOptions(
        data_dir=options.folder / "scale",
        workers=plan.workers,
        slots=plan.slots,
        scenario_files=files,
        replicas={"coordinator": 2},
        environment={
            "gateway": NO_LIMITS,
            "tools": {"TENURE_TOOLS_MAX_RUNNING": "1024"},
            "coordinator": LONG_LEASES,
        },
    )
    section = Section("Thousands of active tasks", HOW)
    options.tell("scale: starting the stack")
    async with _installation(stack_options) as installation:
        idle, use = memory_by_kind(installation.stack), ProcessUse(installation.stack)
        options.tell(f"scale: submitting {plan.tasks:,} tasks in {plan.ramp:g} s")
        async with _background(installation.answer(plan.person), use.sample(), installation.count_running()):
            await installation.submit(plan.tasks, plan.ramp, tuple(f"sim-{file.stem}" for file in files))
            steps, pickups = await _counts(installation)
            use.start()
            began = time.monotonic()
            options.tell(f"scale: {plan.seconds:g} s")
            await asyncio.sleep(plan.seconds)
            took, used, (steps_after, pickups_after) = (
                time.monotonic() - began,
                use.seconds(),
                await _counts(installation),
            )
            memory = memory_by_kind(installation.stack)
    section.add("tasks", plan.tasks, "")
    section.add_rounds("tasks with a worker", installation.running, "")
    without_delay = f"{plan.tasks / plan.step_seconds:.0f} without any delay"
    section.add("steps", (steps_after - steps) / took, "/s", note=without_delay)
    section.add("pickups", (pickups_after - pickups) / took, "/s")
    for kind, seconds in used.items():
        section.add(f"CPU of {kind}", 100 * seconds / took, "% of a core")
    for kind, kib in memory.items():
        grown = (kib - idle.get(kind, 0)) / plan.tasks
        section.add(f"memory of {kind}", kib / 1024, "MiB", note=f"{grown:.1f} KiB a task more")
    return section


async def _counts(installation: Installation) -> tuple[int, int]:
    return await installation.number(_STEPS), await installation.number(_PICKUPS, TaskState.RUNNING)


async def _measure_streams(options: Options) -> Section:
    """Returns the processor time of quiet tasks and of pieces, by kind of process."""
    count, seconds = options.choose(smoke=4, quick=250, full=500), options.choose(smoke=1.0, quick=8.0, full=12.0)
    folder = options.folder / "streaming-scenarios"
    folder.mkdir()
    stack_options = StackOptions(
        data_dir=options.folder / "streaming",
        workers=1,
        slots=2 * count,
        scenario_files=(_stream(folder / "quiet.yaml", QUIET_SECONDS), _stream(folder / "pieces.yaml", 1)),
        environment={"gateway": NO_LIMITS},
    )
    options.tell("scale: streamed answers")
    async with _installation(stack_options) as installation:
        idle = await installation.micros_a_second(seconds)
        await installation.submit(count, 0.0, ("sim-quiet",))
        await installation.until_running(count)
        quiet = await installation.micros_a_second(seconds)
        await installation.submit(count, 0.0, ("sim-pieces",))
        await installation.until_running(2 * count)
        pieces = await installation.micros_a_second(seconds)
    return _stream_section(count, idle, quiet, pieces)


def _stream_section(
    count: int, idle: Mapping[str, float], quiet: Mapping[str, float], pieces: Mapping[str, float]
) -> Section:
    section = Section("What a streaming task costs", STREAMING_HOW)
    section.add("tasks of each kind", count, "")
    for kind in idle:
        of_task = (quiet[kind] - idle[kind]) / count
        section.add(f"CPU of {kind}: a quiet task", of_task, "µs a second")
        section.add(f"CPU of {kind}: a piece", (pieces[kind] - quiet[kind]) / count - of_task, "µs")
    return section


def _stream(path: Path, first_token_seconds: int) -> Path:
    """Writes a model whose first piece comes late, and then one a second."""
    turn = {
        "text": "." * (PIECE_CHARACTERS * (STREAM_SECONDS - first_token_seconds)),
        "deltas": STREAM_SECONDS - first_token_seconds,
        "latency_ms": STREAM_SECONDS * 1000,
        "first_token_ms": first_token_seconds * 1000,
    }
    path.write_text(yaml.safe_dump([turn]))
    return path


@asynccontextmanager
async def _installation(options: StackOptions) -> AsyncIterator[Installation]:
    async with (
        Stack(options) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        yield Installation(stack, client, pool)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs coroutines beside the block and cancels them at its end. Raises their first error."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one) for one in work]
        yield
        for one in running:
            one.cancel()


def _waits(rows: list[Any]) -> Iterator[tuple[str, str]]:
    for task_id, encoded in rows:
        yield task_id, task_pb2.Wait.FromString(bytes(encoded)).wait_id
