"""`tenure top`: the tasks, the workers and the spend of a tenant on one screen, read again every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import count_text, harmless, one_line, state_style, tokens_total
from tenure.cli.group import SectionedCommand
from tenure.cli.task_filter import filter_options
from tenure.cli.task_list import task_table
from tenure.cli.tenants import cost_text
from tenure.client import Client
from tenure.domain.errors import PermissionDenied, TryLater
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.wire.common import STATES, state_name

T = TypeVar("T")

OTHER_LINES: Final = 8
"""The lines of the screen besides those of tasks."""
MOST_TASKS: Final = 200
_FIRST: Final = (
    *(TaskState.WAITING_USER, TaskState.RUNNING, TaskState.RETRY_SCHEDULED),
    *(TaskState.QUEUED, TaskState.WAITING_EXTERNAL),
)
"""Live tasks come before ended ones, and first what waits for a person."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What one look found. None: the caller may not read it."""

    counts: api.CountTasksResponse
    tasks: Sequence[task_pb2.Task]
    workers: Sequence[admin.Worker] | None
    spend: Sequence[tenants.UsageSum] | None


@click.command(cls=SectionedCommand, short_help="Show tasks, workers and spend on one screen, until Ctrl-C.")
@filter_options()
@click.option(
    "--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between two looks."
)
@with_client
async def top(context: Context, client: Client, task_filter: task_pb2.TaskFilter, every: float) -> None:
    """Show the tasks, the workers and the spend of the last 24 hours on one screen, until Ctrl-C.

    Tasks that wait for a person come first, then those that run, then the newest that ended. Without a terminal, the
    command prints one screen and ends; --json prints the counts.
    """
    console = context.console
    if context.as_json:
        context.emit(await client.tasks.CountTasks(api.CountTasksRequest(filter=task_filter)))
    elif not console.is_terminal:
        console.print(screen(await look(client, task_filter, MOST_TASKS), console.width))
    else:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for shown in _screens(client, task_filter, context):
                live.update(shown, refresh=True)
                await asyncio.sleep(every)


async def _screens(client: Client, wanted: task_pb2.TaskFilter, context: Context) -> AsyncIterator[RenderableType]:
    """Yields a screen for each look. While the gateway does not answer, the last screen says so."""
    shown: RenderableType = Text("")
    while True:
        try:
            frame = await look(client, wanted, max(1, context.console.height - OTHER_LINES))
            shown = screen(frame, context.console.width)
            yield Group(shown, Text("Ctrl-C ends", style="dim"))
        except TryLater as error:
            message = one_line(f"{time.strftime('%H:%M:%S')} no answer: {error}", context.console.width)
            yield Group(shown, Text(message, style="yellow"))


async def look(client: Client, wanted: task_pb2.TaskFilter, most: int) -> Frame:
    """Reads what one screen shows."""
    counts, live, workers, spend = await asyncio.gather(
        client.tasks.CountTasks(api.CountTasksRequest(filter=wanted)),
        _tasks(client, wanted, [state for state in _FIRST if _may_have(wanted, state)], most),
        _if_allowed(_workers(client)),
        _if_allowed(_spend(client)),
    )
    live.sort(key=lambda task: _FIRST.index(STATES.to_domain(task.state)) if task.state in _LIVE else len(_FIRST))
    ended = [state for state in sorted(TERMINAL) if _may_have(wanted, state)]
    tasks = live + await _tasks(client, wanted, ended, most - len(live))
    return Frame(counts, tasks, workers, spend)


_LIVE: Final = frozenset(STATES.to_wire(state) for state in _FIRST)


def _may_have(wanted: task_pb2.TaskFilter, state: TaskState) -> bool:
    return not wanted.states or STATES.to_wire(state) in wanted.states


async def _tasks(
    client: Client, wanted: task_pb2.TaskFilter, states: Sequence[TaskState], most: int
) -> list[task_pb2.Task]:
    """Returns the newest tasks in these states. A look reads one page, however few tasks match."""
    if not states or most <= 0:
        return []
    narrowed = task_pb2.TaskFilter()
    narrowed.CopyFrom(wanted)
    narrowed.states[:] = [STATES.to_wire(state) for state in states]
    page = await client.tasks.ListTasks(api.ListTasksRequest(filter=narrowed, page_size=most))
    return list(page.tasks)


async def _workers(client: Client) -> Sequence[admin.Worker]:
    return (await client.workers()).workers


async def _spend(client: Client) -> Sequence[tenants.UsageSum]:
    request = tenants.GetTenantUsageRequest(group_by=tenants.USAGE_GROUPING_MODEL)
    async with aclosing(client.items(client.tenants.GetTenantUsage, request, lambda page: page.sums)) as sums:
        return [one async for one in sums]


async def _if_allowed(work: Awaitable[T]) -> T | None:
    try:
        return await work
    except PermissionDenied:
        return None


def screen(frame: Frame, width: int) -> RenderableType:
    """Returns what one look found, in lines of the width."""
    return Group(*_head(frame, width), Text(""), task_table(width, frame.tasks))


def _head(frame: Frame, width: int) -> Iterator[Text]:
    yield _counts(frame.counts)
    if frame.workers is not None:
        held = "  ".join(f"{worker.worker_id} {worker.claim_count}" for worker in frame.workers)
        yield Text(one_line(f"{count_text(len(frame.workers), 'worker')}: {held or 'tasks wait for one'}", width))
    if frame.spend is not None:
        billed = _sum(frame.spend)
        dearest = ", ".join(one.key for one in sorted(frame.spend, key=lambda one: -one.nano_usd)[:3])
        used = f"{cost_text(billed)} · {tokens_total(billed.usage):,} tokens · {count_text(billed.calls, 'call')}"
        yield Text(one_line(f"last 24 h: {used}{f' · {harmless(dearest)}' if dearest else ''}", width))


def _counts(counts: api.CountTasksResponse) -> Text:
    parts: list[str | tuple[str, str]] = []
    for one in counts.counts:
        state = state_name(one.state)
        parts += ["  " if parts else "", (f"{state} {one.count:,}{'+' * one.at_least}", state_style(state))]
    return Text.assemble(*parts) if parts else Text("no task matches")


def _sum(sums: Sequence[tenants.UsageSum]) -> tenants.UsageSum:
    total = tenants.UsageSum()
    numbers = ("calls", "lost_calls", "nano_usd", "simulated_calls", "simulated_nano_usd", "unpriced_calls")
    for one in sums:
        for name in numbers:
            setattr(total, name, getattr(total, name) + getattr(one, name))
        for field, count in one.usage.ListFields():
            setattr(total.usage, field.name, getattr(total.usage, field.name) + count)
    return total
