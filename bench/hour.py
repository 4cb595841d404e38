"""Measures an hour of an installation's life: traffic, kills, a rolling restart, and the restore of its stores."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.figures import Section, at_most
from bench.open_load import OpenLoad, ShortTask, ends_of, prices_variable
from bench.options import Options
from bench.prometheus_server import AlertRecord, FiredAlert, PrometheusServer, find_prometheus
from bench.restores import StoreBackup
from bench.scale_ledger import LedgerView, takeovers
from bench.span_receiver import SpanReceiver
from bench.verdict import Verdict, judge_run
from devstack import ServiceProcess, Stack, StackOptions
from devstack.options import REPLICATED
from devstack.rolling import ORDER, rolling_restart
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.domain.states import TERMINAL, Reason
from tenure.runtime.postgres import PoolOptions, open_pool

REPLICAS: Final = 2
WORKERS: Final = 3
TASK: Final = ShortTask(turns=8, model_seconds=1.2, tool_seconds=0.3)
PATIENCE_SECONDS: Final = 240.0
SPANS_SECONDS: Final = 90.0
OTHERS: Final = ("coordinator", "checkpoint", "tools", "models", "gateway")
VICTIMS: Final = tuple(kind for other in OTHERS for kind in ("worker", other))
"""What is killed, in this order again and again: every second kill hits a worker."""
DOWN: Final = "TenureComponentDown"
RAISED: Final = "TenureGenerationRaised"
LOST_CALLS: Final = "TenureModelCallsLost"
"""Fires when a killed model runner had calls in flight."""
DOWN_SECONDS: Final = 240.0
CLEARED_SECONDS: Final = 120.0
RAISED_SECONDS: Final = 1200.0
"""Longer than the 15 minutes for which the alert looks back."""
HOW: Final = (
    "A development stack on this machine with two replicas of the gateway, the coordinator, the checkpoint service, "
    "the tool service and the model runner, three workers, one Postgres, one etcd, a Prometheus with the alerts of "
    "deploy/prometheus, and a collector of traces. Tasks of eight turns (a model call of 1.2 s and an effect after "
    "0.3 s) are submitted at a steady rate. A process is killed (SIGKILL) and started again at a steady rate, every "
    "second time a worker; once every process is restarted in turn (SIGTERM), as for an upgrade. A base backup of "
    "Postgres and a snapshot of etcd are taken early, and the log of Postgres is archived. At the end all services "
    "are killed while tasks run, both stores lose their data, Postgres is restored from the backup and the log and "
    "etcd from the snapshot, the services start again, and the tasks end. Lost: not ended with success. Trace "
    "complete: the collector has every span that follows from the task's entries."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run; times in seconds.

    `stays_down`: the services are down until the alert about it fires. `sees_all_clear`: the run waits until the alert
    about the raised generation has cleared, a quarter of an hour.
    """

    seconds: float
    per_second: float
    kill_every: float
    scrape_seconds: int
    stays_down: bool
    sees_all_clear: bool

    @property
    def backup_at(self) -> float:
        return self.seconds / 10

    @property
    def restart_at(self) -> float:
        return self.seconds * 4 / 10


def plan_of(options: Options) -> Plan:
    """Returns the plan for the size of the run, and for its minutes if they are given."""
    minutes = options.minutes or options.choose(smoke=0.2, quick=3.0, full=60.0)
    return options.choose(
        smoke=Plan(minutes * 60, 1.0, 5.0, 1, False, False),
        quick=Plan(minutes * 60, 0.7, 20.0, 2, True, False),
        full=Plan(minutes * 60, 0.7, 60.0, 5, True, True),
    )


@dataclass(slots=True)
class HourRun:
    """The running parts, and what happened. `worker_kills` and `restored_at` are in seconds since 1970."""

    plan: Plan
    stack: Stack
    client: Client
    view: LedgerView
    load: OpenLoad
    spans: SpanReceiver
    backup: StoreBackup
    alerts: AlertRecord | None
    options: Options
    began_at: float = field(default_factory=time.time)
    kills: Counter[str] = field(default_factory=Counter)
    worker_kills: list[float] = field(default_factory=list)
    restarted: int = 0
    restored_at: float = 0.0
    met_by_restore: int = 0
    down_seconds: float = 0.0

    async def carry_out(self) -> None:
        """Runs the traffic with its faults. Tasks are still running when it returns."""
        loading, began = asyncio.create_task(self.load.run()), time.monotonic()
        victims = itertools.cycle(VICTIMS)
        kill_at = self.plan.kill_every
        try:
            while (now := time.monotonic() - began) < self.plan.seconds or not self.restarted:
                if not self.backup.is_taken and now >= self.plan.backup_at:
                    self.options.tell("hour: backups of Postgres and etcd")
                    await self.backup.take()
                elif not self.restarted and now >= self.plan.restart_at:
                    self.options.tell("hour: a rolling restart of everything")
                    self.restarted = len([one async for one in rolling_restart(self.stack)])
                elif now >= kill_at:
                    kill_at = max(kill_at + self.plan.kill_every, now)
                    await self._kill(next(victims))
                await asyncio.sleep(0.2)
        finally:
            if loading.done():
                loading.result()
            loading.cancel()
            await asyncio.wait([loading])

    async def _kill(self, kind: str) -> None:
        """Kills one process and starts it again, as a supervisor does."""
        choices = self.stack.workers if kind == "worker" else self.stack.replicas(kind)
        victim = choices[self.kills[kind] % len(choices)]
        self.options.tell(f"hour: kill -9 of {victim.name}")
        self.kills[kind] += 1
        if kind == "worker":
            self.worker_kills.append(time.time())
        victim.kill()
        await victim.restart()

    async def restore(self) -> None:
        """Kills all services, replaces the data of both stores by the backups, and starts everything again."""
        self.options.tell("hour: the services are killed, and the stores are restored")
        self.restored_at, began = time.time(), time.monotonic()
        tasks = await self.view.tasks(self.load.task_ids)
        self.met_by_restore = sum(state not in TERMINAL for state, _ in tasks.values())
        for service in self.stack.services.values():
            service.kill()
        await self.backup.restore()
        if self.alerts is not None and self.plan.stays_down:
            self.options.tell(f"hour: waiting for {DOWN}")
            await self.alerts.until(lambda fired: DOWN in fired, DOWN_SECONDS)
        for kind in ORDER:
            services = self.stack.workers if kind == "worker" else self.stack.replicas(kind)
            await asyncio.gather(*(_start(service) for service in services))
        self.down_seconds = time.monotonic() - began

    async def settle(self) -> Verdict:
        """Waits until all tasks have ended, and checks them."""
        self.options.tell("hour: waiting for the last tasks")
        states = await ends_of(self.view, self.load.task_ids, PATIENCE_SECONDS)
        return await judge_run(self.stack, self.client, self.view, self.load.task_ids, states)

    async def incomplete_traces(self) -> int:
        """Returns how many tasks have a span in the ledger that the collector does not have."""
        tasks = [await self.client.get(task_id) for task_id in self.load.task_ids]
        return await self.spans.incomplete(self.client, tasks, SPANS_SECONDS)

    async def alerts_settle(self) -> None:
        """Waits until the alerts of the restore have fired and cleared, as long as that takes by their rules."""
        if self.alerts is not None and self.plan.stays_down:
            self.options.tell(f"hour: waiting until {DOWN} has cleared")
            await self.alerts.until(partial(_has_cleared, DOWN), CLEARED_SECONDS)
        if self.alerts is not None and self.plan.sees_all_clear:
            self.options.tell(f"hour: waiting until {RAISED} has cleared")
            await self.alerts.until(partial(_has_cleared, RAISED), RAISED_SECONDS)


def _has_cleared(name: str, fired: dict[str, FiredAlert]) -> bool:
    return name in fired and fired[name].cleared_at is not None


async def _start(service: ServiceProcess) -> None:
    service.start()
    await service.wait_ready()


async def measure(options: Options) -> list[Section]:
    """Returns the figures of the run."""
    section = Section("An hour with faults and a restore", HOW)
    options.tell("hour: starting the stack")
    async with _run(plan_of(options), options) as run:
        await run.carry_out()
        took = time.time() - run.began_at
        await run.restore()
        verdict = await run.settle()
        incomplete = await run.incomplete_traces()
        await run.alerts_settle()
        section.add("length of the traffic", took / 60, "min", note=f"a kill every {run.plan.kill_every:g} s")
        verdict.add_to(section)
        section.add("steps", await run.view.steps(), "")
        section.add("tasks with an incomplete trace", incomplete, "", bound=at_most(0))
        section.add("requests of the client failed", run.load.failed.total(), "", bound=at_most(0))
        _add_faults(section, run)
        await _add_times(section, run)
        _add_alerts(section, run)
    return [section]


@asynccontextmanager
async def _run(plan: Plan, options: Options) -> AsyncIterator[HourRun]:
    folder = options.folder / "hour"
    async with AsyncExitStack() as opened:
        spans = await opened.enter_async_context(SpanReceiver())
        stack_options = StackOptions(
            data_dir=folder / "data",
            workers=WORKERS,
            replicas=dict.fromkeys(REPLICATED, REPLICAS),
            model_runner=True,
            scenario_files=(TASK.scenario_file(folder / "scenarios"),),
            environment={"checkpoint": {**spans.environment, **prices_variable(folder)}},
            metrics=True,
        )
        stack = await opened.enter_async_context(Stack(stack_options))
        assert stack.postgres is not None
        assert stack.etcd is not None
        backup = StoreBackup(stack.postgres, stack.etcd, folder / "backup")
        opened.callback(backup.archive.stop)
        await backup.archive.start()
        client = await opened.enter_async_context(Client(stack.gateway_address))
        pool = await opened.enter_async_context(
            open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2))
        )
        alerts = await _watched_alerts(opened, plan, stack, options)
        load = OpenLoad(client, plan.per_second)
        yield HourRun(plan, stack, client, LedgerView(pool), load, spans, backup, alerts, options)


async def _watched_alerts(opened: AsyncExitStack, plan: Plan, stack: Stack, options: Options) -> AlertRecord | None:
    """Starts Prometheus and the record of its alerts. Returns None on a machine without Prometheus."""
    program = find_prometheus()
    if program is None:
        options.tell("hour: no prometheus on the PATH, so alerts are not measured")
        return None
    server = PrometheusServer(program, stack, options.folder / "prometheus", plan.scrape_seconds)
    opened.push_async_callback(server.drain)
    server.start()
    await server.wait_ready()
    record = AlertRecord(server)
    recording = asyncio.create_task(record.run())

    async def end() -> None:
        if recording.done():
            recording.result()  # raises what ended it: without it, alerts may have been missed
        recording.cancel()
        await asyncio.wait([recording])

    opened.push_async_callback(end)
    return record


def _add_faults(section: Section, run: HourRun) -> None:
    section.add("processes killed", run.kills.total(), "", note=f"{len(run.worker_kills)} of them workers")
    section.add("processes restarted in turn", run.restarted, "")
    section.add("tasks in the middle of their work at the restore", run.met_by_restore, "")
    section.add("restore, from the end of the services to the start of all", run.down_seconds, "s")


async def _add_times(section: Section, run: HourRun) -> None:
    """Adds the pickups and takeovers before the restore."""
    starts = [one for one in await run.view.starts(run.began_at) if one.running_at < run.restored_at]
    pickups = [one.seconds for one in starts if one.reason == Reason.SUBMITTED]
    handed_over = [one.seconds for one in starts if one.reason == Reason.WORKER_DRAINED]
    over = takeovers(starts, run.worker_kills)
    samples = {
        "pickup": pickups,
        "hand-over of a drained worker": handed_over,
        "takeover from the kill": over.from_kill,
        "answer to a submit": [seconds for _, seconds in run.load.submits],
    }
    for what, seconds in samples.items():
        if seconds:
            section.add_latencies(what, seconds)


def _add_alerts(section: Section, run: HourRun) -> None:
    """Adds each alert that fired, and how many of the expected ones did not."""
    if run.alerts is None:
        return
    expected = {DOWN, RAISED} if run.plan.stays_down else {RAISED}
    fired = run.alerts.fired
    for alert in fired.values():
        known = "expected" if alert.name in {DOWN, RAISED, LOST_CALLS} else "not expected"
        end = "fires still" if alert.cleared_at is None else "cleared"
        section.add(f"alert {alert.name}", alert.seconds, "s", note=f"{known}; {end}")
    section.add("expected alerts that did not fire", len(expected - set(fired)), "", bound=at_most(0))
