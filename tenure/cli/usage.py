"""`tenure usage`: what was billed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, find_task
from tenure.cli.tables import make_table
from tenure.cli.words import input_total, tokens_total
from tenure.client import Client
from tenure.domain.money import money_text, usd
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as pb

_GROUPINGS: Final = {
    "tenant": pb.USAGE_GROUPING_TENANT,
    "root": pb.USAGE_GROUPING_ROOT,
    "model": pb.USAGE_GROUPING_MODEL,
    "day": pb.USAGE_GROUPING_DAY,
}


@click.command(short_help="Sum up what model calls were billed.")
@click.option("--by", type=click.Choice(list(_GROUPINGS)), default="tenant", show_default=True, help="Summed up by.")
@click.option("--since", type=DURATION, default="24h", show_default=True, help="Calls settled since, up to 366d.")
@click.option("--root", metavar="TASK", default="", help="Only of this root task and its sub-agents, since ever.")
@click.option("--of", "tenant", metavar="TENANT", default="", help="Another tenant's; for operators.")
@click.option("--all", "every", is_flag=True, help="Of all tenants, a line each at least; for operators.")
@pass_context
def usage(context: Context, by: str, since: float, root: str, tenant: str, every: bool) -> None:
    """Sum up what model calls were billed, pruned tasks included.

    CACHED is the share of all input that the provider read from its cache. LOST calls died with their worker, and are
    billed by what was heard of them. COST is what providers ask for: calls of models without a known price are
    unpriced, those that the model simulator answered are simulated.
    """
    if every and (root or tenant):
        raise click.UsageError("--all is not of one tenant or task")

    async def work(client: Client) -> None:
        request = pb.GetTenantUsageRequest(group_by=_GROUPINGS[by], tenant=tenant)
        if root:
            request.root_task_id = await find_task(client, root)
        else:
            request.begin_time.FromNanoseconds(int((time.time() - since) * 1e9))
        names = [one.tenant async for one in client.list_tenants()] if every else [tenant]
        rows: list[tuple[str, pb.UsageSum]] = []
        for name in names:
            request.tenant = name
            rows += [(name, one) async for one in client.usage(request)]
        _show(context, by, rows, told_tenants=every and by != "tenant")

    context.run(work)


def cached_share(usage: task_pb2.TokenUsage) -> float | None:
    """Of all input. None: there was none."""
    total = input_total(usage)
    return usage.cache_read_input_tokens / total if total else None


def cost_text(billed: pb.UsageSum, amount: Callable[[int], str] = usd) -> str:
    """What has to be paid, and for how many calls nothing can be said or is owed: a dollar sign means dollars."""
    others = ((billed.unpriced_calls, "unpriced"), (billed.simulated_calls, "simulated"))
    for count, word in others:
        if count and count == billed.calls:
            return word
    parts = [f"{count:,} {word}" for count, word in others if count]
    if billed.calls > billed.unpriced_calls + billed.simulated_calls or not parts:
        parts.insert(0, amount(billed.nano_usd - billed.simulated_nano_usd))
    return ", ".join(parts)


def _show(context: Context, by: str, rows: list[tuple[str, pb.UsageSum]], *, told_tenants: bool) -> None:
    if context.as_json:
        for _, one in rows:
            context.emit(one)
        return
    if not rows:
        echo("nothing was billed", err=True)
        return
    first = ("TENANT",) if told_tenants else ()
    table = make_table(*first, by.upper(), "CALLS", "LOST", "INPUT", "CACHED", "OUTPUT", "TOKENS", "COST")
    for column in table.columns[len(first) + 1 :]:
        column.justify = "right"
    for name, one in rows:
        share = cached_share(one.usage)
        table.add_row(
            *((name,) if told_tenants else ()),
            one.key,
            f"{one.calls:,}",
            f"{one.lost_calls:,}",
            f"{input_total(one.usage):,}",
            "-" if share is None else f"{share:.0%}",
            f"{one.usage.output_tokens:,}",
            f"{tokens_total(one.usage):,}",
            cost_text(one, usd if context.is_verbose else money_text),
        )
    context.console.print(table)
