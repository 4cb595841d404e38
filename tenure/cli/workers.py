"""`tenure claims`, `workers`, `refusals` and `queues`: the live claims and sessions, refused writes, queued tasks."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, distinct_ids, make_table, seconds_text
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import coordinator_service_pb2, task_pb2, token_pb2
from tenure.wire.common import PRIORITIES, seconds, to_dict, unix_seconds


@click.command(short_help="List the live claims: task, worker, epoch, lease.")
@click.argument("task", metavar="[TASK]", required=False)
@pass_context
def claims(context: Context, task: str | None) -> None:
    """List the live claims: task, worker, epoch, renewals, and when the lease ends without a renewal.

    An epoch is shown as generation.revision: the generation of etcd, and the create revision of the claim's key.
    """

    async def work(client: Client) -> None:
        listed = await client.claims(await find_task(client, task) if task else "")
        if context.as_json:
            for claim in listed.claims:
                context.emit(claim)
        elif not listed.claims:
            echo("no worker holds the task" if task else "no worker holds a task", err=True)
        else:
            _show_claims(context, listed.claims)

    context.run(work)


@click.command(short_help="List the workers that have a session.")
@pass_context
def workers(context: Context) -> None:
    """List the workers that have a session, the number of tasks that each holds, and its coordinator."""

    async def work(client: Client) -> None:
        listed = await client.workers()
        if context.as_json:
            for worker in listed.workers:
                context.emit(worker)
        elif not listed.workers:
            echo("no worker has a session: tasks wait in the queue until one starts", err=True)
        else:
            _show_workers(context, listed.workers)

    context.run(work)


@click.command(short_help="List the refused writes of stale workers.")
@task_argument
@pass_context
def refusals(context: Context, task: str) -> None:
    """List the refused writes of TASK: stale writes that the fences of the ledger and of the tool service refused."""

    async def work(client: Client) -> None:
        listed = await client.refusals(await find_task(client, task))
        if context.as_json:
            for fence, write in _refused_writes(listed):
                context.emit({"fence": fence, **to_dict(write)})
        elif not (listed.ledger or listed.tools):
            echo("no write was refused", err=True)
        else:
            _show_refusals(context, listed)

    context.run(work)


def _show_claims(context: Context, claims: Iterable[coordinator_service_pb2.Claim]) -> None:
    ids = distinct_ids(claim.task_id for claim in claims)
    table = make_table("TASK", "WORKER", "EPOCH", "REASON", "EPOCH BEFORE", "RENEWALS", "LEASE LEFT")
    for claim in claims:
        table.add_row(
            ids[claim.task_id],
            claim.worker_id,
            describe_epoch(claim.epoch),
            claim.reason,
            describe_epoch(claim.previous_epoch),
            _renewals(claim),
            f"{seconds(claim.remaining):.1f} s",
        )
    context.console.print(table)


def _renewals(claim: coordinator_service_pb2.Claim) -> str:
    """Returns the number and the time from first to newest, `12 in 17 s`; "-": none is known."""
    if not claim.HasField("renewals"):
        return "-"
    first, last = (unix_seconds(moment) for moment in (claim.renewals.first_time, claim.renewals.last_time))
    return f"{claim.renewals.count:,} in {seconds_text(last - first)}"


def _show_workers(context: Context, listed: Iterable[coordinator_service_pb2.Worker]) -> None:
    table = make_table("WORKER", "HOLDS", "QUEUES", "SINCE", "COORDINATOR", "LIVE TEXT AT")
    for worker in listed:
        table.add_row(
            worker.worker_id,
            f"{worker.claim_count}{', draining' if worker.draining else ''}",
            ", ".join(worker.queues),
            ago(worker.start_time),
            worker.coordinator_id,
            worker.live_address,
        )
    context.console.print(table)


def _show_refusals(context: Context, listed: admin.ListRefusalsResponse) -> None:
    table = make_table("FENCE", "METHOD", "PRESENTED", "CURRENT", "WORKER", "REFUSED")
    for fence, write in _refused_writes(listed):
        table.add_row(
            fence,
            write.method,
            describe_epoch(write.presented_epoch),
            describe_epoch(write.current_epoch),
            write.holder,
            ago(write.refuse_time),
        )
    context.console.print(table)


def _refused_writes(listed: admin.ListRefusalsResponse) -> Iterable[tuple[str, token_pb2.RefusedWrite]]:
    yield from (("ledger", write) for write in listed.ledger)
    yield from (("tools", write) for write in listed.tools)


# `tenure queues`.


@click.command(short_help="List how many tasks wait for a worker, by queue and priority.")
@click.option("--queue", "names", multiple=True, metavar="NAME", help="Only this queue; may be repeated.")
@pass_context
def queues(context: Context, names: tuple[str, ...]) -> None:
    """List how many tasks wait for a worker, by queue and priority, and since when the oldest waits.

    Tasks of all tenants count. Tasks HELD BACK belong to a tenant that has reached its quota of running tasks: more
    workers would not help them, and WAITS SINCE does not count them.
    """

    async def work(client: Client) -> None:
        listed = [queue for queue in (await client.queues()).queues if not names or queue.queue in names]
        if context.as_json:
            for queue in listed:
                context.emit(queue)
        elif not listed:
            echo("no task is queued", err=True)
        else:
            _show(context, listed)

    context.run(work)


def _show(context: Context, listed: Iterable[task_pb2.QueueDepth]) -> None:
    table = make_table("QUEUE", "PRIORITY", "QUEUED", "HELD BACK", "WAITS SINCE")
    for queue in listed:
        table.add_row(
            queue.queue,
            PRIORITIES.to_domain(queue.priority).name,
            f"{queue.queued:,}",
            f"{queue.held_back:,}",
            ago(queue.oldest_queue_time) if queue.HasField("oldest_queue_time") else "",
        )
    context.console.print(table)
