"""`tenure admin`: the commands of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import click

from tenure.cli.answering import answer_commands
from tenure.cli.audit import audit
from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ListColumn, ago, caps_text, distinct_ids, fitted_list, seconds_text, short_id, why
from tenure.cli.group import Group, SectionedCommand
from tenure.cli.many_tasks import Selection, act_on_many, many_tasks
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, DURATION, LATER, find_task, task_argument
from tenure.cli.stops import resume, stop, stops
from tenure.cli.verify import verify
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES, duration, seconds, state_name, timestamp

# `tenure admin aging`.

_LIVE_STATES: Final = [state.value for state in TaskState if state not in TERMINAL]


@click.command(short_help="List the oldest live tasks, and held tasks that are idle or about to lose their lease.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_LIVE_STATES),
    help="Only tasks in this state; may be repeated.",
)
@click.option("--idle", type=DURATION, default=None, help="Only held tasks without a commit for this long.")
@click.option(
    "--lease-below", type=DURATION, default=None, help="Only held tasks whose lease has ended or ends within this time."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show at most this many.")
@with_client
async def aging(
    context: Context, client: Client, states: tuple[str, ...], idle: float | None, lease_below: float | None, limit: int
) -> None:
    """List tasks that have not ended, the oldest first.

    With --idle or --lease-below only tasks that a worker holds, sorted by id. By default a lease ends 5 s
    after its last renewal.
    """
    held = idle is not None or lease_below is not None
    if held and states:
        raise click.UsageError("--state cannot be given with --idle or --lease-below: held tasks are RUNNING")
    request = admin_pb.ListAgingTasksRequest(
        view=task_pb2.AGING_VIEW_HELD if held else task_pb2.AGING_VIEW_OLDEST,
        states=[STATES.to_wire(TaskState(state)) for state in states],
        idle=None if idle is None else duration(idle),
        lease_below=None if lease_below is None else duration(lease_below),
        page_size=min(limit, 500),
    )

    listed, unknown = await _collect(client, request, limit)
    if unknown:
        echo("no coordinator answers: the leases are unknown", err=True)
    context.show_all(listed, partial(_show, leases_unknown=unknown), none="no tasks")


async def _collect(
    client: Client, request: admin_pb.ListAgingTasksRequest, limit: int
) -> tuple[list[admin_pb.ListAgingTasksResponse.Aging], bool]:
    listed: list[admin_pb.ListAgingTasksResponse.Aging] = []
    unknown = False
    async with aclosing(client.pages(client.admin.ListAgingTasks, request)) as pages:
        async for page in pages:
            listed += page.tasks
            unknown |= page.leases_unknown
            if len(listed) >= limit:
                break
    return listed[:limit], unknown


def _show(context: Context, listed: Sequence[admin_pb.ListAgingTasksResponse.Aging], *, leases_unknown: bool) -> None:
    ids = distinct_ids(one.task.task_id for one in listed)
    tasks = [one.task for one in listed]
    states = [f"{state_name(task.state)}{', ending' if task.cancel_requested else ''}" for task in tasks]
    table = fitted_list(
        context.console.width,
        ListColumn("TASK", [ids[task.task_id] for task in tasks]),
        ListColumn("STATE", states),
        ListColumn("REASON", [task.reason for task in tasks]),
        ListColumn("SUBMITTED", [ago(task.create_time) for task in tasks], rank=1),
        ListColumn("CHANGED", [ago(task.update_time) for task in tasks]),
        ListColumn("STEP", [str(task.step) for task in tasks], rank=3),
        ListColumn("QUEUE", [task.queue for task in tasks], rank=4),
        ListColumn("WORKER", [task.owner for task in tasks], rank=2),
        ListColumn("LEASE LEFT", [_lease(one, leases_unknown=leases_unknown) for one in listed]),
    )
    context.console.print(table)


def _lease(one: admin_pb.ListAgingTasksResponse.Aging, *, leases_unknown: bool) -> str:
    if not one.task.owner:
        return ""
    if leases_unknown:
        return "?"
    return seconds_text(seconds(one.lease_remaining)) if one.HasField("lease_remaining") else "gone"


# `tenure admin requeue`, `grant-budget`, `close-out`, `wait`, `transfer` and `drain`. Each needs a reason.

F = TypeVar("F", bound=Callable[..., Any])

_TERMINAL_STATES: Final = {
    "succeeded": task_pb2.TASK_STATE_SUCCEEDED,
    "failed": task_pb2.TASK_STATE_FAILED,
    "timed-out": task_pb2.TASK_STATE_TIMED_OUT,
    "cancelled": task_pb2.TASK_STATE_CANCELLED,
}

reason_option = click.option("--reason", required=True, help="Why; it is recorded.")


@click.command(cls=SectionedCommand, short_help="Requeue ended tasks: each continues as its next attempt.")
@many_tasks
@reason_option
@click.option("--extra-tokens", type=click.IntRange(min=0), default=0, help="Also raise the token cap by this many.")
@click.option(
    "--extra-steps", type=click.IntRange(min=0), default=0, help="Also raise the limit of steps by this many."
)
@click.option("--extra-dollars", type=DOLLARS, default=0, help="Also raise the cap in dollars by this much.")
@with_client
async def requeue(
    context: Context,
    client: Client,
    selection: Selection,
    reason: str,
    extra_tokens: int,
    extra_steps: int,
    extra_dollars: int,
) -> None:
    """Requeue TASK, which ended in another state than SUCCEEDED: its next attempt continues from its ledger.

    A task in RETRY_SCHEDULED is queued at once.

    With several tasks, or a filter: shows what would be requeued, and asks. After an outage:

    tenure admin requeue --state FAILED --state-reason MODEL_UNAVAILABLE --ended-since 2h --reason "it is back"
    """
    if not selection.single:
        extras = ledger_pb2.OperatorRequest.Requeue(
            extra_tokens=extra_tokens, extra_steps=extra_steps, extra_nano_usd=extra_dollars
        )
        await act_on_many(context, client, selection, "requeued", reason, requeue=extras)
        return
    task_id = await find_task(client, selection.single)
    request = admin_pb.RequeueTaskRequest(
        task_id=task_id,
        reason=reason,
        extra_tokens=extra_tokens,
        extra_steps=extra_steps,
        extra_nano_usd=extra_dollars,
    )
    queued = (await client.admin.RequeueTask(request)).task
    context.say(queued, f"{short_id(task_id)} is queued · attempt {queued.attempt}, continues after step {queued.step}")


@click.command("grant-budget", short_help="Raise the budget of a task and its sub-agents.")
@task_argument
@reason_option
@click.option("--tokens", type=click.IntRange(min=0), default=0, help="Raise the token cap by this many.")
@click.option("--dollars", type=DOLLARS, default=0, help="Raise the cap in dollars by this much, for example 0.50.")
@with_client
async def grant_budget(context: Context, client: Client, task: str, reason: str, tokens: int, dollars: int) -> None:
    """Raise the caps of TASK's tree, which its root has. A root that ended as COST_EXCEEDED is requeued."""
    if not tokens and not dollars:
        raise click.UsageError("give --tokens, --dollars or both")

    task_id = await find_task(client, task)
    request = admin_pb.GrantBudgetRequest(task_id=task_id, reason=reason, extra_tokens=tokens, extra_nano_usd=dollars)
    root = (await client.admin.GrantBudget(request)).task
    state = state_name(root.state)
    context.say(root, f"{short_id(root.task_id)} may use {caps_text(root.budget)}; now it is {state}")


@click.command("close-out", short_help="End a task in a state and with a result that you choose.")
@task_argument
@reason_option
@click.option(
    "--state",
    type=click.Choice(list(_TERMINAL_STATES)),
    default="failed",
    show_default=True,
    help="The terminal state.",
)
@click.option(
    "--result", default="", help="The result of the task. Default: the agent's last answer; `succeeded` needs a result."
)
@with_client
async def close_out(context: Context, client: Client, task: str, reason: str, state: str, result: str) -> None:
    """End TASK as `tenure cancel` does, but in a state and with a result that you choose."""
    request = admin_pb.CloseOutTaskRequest(
        task_id=await find_task(client, task),
        to_state=_TERMINAL_STATES[state],
        reason=reason,
        result=result,
    )
    response = (await client.admin.CloseOutTask(request)).task
    if response.HasField("end_time"):
        text = f"has ended: {why(response.state, response.reason, response.message)}"
    else:
        text = f"will end as {state.upper().replace('-', '_')}; now it is {why(response.state, '', '')}"
    context.say(response, f"{short_id(response.task_id)} {text}")


_AT_DEADLINE: Final = {
    "continue": task_pb2.WAIT_DEADLINE_POLICY_GO_ON,
    "time-out": task_pb2.WAIT_DEADLINE_POLICY_TIME_OUT,
}


@click.command(cls=SectionedCommand, short_help="Let tasks wait until a person continues them.")
@many_tasks
@reason_option
@click.option("--for", "question", required=True, metavar="TEXT", help="What the task waits for.")
@click.option("--until", type=LATER, required=True, help="The deadline: a duration from now, or a time.")
@click.option(
    "--then",
    type=click.Choice(list(_AT_DEADLINE)),
    default="continue",
    show_default=True,
    help="What the task does at the deadline.",
)
@with_client
async def wait(
    context: Context, client: Client, selection: Selection, reason: str, question: str, until: datetime, then: str
) -> None:
    """Let TASK wait for a person, until `tenure admin continue TASK` or the deadline.

    A queued task waits at once. A running task is taken from its worker, as by `tenure admin transfer`: its next owner
    continues from its last commit. With several tasks, or a filter: shows which tasks would wait, and asks.
    """
    if not selection.single:
        begin = ledger_pb2.OperatorRequest.BeginWait(
            question=question, until=timestamp(until), at_deadline=_AT_DEADLINE[then]
        )
        await act_on_many(context, client, selection, "put into a wait", reason, begin_wait=begin)
        return
    request = admin_pb.BeginWaitRequest(
        task_id=await find_task(client, selection.single),
        reason=reason,
        question=question,
        until=timestamp(until),
        at_deadline=_AT_DEADLINE[then],
    )
    waiting = (await client.admin.BeginWait(request)).task
    if context.as_json:
        context.emit(waiting)
        return
    echo(f"{short_id(waiting.task_id)} is {why(waiting.state, waiting.reason, waiting.message)}")
    for command in answer_commands(waiting.task_id, waiting.wait) if waiting.HasField("wait") else ():
        echo(f"to continue it: {command}")


@click.command("continue", cls=SectionedCommand, short_help="Continue tasks that wait since `tenure admin wait`.")
@many_tasks
@reason_option
@with_client
async def continue_waiting(context: Context, client: Client, selection: Selection, reason: str) -> None:
    """Continue TASK, which waits since `tenure admin wait`, as `tenure resume TASK --option continue` does.

    With several tasks, or a filter: shows what would be continued, and asks.
    """
    if selection.single:
        selection = replace(selection, is_confirmed=True)
    await act_on_many(context, client, selection, "continued", reason, end_wait=admin_pb.ActOnTasksRequest.EndWait())


@click.command(short_help="Transfer a running task to another worker.")
@task_argument
@reason_option
@click.option(
    "--to", "to_worker_id", default="", metavar="WORKER", help="The worker that gets the task. Default: any other."
)
@with_client
async def transfer(context: Context, client: Client, task: str, reason: str, to_worker_id: str) -> None:
    """Transfer TASK from its worker to another, which continues from the last commit.

    The worker of --to has 10 s to take it; after that any worker may.
    """
    task_id = await find_task(client, task)
    transferred = await client.transfer(task_id, reason, to_worker_id)
    if transferred.owner:
        epoch = f", epoch {describe_epoch(transferred.epoch)}" if context.is_verbose else ""
        text = f"held by {transferred.owner}{epoch}"
    else:
        text = why(transferred.state, transferred.reason, transferred.message)
    context.say(transferred, f"{short_id(task_id)} is {text}")


@click.command(short_help="Drain a worker: it releases its tasks and takes no more.")
@click.argument("worker")
@reason_option
@with_client
async def drain(context: Context, client: Client, worker: str, reason: str) -> None:
    """Drain WORKER: it releases all its tasks and takes no more until it is restarted."""
    request = admin_pb.DrainWorkerRequest(worker_id=worker, reason=reason)
    response = await client.admin.DrainWorker(request)
    for one in response.workers:
        context.say(one, f"{one.worker_id} drains; it takes no more tasks until it is restarted")


# `tenure admin prune`.


@click.command(short_help="Delete ended tasks before their retention ends.")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--older-than", type=DURATION, default=None, help="All tasks that ended longer ago than this: 30d, 12h.")
@click.option("--dry-run", is_flag=True, help="Only show which tasks would be deleted.")
@reason_option
@with_client
async def prune(
    context: Context, client: Client, task: str | None, older_than: float | None, dry_run: bool, reason: str
) -> None:
    """Delete TASK, or all tasks of --older-than, with their ledger, files and call records. Their bills stay.

    A later request for a pruned task gets an error that says who pruned it, and why. --older-than keeps tasks with the
    label tenure.retention=keep.
    """
    if (task is None) == (older_than is None):
        raise click.UsageError("give one TASK, or --older-than")

    request = admin_pb.PruneTasksRequest(reason=reason, dry_run=dry_run)
    if task is not None:
        request.task_id = await find_task(client, task)
        await client.admin.PruneTasks(request)
        task_ids = [request.task_id]
    else:
        before = datetime.now(UTC) - timedelta(seconds=older_than or 0.0)
        request.ended_before.CopyFrom(timestamp(before))
        request.limit = _PREVIEWED
        task_ids = await _pruned(client, request)
    _show_prune(context, task_ids, dry_run=dry_run)


_PREVIEWED: Final = 500
"""The most tasks of one call, and so the most that a dry run lists."""


async def _pruned(client: Client, request: admin_pb.PruneTasksRequest) -> list[str]:
    """Deletes the tasks that ended before a moment, and returns their ids."""
    task_ids = list[str]()
    while True:
        pruned = await client.admin.PruneTasks(request)
        task_ids += pruned.task_ids
        if request.dry_run or not pruned.more:
            return task_ids


def _show_prune(context: Context, task_ids: list[str], *, dry_run: bool) -> None:
    if context.as_json:
        context.emit({"task_ids": task_ids, "more": dry_run and len(task_ids) == _PREVIEWED})
        return
    if dry_run:
        for task_id in task_ids:
            echo(task_id)
    count = f"{len(task_ids):,} tasks" if len(task_ids) != 1 else f"{short_id(task_ids[0])}"
    if dry_run and len(task_ids) == _PREVIEWED:
        count = f"{count} or more"
    echo(f"{count} would be pruned" if dry_run else f"{count} pruned; their bills stay")


@click.group(cls=Group, short_help="Repair: aging, requeue, transfer, drain, stop, prune, verify, audit …")
def admin() -> None:
    """Operate an installation. A task's ledger records each intervention with its actor and reason."""


for command in (
    *(aging, requeue, grant_budget, close_out, wait, continue_waiting, transfer, drain),
    *(stop, resume, stops, prune, verify),
):
    admin.add_command(command)
admin.add_command(audit)
