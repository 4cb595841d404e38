"""`tenure workers`: the sessions, the live claims and the queues; `tenure tasks refusals`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, distinct_ids, make_table, seconds_text
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.sdk.operations_from_wire import refused_write_info
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2, token_pb2
from tenure.wire.common import PRIORITIES, seconds, to_dict, unix_seconds


@click.command(short_help="List the live claims: task, worker, lease.")
@click.argument("task", metavar="[TASK]", required=False)
@with_client
async def claims(context: Context, client: Client, task: str | None) -> None:
    """List the live claims: task, worker, renewals, and when the lease ends without a renewal.

    With -v also epochs, as generation.revision: the generation of etcd, and the create revision of the claim's key.
    """
    listed = await client.claims(await find_task(client, task) if task else "")
    context.show_all(listed.claims, _show_claims, none="no worker holds the task" if task else "no worker holds a task")


@click.group(invoke_without_command=True, short_help="List the workers, their claims, and the queues.")
@click.pass_context
def workers(command: click.Context) -> None:
    """List the workers, the tasks that they hold, and the tasks that wait for them."""
    if command.invoked_subcommand is None:
        echo("tenure: `tenure workers` is now `tenure workers list`", err=True)
        command.invoke(list_workers)


@workers.command("list", short_help="List the workers that have a session.")
@with_client
async def list_workers(context: Context, client: Client) -> None:
    """List the workers that have a session, the number of tasks that each holds, and its coordinator."""
    listed = await client.workers()
    context.show_all(
        listed.workers, _show_workers, none="no worker has a session: tasks wait in the queue until one starts"
    )


@click.command(short_help="List the refused writes of stale workers.")
@task_argument
@with_client
async def refusals(context: Context, client: Client, task: str) -> None:
    """List the refused writes of TASK: stale writes that the fences of the ledger and of the tool service refused."""
    listed = await client.refusals(await find_task(client, task))
    if context.as_json:
        for fence, write in _refused_writes(listed):
            shown = {"fence": fence, **to_dict(write)} if context.is_verbose else refused_write_info(fence, write)
            context.emit(shown)
    elif not (listed.ledger or listed.tools):
        echo("no write was refused", err=True)
    else:
        _show_refusals(context, listed)


def _show_claims(context: Context, claims: Iterable[admin.Claim]) -> None:
    ids = distinct_ids(claim.task_id for claim in claims)
    epochs = ("EPOCH", "EPOCH BEFORE") if context.is_verbose else ()
    table = make_table("TASK", "WORKER", "REASON", "RENEWALS", "LEASE LEFT", *epochs)
    for claim in claims:
        table.add_row(
            ids[claim.task_id],
            claim.worker_id,
            claim.reason,
            _renewals(claim),
            seconds_text(seconds(claim.remaining)),
            *map(describe_epoch, (claim.epoch, claim.previous_epoch) if context.is_verbose else ()),
        )
    context.console.print(table)


def _renewals(claim: admin.Claim) -> str:
    """Returns the number and the time from first to newest, `12 in 17 s`, and whether the model call waits at the model
    runner; "-": none is known.
    """
    if not claim.HasField("renewals"):
        return "-"
    first, last = (unix_seconds(moment) for moment in (claim.renewals.first_time, claim.renewals.last_time))
    waits = "; its model call waits" if claim.renewals.model_call_waits else ""
    return f"{claim.renewals.count:,} in {seconds_text(last - first)}{waits}"


def _show_workers(context: Context, listed: Iterable[admin.Worker]) -> None:
    listed = list(listed)
    build = ("BUILD",) if any(worker.build for worker in listed) else ()
    table = make_table("WORKER", "HOLDS", "QUEUES", *build, "SINCE", "COORDINATOR", "LIVE TEXT AT")
    for worker in listed:
        table.add_row(
            worker.worker_id,
            f"{worker.claim_count}{', draining' if worker.draining else ''}",
            ", ".join(worker.queues),
            *([worker.build or "-"] if build else []),
            ago(worker.start_time),
            worker.coordinator_id,
            worker.live_address,
        )
    context.console.print(table)


def _show_refusals(context: Context, listed: admin.ListRefusalsResponse) -> None:
    epochs = ("EPOCH", "FENCE AT") if context.is_verbose else ()
    table = make_table("REFUSED BY", "METHOD", "WORKER", "WHEN", *epochs)
    for fence, write in _refused_writes(listed):
        table.add_row(
            fence,
            write.method,
            write.holder,
            ago(write.refuse_time),
            *map(describe_epoch, (write.presented_epoch, write.current_epoch) if context.is_verbose else ()),
        )
    context.console.print(table)


def _refused_writes(listed: admin.ListRefusalsResponse) -> Iterable[tuple[str, token_pb2.RefusedWrite]]:
    yield from (("ledger", write) for write in listed.ledger)
    yield from (("tools", write) for write in listed.tools)


# `tenure workers queues`.


@click.command(short_help="List how many tasks wait for a worker, by queue and priority.")
@click.option("--queue", "names", multiple=True, metavar="NAME", help="Only this queue; may be repeated.")
@with_client
async def queues(context: Context, client: Client, names: tuple[str, ...]) -> None:
    """List how many tasks wait for a worker, by queue and priority, and since when the oldest waits.

    Tasks of all tenants count. Tasks HELD BACK belong to a tenant that has reached its quota of running tasks, or are
    STOPPED by an operator: more workers would not help them, and WAITS SINCE does not count them.
    """
    listed = [
        queue
        for queue in (await client.admin.ListQueues(admin.ListQueuesRequest())).queues
        if not names or queue.queue in names
    ]
    context.show_all(listed, _show, none="no task is queued")


def _show(context: Context, listed: Iterable[task_pb2.QueueDepth]) -> None:
    table = make_table("QUEUE", "PRIORITY", "QUEUED", "HELD BACK", "STOPPED", "WAITS SINCE")
    for queue in listed:
        table.add_row(
            queue.queue,
            PRIORITIES.to_domain(queue.priority).name,
            f"{queue.queued:,}",
            f"{queue.held_back:,}",
            f"{queue.stopped:,}",
            ago(queue.oldest_queue_time) if queue.HasField("oldest_queue_time") else "",
        )
    context.console.print(table)


workers.add_command(claims)
workers.add_command(queues)
