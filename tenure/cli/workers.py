"""`tenure claims`, `workers` and `refusals`: who works, who holds what, and what was refused to whom."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, distinct_ids, make_table
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import coordinator_service_pb2, task_pb2, token_pb2
from tenure.wire.common import PRIORITIES, seconds, to_dict


@click.command(short_help="Show who holds which task, under which epoch.")
@click.argument("task", metavar="[TASK]", required=False)
@pass_context
def claims(context: Context, task: str | None) -> None:
    """Show live claims: which worker holds which task under which epoch, and for how long without a renewal.

    An epoch is generation.revision: the life of etcd, and the revision of the claim in it.
    """

    async def work(client: Client) -> None:
        listed = await client.claims(await find_task(client, task) if task else "")
        if context.as_json:
            for claim in listed.claims:
                context.emit(claim)
        elif not listed.claims:
            echo("nobody holds it" if task else "nobody holds a task", err=True)
        else:
            _show_claims(context, listed.claims)

    context.run(work)


@click.command()
@pass_context
def workers(context: Context) -> None:
    """Show the workers that are there."""

    async def work(client: Client) -> None:
        listed = await client.workers()
        if context.as_json:
            for worker in listed.workers:
                context.emit(worker)
        elif not listed.workers:
            echo("no worker is there: tasks will wait in the queue", err=True)
        else:
            _show_workers(context, listed.workers)

    context.run(work)


@click.command(short_help="Show what stale workers were refused.")
@task_argument
@pass_context
def refusals(context: Context, task: str) -> None:
    """Show what the fences refused to workers that had lost TASK, at the ledger and at the tools."""

    async def work(client: Client) -> None:
        listed = await client.refusals(await find_task(client, task))
        if context.as_json:
            for fence, write in _refused(listed):
                context.emit({"fence": fence, **to_dict(write)})
        elif not (listed.ledger or listed.tools):
            echo("nothing was refused", err=True)
        else:
            _show_refusals(context, listed)

    context.run(work)


def _show_claims(context: Context, claims: Iterable[coordinator_service_pb2.Claim]) -> None:
    ids = distinct_ids(claim.task_id for claim in claims)
    table = make_table("TASK", "WORKER", "EPOCH", "REASON", "EPOCH BEFORE", "LEASE LEFT")
    for claim in claims:
        table.add_row(
            ids[claim.task_id],
            claim.worker_id,
            describe_epoch(claim.epoch),
            claim.reason,
            describe_epoch(claim.previous_epoch),
            f"{seconds(claim.remaining):.1f} s",
        )
    context.console.print(table)


def _show_workers(context: Context, listed: Iterable[coordinator_service_pb2.Worker]) -> None:
    table = make_table("WORKER", "HOLDS", "QUEUES", "SINCE", "COORDINATOR", "LIVE TEXT AT")
    for worker in listed:
        table.add_row(
            worker.worker_id,
            f"{worker.claim_count}{', drains' if worker.draining else ''}",
            ", ".join(worker.queues),
            ago(worker.start_time),
            worker.coordinator_id,
            worker.live_address,
        )
    context.console.print(table)


def _show_refusals(context: Context, listed: admin.ListRefusalsResponse) -> None:
    table = make_table("FENCE", "CALL", "SHOWED", "STANDS", "FROM", "WHEN")
    for fence, write in _refused(listed):
        table.add_row(
            fence,
            write.method,
            describe_epoch(write.presented_epoch),
            describe_epoch(write.current_epoch),
            write.holder,
            ago(write.refuse_time),
        )
    context.console.print(table)


def _refused(listed: admin.ListRefusalsResponse) -> Iterable[tuple[str, token_pb2.RefusedWrite]]:
    yield from (("ledger", write) for write in listed.ledger)
    yield from (("tools", write) for write in listed.tools)


# `tenure queues`: how much waits for workers, and for how long.


@click.command(short_help="Show how much waits for workers, by queue and priority.")
@click.option("--queue", "names", multiple=True, metavar="NAME", help="Only these; may be repeated.")
@pass_context
def queues(context: Context, names: tuple[str, ...]) -> None:
    """Show how many tasks wait for a worker, by queue and priority, and since when the first one does.

    All tenants' tasks count. Those HELD BACK belong to a tenant that has as many running as it may: more workers would
    not help them, and they do not count for WAITS SINCE.
    """

    async def work(client: Client) -> None:
        listed = [each for each in (await client.queues()).queues if not names or each.queue in names]
        if context.as_json:
            for each in listed:
                context.emit(each)
        elif not listed:
            echo("nothing is queued", err=True)
        else:
            _show(context, listed)

    context.run(work)


def _show(context: Context, listed: Iterable[task_pb2.QueueDepth]) -> None:
    table = make_table("QUEUE", "PRIORITY", "QUEUED", "HELD BACK", "WAITS SINCE")
    for each in listed:
        table.add_row(
            each.queue,
            PRIORITIES.to_domain(each.priority).name,
            f"{each.queued:,}",
            f"{each.held_back:,}",
            ago(each.oldest_queue_time) if each.HasField("oldest_queue_time") else "",
        )
    context.console.print(table)
