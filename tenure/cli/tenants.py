"""`tenure tenants`: what tenants may use, and how much of it they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, input_total, make_table, one_line, seconds_text, tokens_total
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, find_task
from tenure.client import Client
from tenure.domain.budget import money_text, nano_usd_of, usd
from tenure.domain.quotas import QuotaKind, QuotaPolicy
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.common import seconds
from tenure.wire.tenant_service import KINDS, POLICIES

_OPTIONS: Final = {
    "running_tasks": QuotaKind.RUNNING_TASKS,
    "submits_per_minute": QuotaKind.SUBMITS_PER_MINUTE,
    "tokens_per_hour": QuotaKind.TOKENS_PER_HOUR,
    "usd_per_day": QuotaKind.MONEY_PER_DAY,
}
_NAMES: Final = {kind: name.replace("_", " ") for name, kind in _OPTIONS.items()}

_name = click.argument("name", metavar="[NAME]", required=False, default="")


class QuotaOption(NamedTuple):
    """A quota as typed. `most` None: the default."""

    most: Decimal | None
    policy: QuotaPolicy | None


class QuotaType(click.ParamType[QuotaOption]):
    """`100`, `100,delay`, `100,refuse`; `none`; `default`."""

    name = "quota"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> QuotaOption:
        number, comma, policy = str(value).partition(",")
        if value == "default":
            return QuotaOption(None, None)
        try:
            most = Decimal(0 if number == "none" else number.replace("_", ""))
            return QuotaOption(most, QuotaPolicy(policy.upper()) if comma else None)
        except (InvalidOperation, ValueError):
            self.fail(f"{value!r} is no quota; write for example 100, 100,delay, none or default", param, ctx)


_QUOTA: Final = QuotaType()


@click.group()
def tenants() -> None:
    """See what tenants may use and do use. NAME is a tenant, without it your own; others' are for operators."""


@tenants.command("list")
@pass_context
def list_tenants(context: Context) -> None:
    """Show all tenants, by name. For operators."""

    async def work(client: Client) -> None:
        tenants = [tenant async for tenant in client.list_tenants()]
        if context.as_json:
            for tenant in tenants:
                context.emit(tenant)
            return
        table = make_table("TENANT", *(name.upper() for name in _NAMES.values()))
        for tenant in tenants:
            table.add_row(tenant.tenant, *map(_use, tenant.quotas))
        context.console.print(table)

    context.run(work)


@tenants.command()
@_name
@pass_context
def get(context: Context, name: str) -> None:
    """Show NAME's quotas, and how much of each is used."""

    async def work(client: Client) -> None:
        _show(context, await client.get_tenant(name))

    context.run(work)


@tenants.command(short_help="Set NAME's quotas.")
@_name
@click.option("--running-tasks", type=_QUOTA, help="Tasks that workers hold at a time.")
@click.option("--submits-per-minute", type=_QUOTA, help="Tasks that may start within a minute.")
@click.option("--tokens-per-hour", type=_QUOTA, help="Tokens billed within an hour.")
@click.option("--usd-per-day", type=_QUOTA, help="US dollars billed within a day, for example 12.50.")
@click.option("--reason", required=True, help="Why; it is shown to others.")
@pass_context
def limit(context: Context, /, name: str, reason: str, **options: QuotaOption | None) -> None:
    """Set NAME's quotas. For operators. What is not given stays as it is.

    A quota is a number; `100,refuse` or `100,delay` say also what a submit meets beyond it. `none`: no cap. `default`:
    that of the installation.
    """
    quotas = {_OPTIONS[option]: quota for option, quota in options.items() if quota is not None}
    if not quotas:
        raise click.UsageError("say what is to be otherwise")
    request = pb.UpdateTenantLimitsRequest(
        tenant=name,
        quotas=[_quota(kind, quota) for kind, quota in quotas.items() if quota.most is not None],
        follow_defaults=[KINDS.to_wire(kind) for kind, quota in quotas.items() if quota.most is None],
        reason=reason,
    )

    async def work(client: Client) -> None:
        request.expected_revision = (await client.get_tenant(name)).revision
        _show(context, await client.update_tenant_limits(request))

    context.run(work)


def _quota(kind: QuotaKind, quota: QuotaOption) -> pb.Quota:
    assert quota.most is not None
    is_money = kind is QuotaKind.MONEY_PER_DAY
    most = nano_usd_of(quota.most) if is_money else int(quota.most)
    if most is None or (not is_money and most != quota.most):
        raise click.UsageError(f"{_NAMES[kind]}: {quota.most} is no {'sum of money' if is_money else 'whole number'}")
    policy = pb.QUOTA_POLICY_UNSPECIFIED if quota.policy is None else POLICIES.to_wire(quota.policy)
    return pb.Quota(kind=KINDS.to_wire(kind), most=most, policy=policy)


def _show(context: Context, tenant: pb.Tenant) -> None:
    if context.as_json:
        context.emit(tenant)
        return
    table = make_table("QUOTA", "USED", "OF", "BEYOND IT", "WARNED", "")
    for use in tenant.quotas:
        kind, policy = KINDS.find(use.quota.kind), POLICIES.find(use.quota.policy)
        name = _NAMES[kind] if kind else f"quota {use.quota.kind}"
        warned = ago(use.warn_time) if use.HasField("warn_time") else ""
        if not use.quota.most:
            table.add_row(name, "", "no cap", "", warned, _whose(use))
            continue
        beyond = policy.value.lower() if policy else ""
        if use.HasField("room_after"):
            beyond += f", room in {seconds_text(seconds(use.room_after))}"
        table.add_row(name, _amount(use, use.used), _amount(use, use.quota.most), beyond, warned, _whose(use))
    context.console.print(f"tenant {tenant.tenant}", style="bold")
    context.console.print(table)
    if tenant.revision:
        context.console.print(
            f"revision {tenant.revision} by {tenant.actor}: {one_line(tenant.reason, 200)}", style="dim"
        )


def _whose(use: pb.QuotaUse) -> str:
    return "default" if use.is_default else "its own"


def _use(use: pb.QuotaUse) -> str:
    return f"{_amount(use, use.used)} of {_amount(use, use.quota.most)}" if use.quota.most else "-"


def _amount(use: pb.QuotaUse, amount: int) -> str:
    return usd(amount) if use.quota.kind == pb.QUOTA_KIND_MONEY_PER_DAY else f"{amount:,}"


# `tenure usage`: what was billed.

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
        _show_usage(context, by, rows, told_tenants=every and by != "tenant")

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


def _show_usage(context: Context, by: str, rows: list[tuple[str, pb.UsageSum]], *, told_tenants: bool) -> None:
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
