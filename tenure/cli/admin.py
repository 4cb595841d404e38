"""`tenure admin`: what operators do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, caps_text, distinct_ids, make_table, seconds_text, short_id, why
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, DURATION, find_task, task_argument
from tenure.cli.verify import verify
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_pb2
from tenure.wire.common import STATES, duration, seconds, state_name

# `tenure admin aging`: tasks that have not ended, and what they stand on.

_LIVING: Final = [state.value for state in TaskState if state not in TERMINAL]


@click.command(short_help="Show the oldest tasks, and those whose worker or lease is in trouble.")
@click.option("--state", "states", multiple=True, type=click.Choice(_LIVING), help="Only these; may be repeated.")
@click.option(
    "--idle", type=DURATION, default=None, help="Held tasks only, of which nothing was committed for so long."
)
@click.option(
    "--lease-below", type=DURATION, default=None, help="Held tasks only, whose lease is gone or ends so soon."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@pass_context
def aging(context: Context, states: tuple[str, ...], idle: float | None, lease_below: float | None, limit: int) -> None:
    """Show tasks that have not ended, the oldest first.

    With --idle or --lease-below: those that a worker holds, by their ids. A lease that nobody renews lives 5 s.
    """
    held = idle is not None or lease_below is not None
    if held and states:
        raise click.UsageError("--state does not go with --idle and --lease-below: what is held is RUNNING")
    request = admin_pb.ListAgingTasksRequest(
        view=task_pb2.AGING_VIEW_HELD if held else task_pb2.AGING_VIEW_OLDEST,
        states=[STATES.to_wire(TaskState(state)) for state in states],
        idle=None if idle is None else duration(idle),
        lease_below=None if lease_below is None else duration(lease_below),
        page_size=min(limit, 500),
    )

    async def work(client: Client) -> None:
        listed, unknown = await _collect(client, request, limit)
        if unknown:
            echo("no coordinator answers: nothing is known of leases", err=True)
        if context.as_json:
            for one in listed:
                context.emit(one)
        elif not listed:
            echo("there is none", err=True)
        else:
            _show(context, listed, leases_unknown=unknown)

    context.run(work)


async def _collect(
    client: Client, request: admin_pb.ListAgingTasksRequest, limit: int
) -> tuple[list[admin_pb.ListAgingTasksResponse.Aging], bool]:
    listed: list[admin_pb.ListAgingTasksResponse.Aging] = []
    unknown = False
    async with aclosing(client.aging(request)) as pages:
        async for page in pages:
            listed += page.tasks
            unknown |= page.leases_unknown
            if len(listed) >= limit:
                break
    return listed[:limit], unknown


def _show(context: Context, listed: list[admin_pb.ListAgingTasksResponse.Aging], *, leases_unknown: bool) -> None:
    ids = distinct_ids(one.task.task_id for one in listed)
    table = make_table("TASK", "STATE", "REASON", "SUBMITTED", "CHANGED", "STEP", "QUEUE", "WORKER", "LEASE LEFT")
    for one in listed:
        task = one.task
        table.add_row(
            ids[task.task_id],
            f"{state_name(task.state)}{', to end' if task.cancel_requested else ''}",
            task.reason,
            ago(task.create_time),
            ago(task.update_time),
            str(task.step),
            task.queue,
            task.owner,
            _lease(one, leases_unknown=leases_unknown),
        )
    context.console.print(table)


def _lease(one: admin_pb.ListAgingTasksResponse.Aging, *, leases_unknown: bool) -> str:
    if not one.task.owner:
        return ""
    if leases_unknown:
        return "?"
    return seconds_text(seconds(one.lease_remaining)) if one.HasField("lease_remaining") else "gone"


# `tenure admin requeue`, `grant-budget`, `close-out`, `transfer` and `drain`: what operators do, and say why.

F = TypeVar("F", bound=Callable[..., Any])

_ENDS: Final = {
    "failed": task_pb2.TASK_STATE_FAILED,
    "timed-out": task_pb2.TASK_STATE_TIMED_OUT,
    "cancelled": task_pb2.TASK_STATE_CANCELLED,
}

reason_option = click.option("--reason", required=True, help="Why, in your words; it is recorded.")


@click.command(short_help="Let an ended task go on as its next attempt.")
@task_argument
@reason_option
@click.option("--extra-tokens", type=click.IntRange(min=0), default=0, help="Raise its cap by so many tokens.")
@click.option("--extra-steps", type=click.IntRange(min=0), default=0, help="Raise its limit by so many steps.")
@click.option("--extra-dollars", type=DOLLARS, default=0, help="Raise its cap in money by so much.")
@pass_context
def requeue(context: Context, task: str, reason: str, extra_tokens: int, extra_steps: int, extra_dollars: int) -> None:
    """Put TASK, which ended without success, back into the queue: its next attempt goes on from what is recorded.

    A task that waits for its retry is queued at once.
    """

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        queued = await client.requeue(
            task_id, reason, extra_tokens=extra_tokens, extra_steps=extra_steps, extra_nano_usd=extra_dollars
        )
        if context.as_json:
            context.emit(queued)
        else:
            echo(f"{short_id(task_id)} is queued · attempt {queued.attempt}, goes on after step {queued.step}")

    context.run(work)


@click.command("grant-budget", short_help="Let a task and its sub-agents spend more.")
@task_argument
@reason_option
@click.option("--tokens", type=click.IntRange(min=0), default=0, help="Raise the cap by so many tokens.")
@click.option("--dollars", type=DOLLARS, default=0, help="Raise the cap in money by so much, for example 0.50.")
@pass_context
def grant_budget(context: Context, task: str, reason: str, tokens: int, dollars: int) -> None:
    """Raise the caps of TASK's whole tree, which are its root's. A root that ended as COST_EXCEEDED goes on."""
    if not tokens and not dollars:
        raise click.UsageError("nothing is granted: give --tokens or --dollars")

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        root = await client.grant_budget(task_id, reason, extra_tokens=tokens, extra_nano_usd=dollars)
        if context.as_json:
            context.emit(root)
        else:
            state = state_name(root.state)
            echo(f"{short_id(root.task_id)} may use {caps_text(root.budget)}; it is {state} now")

    context.run(work)


@click.command("close-out", short_help="End a task, with a state and a result of yours.")
@task_argument
@reason_option
@click.option("--state", type=click.Choice(list(_ENDS)), default="failed", show_default=True, help="How it ends.")
@click.option("--result", default="", help="The result it ends with. Default: the agent's last words.")
@pass_context
def close_out(context: Context, task: str, reason: str, state: str, result: str) -> None:
    """Ask for TASK's end as `tenure cancel` does, with a state and a result of your choice."""

    async def work(client: Client) -> None:
        response = await client.close_out(await find_task(client, task), _ENDS[state], reason, result)
        if context.as_json:
            context.emit(response)
        elif response.HasField("end_time"):
            echo(f"{short_id(response.task_id)} has ended: {why(response.state, response.reason, response.message)}")
        else:
            now = why(response.state, "", "")
            echo(f"{short_id(response.task_id)} will end as {state.upper().replace('-', '_')}; it is {now} now")

    context.run(work)


@click.command(short_help="Take a running task from its worker.")
@task_argument
@reason_option
@click.option("--to", "to_worker_id", default="", metavar="WORKER", help="Where it is to go on. Default: any other.")
@pass_context
def transfer(context: Context, task: str, reason: str, to_worker_id: str) -> None:
    """Take TASK from the worker that holds it. Another one goes on from the last commit.

    A worker named with --to has 10 s to take it; then anybody may.
    """

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        taken = await client.transfer(task_id, reason, to_worker_id)
        if context.as_json:
            context.emit(taken)
        elif taken.owner:
            echo(f"{short_id(task_id)} is held by {taken.owner}, epoch {describe_epoch(taken.epoch)}")
        else:
            echo(f"{short_id(task_id)} is {why(taken.state, taken.reason, taken.message)}")

    context.run(work)


@click.command(short_help="Tell a worker to give back all it holds.")
@click.argument("worker")
@reason_option
@pass_context
def drain(context: Context, worker: str, reason: str) -> None:
    """Tell WORKER to give back all it holds and to take nothing more, until it is started anew."""

    async def work(client: Client) -> None:
        response = await client.drain(worker, reason)
        for one in response.workers:
            if context.as_json:
                context.emit(one)
            else:
                echo(f"{one.worker_id} is told to drain; it takes no more tasks until it is started anew")

    context.run(work)


# `tenure admin prune`: ended tasks go before their time.


@click.command(short_help="Delete ended tasks for good, before their time.")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--older-than", type=DURATION, default=None, help="All that ended so long ago: 30d, 12h.")
@click.option("--dry-run", is_flag=True, help="Only say which would go.")
@reason_option
@pass_context
def prune(context: Context, task: str | None, older_than: float | None, dry_run: bool, reason: str) -> None:
    """Delete TASK, or all tasks that ended so long ago: with their history, files and calls. Their bills stay.

    Who asks for such a task is told who pruned it, and why. With --older-than, tasks with the label
    tenure.retention=keep stay.
    """
    if (task is None) == (older_than is None):
        raise click.UsageError("name one TASK, or say --older-than")

    async def work(client: Client) -> None:
        if task is not None:
            task_id = await find_task(client, task)
            await client.prune(task_id, reason, dry_run=dry_run)
            task_ids = [task_id]
        else:
            before = datetime.now(UTC) - timedelta(seconds=older_than or 0.0)
            task_ids = [one async for some in client.prune_before(before, reason, dry_run=dry_run) for one in some]
        _show_prune(context, task_ids, dry_run=dry_run)

    context.run(work)


def _show_prune(context: Context, task_ids: list[str], *, dry_run: bool) -> None:
    if context.as_json:
        for task_id in task_ids:
            context.emit({"task_id": task_id, "pruned": not dry_run})
        return
    if dry_run:
        for task_id in task_ids:
            echo(task_id)
    count = f"{len(task_ids):,} tasks" if len(task_ids) != 1 else f"{short_id(task_ids[0])}"
    echo(f"{count} would go" if dry_run else f"{count} pruned; their bills stay")


@click.group(short_help="For operators: aging, requeue, grant-budget, close-out, transfer, drain, prune, verify.")
def admin() -> None:
    """Look after an installation, and intervene: the ledger of a task keeps who did what to it, and why."""


for command in (aging, requeue, grant_budget, close_out, transfer, drain, prune, verify):
    admin.add_command(command)
