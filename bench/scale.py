"""Measures thousands of active tasks while workers are killed and every service is restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bench.figures import Section, at_most
from bench.options import Options
from bench.process_use import ProcessUse, memory_by_kind
from bench.scale_ledger import LedgerView, is_takeover, repeated_lines, takeovers
from bench.scale_load import Load, Mix
from devstack import Stack, StackOptions
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.domain.states import TERMINAL, TaskState
from tenure.runtime.postgres import PoolOptions, open_pool

RESTARTED: Final = {"coordinator": 3, "checkpoint": 7, "tools": 11, "gateway": 15}
"""The services that are restarted, and when: in eighteenths of the run's time."""
POLL_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 5.0
PICKUP_MS: Final = 5000.0
TAKEOVER_MS: Final = 2000.0
LONG_LEASES: Final = {
    "TENURE_COORDINATOR_TTL_SECONDS": "15",
    "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS": "4.5",
    "TENURE_COORDINATOR_START_TIMEOUT_SECONDS": "15",
}
"""On a full machine a renewal waits for seconds. With the default, 5 s, sessions of live workers expire."""
HOW: Final = (
    "A development stack with two coordinators and leases of 15 s, whose tasks go on for the whole time. A turn "
    "is a streamed answer of 2,400 bytes, then a call of append_record with a delay, or in every second turn a "
    "question that a person answers later; about half of the tasks wait at any time. Workers are killed (SIGKILL)"
    " and replaced at a steady rate, and each service is restarted (SIGTERM) once, of the coordinators one. Times"
    " are those of the ledger's records of state changes. Pickup: QUEUED to RUNNING, after a submit or an answer."
    " Takeover from the kill: SIGKILL to RUNNING on another worker; from its detection: the record that the "
    "worker is lost to RUNNING. Lost: ended before its time, or without a new entry after the last fault. Memory:"
    " proportional set size beyond that of the idle stack, divided by all tasks; the simulator's processes are "
    "not Tenure's, but share the cores."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run; times in seconds. `patience`: for new entries of all tasks after the last fault."""

    tasks: int
    seconds: float
    ramp: float
    workers: int
    slots: int
    kill_every: float
    mix: Mix
    patience: float

    @property
    def faults(self) -> list[tuple[float, str]]:
        """The faults in order: (seconds, `worker` or the service). A service restarts at least 5 s apart from a kill,
        except in the smoke size, so that a takeover is that of one fault.
        """
        kills = [(number * self.kill_every, "worker") for number in range(1, int(self.seconds / self.kill_every))]
        restarts = [(self.seconds * eighteenths / 18, name) for name, eighteenths in RESTARTED.items()]
        return sorted([*kills, *restarts])


def plan_of(options: Options) -> Plan:
    """Returns the plan for the size of the run."""
    return options.choose(
        smoke=Plan(8, 6.0, 0.5, 2, 16, 3.0, Mix((0.3, 0.5), 0.2, 0.3), 60.0),
        quick=Plan(1_000, 90.0, 10.0, 4, 512, 30.0, Mix((30.0, 45.0), 12.0, 45.0), 120.0),
        full=Plan(10_000, 600.0, 100.0, 8, 1024, 60.0, Mix((30.0, 45.0, 60.0), 12.0, 75.0), 300.0),
    )


@dataclass(slots=True)
class Run:
    """The running stack and its load. `kills`: when workers were killed, in seconds since 1970."""

    plan: Plan
    stack: Stack
    load: Load
    view: LedgerView
    options: Options
    kills: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    async def make_faults(self) -> None:
        """Kills workers and restarts services by the plan, and returns at the end of its time."""
        began, victims = time.monotonic(), 0
        for at, name in self.plan.faults:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            if name == "worker":
                victim = self.stack.workers[victims % len(self.stack.workers)]
                victims += 1
                self.options.tell(f"scale: kill -9 of {victim.name}")
                self.kills.append(time.time())
                victim.kill()
                victim.start()
            else:
                self.options.tell(f"scale: restart of {name}")
                await self.stack.services[name].restart()
        await asyncio.sleep(max(0.0, began + self.plan.seconds - time.monotonic()))

    async def count_running(self) -> None:
        """Counts the tasks with a worker, until it is cancelled."""
        while True:
            self.running.append(await self.view.running())
            await asyncio.sleep(5 * POLL_SECONDS)

    async def lost(self, task_ids: list[str]) -> int:
        """Waits for a new entry of every task. Returns how many ended, vanished, or have none in time."""
        known = {task_id: sequence for task_id, (_, sequence) in (await self.view.tasks(task_ids)).items()}
        missing = set(task_ids)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.plan.patience):
                while missing:
                    tasks = await self.view.tasks(task_ids)
                    missing = {one for one in task_ids if not _goes_on(tasks.get(one), known.get(one, 0))}
                    await asyncio.sleep(POLL_SECONDS)
        return len(missing)


def _goes_on(task: tuple[TaskState, int] | None, known: int) -> bool:
    return task is not None and task[0] not in TERMINAL and task[1] > known


async def measure(options: Options) -> list[Section]:
    """Returns the figures of the run."""
    plan, section = plan_of(options), Section("Thousands of active tasks under faults", HOW)
    options.tell("scale: starting the stack")
    async with _run(plan, options) as run:
        await asyncio.sleep(options.choose(smoke=0.1, quick=IDLE_SECONDS, full=IDLE_SECONDS))
        idle = memory_by_kind(run.stack)
        options.tell(f"scale: submitting {plan.tasks:,} tasks in {plan.ramp:g} s")
        use = ProcessUse(run.stack)
        async with _background(run.load.answer(), use.sample(), run.count_running()):
            task_ids = await run.load.submit(plan.tasks, plan.ramp)
            began, steps, start_at = time.monotonic(), await run.view.steps(), time.time()
            use.start()
            options.tell(f"scale: {plan.seconds:g} s with faults")
            await run.make_faults()
            took, used, steps = time.monotonic() - began, use.seconds(), await run.view.steps() - steps
            memory = memory_by_kind(run.stack)
            options.tell("scale: waiting for a new entry of every task")
            lost = await run.lost(task_ids)
        _add_rates(section, run, steps / took)
        await _add_latencies(section, run, start_at)
        await _add_losses(section, run, lost)
        for kind, seconds in used.items():
            section.add(f"CPU of {kind}", 100 * seconds / took, "% of a core")
        for kind, kib in memory.items():
            grown = kib - idle.get(kind, 0)
            section.add(f"memory of {kind}", kib / 1024, "MiB", note=f"{grown / plan.tasks:.1f} KiB a task more")
    return [section]


@asynccontextmanager
async def _run(plan: Plan, options: Options) -> AsyncIterator[Run]:
    files = plan.mix.scenario_files(options.folder / "scale-scenarios")
    stack_options = StackOptions(
        data_dir=options.folder / "scale",
        workers=plan.workers,
        slots=plan.slots,
        scenario_files=files,
        replicas={"coordinator": 2},  # with one, its restart takes about as long as the leases last
        environment={
            "gateway": {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "10000", "TENURE_GATEWAY_LIMIT_CLIENT_PERCENT": "100"},
            "tools": {"TENURE_TOOLS_MAX_RUNNING": "1024"},
            "coordinator": LONG_LEASES,
        },
    )
    models = tuple(f"sim-{file.stem}" for file in files)
    async with (
        Stack(stack_options) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        yield Run(plan, stack, Load(client, pool, plan.mix, models), LedgerView(pool), options)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs coroutines beside the block and cancels them at its end. Raises their first error."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one) for one in work]
        yield
        for one in running:
            one.cancel()


def _add_rates(section: Section, run: Run, steps: float) -> None:
    section.add("tasks", run.plan.tasks, "")
    section.add_rounds("tasks with a worker", run.running, "")
    section.add("steps", steps, "/s", note=f"{run.plan.tasks / run.plan.mix.step_seconds:.0f} without any delay")


async def _add_latencies(section: Section, run: Run, since: float) -> None:
    starts = await run.view.starts(since)
    over = takeovers(starts, run.kills)
    samples = {
        ("pickup", PICKUP_MS): [start.seconds for start in starts if not is_takeover(start)],
        ("takeover from the kill", None): over.from_kill,
        ("takeover from its detection", TAKEOVER_MS): over.from_detection,
    }
    for (what, limit), seconds in samples.items():
        if seconds:
            section.add_latencies(what, seconds, bound=None if limit is None else at_most(limit))


async def _add_losses(section: Section, run: Run, lost: int) -> None:
    calls = await run.view.model_calls()
    section.add("workers killed", len(run.kills), "", note=f"restarted once: {', '.join(RESTARTED)}")
    section.add("tasks lost", lost, "", bound=at_most(0))
    section.add("steps answered twice", await run.view.answered_twice(), "", bound=at_most(0))
    section.add("effects repeated", repeated_lines(run.stack.layout.records), "", bound=at_most(0))
    section.add(
        "model calls begun again", calls.repeated, "", note=f"of {calls.made:,}; one for each lost worker may be"
    )
    section.add("tasks with more of them than lost workers", calls.beyond, "", bound=at_most(0))
    section.add("answers of people that had to be sent again", run.load.unanswered, "")
