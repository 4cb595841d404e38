"""`tenure tenants`: the quotas of tenants, their use, and the bills."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

import click

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, input_total, make_table, one_line, seconds_text, tokens_total
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, Typed, find_task
from tenure.cli.stops import warn_of
from tenure.client import Client
from tenure.domain.budget import money_text, nano_usd_of, usd
from tenure.domain.quotas import QuotaKind, QuotaPolicy
from tenure.sdk.operations_from_wire import usage_info
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.common import seconds
from tenure.wire.tenant_service import KINDS, POLICIES

_OPTIONS: Final = {
    "running_tasks": QuotaKind.RUNNING_TASKS,
    "submits_per_minute": QuotaKind.SUBMITS_PER_MINUTE,
    "tokens_per_hour": QuotaKind.TOKENS_PER_HOUR,
    "usd_per_day": QuotaKind.MONEY_PER_DAY,
    "emails_per_hour": QuotaKind.EMAILS_PER_HOUR,
}
_NAMES: Final = {kind: name.replace("_", " ") for name, kind in _OPTIONS.items()}

MAX_QUOTA: Final = 2**63 - 1
"""The largest number of the contract's field."""

_name = click.argument("name", metavar="[NAME]", required=False, default="")


class QuotaOption(NamedTuple):
    """A quota as typed. `most` is None for the default of the installation."""

    most: Decimal | None
    policy: QuotaPolicy | None


def _quota_option(text: str) -> QuotaOption:
    """Reads `100`, `100,delay`, `100,refuse` or `default`."""
    number, comma, policy = text.partition(",")
    if text == "default":
        return QuotaOption(None, None)
    try:
        most = Decimal(number.replace("_", ""))
        beyond = QuotaPolicy(policy.upper()) if comma else None
    except (InvalidOperation, ValueError):
        most, beyond = Decimal("NaN"), None
    if not most.is_finite() or most < 0:
        raise ValueError(f"{text!r} is not a quota; write for example 100, 100,delay or default")
    return QuotaOption(most, beyond)


_QUOTA: Final = Typed("quota", _quota_option)


@click.group(short_help="Show and set the quotas of tenants; sum up their bills.")
def tenants() -> None:
    """Show and set the quotas of tenants. NAME is a tenant; default: your own. Other tenants are for operators."""


@tenants.command("list")
@with_client
async def list_tenants(context: Context, client: Client) -> None:
    """List all tenants, by name. For operators."""
    listed = client.items(client.tenants.ListTenants, pb.ListTenantsRequest(), lambda page: page.tenants)
    await context.show_each(listed, _show_all)


def _show_all(context: Context, tenants: Iterable[pb.Tenant]) -> None:
    table = make_table("TENANT", *(name.upper() for name in _NAMES.values()))
    for tenant in tenants:
        table.add_row(tenant.tenant, *(_use(context, use) for use in tenant.quotas))
    context.console.print(table)


@tenants.command()
@_name
@with_client
async def get(context: Context, client: Client, name: str) -> None:
    """Show the quotas of NAME, and how much of each is used."""
    context.show((await client.tenants.GetTenant(pb.GetTenantRequest(tenant=name))).tenant, _show)


@tenants.command(short_help="Set the quotas of NAME.")
@_name
@click.option("--running-tasks", type=_QUOTA, help="Running tasks at a time.")
@click.option(
    "--submits-per-minute", type=_QUOTA, help="Submits within a minute; a task with a start time counts when it starts."
)
@click.option("--tokens-per-hour", type=_QUOTA, help="Tokens billed within an hour.")
@click.option("--usd-per-day", type=_QUOTA, help="US dollars billed within a day, for example 12.50.")
@click.option(
    "--emails-per-hour",
    type=_QUOTA,
    help="Recipients of e-mail within an hour, 20 or more; e-mail beyond it is sent later.",
)
@click.option(
    "--no-limit",
    type=click.Choice([name.replace("_", "-") for name in _OPTIONS]),
    multiple=True,
    help="Remove this quota.",
)
@click.option("--reason", required=True, help="Why; recorded and shown to others.")
@with_client
async def limit(
    context: Context,
    client: Client,
    /,
    name: str,
    reason: str,
    no_limit: tuple[str, ...],
    **options: QuotaOption | None,
) -> None:
    """Set the quotas of NAME. For operators. Quotas that are not given keep their values.

    A quota is a number; 0 running tasks, tokens or dollars stop NAME as `tenure admin stop` does. With `100,refuse` or
    `100,delay` it also sets whether work beyond it is refused or delayed. `default` follows the installation's default.
    """
    quotas = {_OPTIONS[option]: quota for option, quota in options.items() if quota is not None}
    removed = [_OPTIONS[option.replace("-", "_")] for option in no_limit]
    if not quotas and not removed:
        raise click.UsageError("give at least one quota to change")
    request = pb.UpdateTenantLimitsRequest(
        tenant=name,
        quotas=[
            *(_quota(kind, quota) for kind, quota in quotas.items() if quota.most is not None),
            *(pb.Quota(kind=KINDS.to_wire(kind), no_limit=True) for kind in removed),
        ],
        follow_defaults=[KINDS.to_wire(kind) for kind, quota in quotas.items() if quota.most is None],
        reason=reason,
    )

    known = await client.tenants.GetTenant(pb.GetTenantRequest(tenant=name))
    request.expected_revision = known.tenant.revision
    updated = (await client.tenants.UpdateTenantLimits(request)).tenant
    context.show(updated, _show)
    warn_of(updated.stopped.unconfirmed, "calls may still begin there: repeat the command")


def _quota(kind: QuotaKind, quota: QuotaOption) -> pb.Quota:
    assert quota.most is not None
    is_money = kind is QuotaKind.MONEY_PER_DAY
    most = nano_usd_of(quota.most) if is_money else int(quota.most)
    if most is None or (not is_money and most != quota.most):
        raise click.UsageError(
            f"{_NAMES[kind]}: {quota.most} is not {'an amount of dollars' if is_money else 'a whole number'}"
        )
    if most > MAX_QUOTA:
        raise click.UsageError(f"{_NAMES[kind]}: {quota.most} is too large; --no-limit removes the quota")
    policy = pb.QUOTA_POLICY_UNSPECIFIED if quota.policy is None else POLICIES.to_wire(quota.policy)
    return pb.Quota(kind=KINDS.to_wire(kind), most=most, policy=policy)


def _show(context: Context, tenant: pb.Tenant) -> None:
    table = make_table("QUOTA", "USED", "LIMIT", "BEYOND IT", "WARNED", "SET BY")
    for use in tenant.quotas:
        kind, policy = KINDS.find(use.quota.kind), POLICIES.find(use.quota.policy)
        name = _NAMES[kind] if kind else f"quota {use.quota.kind}"
        warned = ago(use.warn_time) if use.HasField("warn_time") else ""
        if use.quota.no_limit:
            table.add_row(name, "", "no limit", "", warned, _set_by(use))
            continue
        beyond = policy.value.lower() if policy else ""
        if use.HasField("room_after"):
            beyond += f", free in {seconds_text(seconds(use.room_after))}"
        table.add_row(
            name, _amount(context, use, use.used), _amount(context, use, use.quota.most), beyond, warned, _set_by(use)
        )
    context.console.print(f"tenant {tenant.tenant}", style="bold")
    context.console.print(table)
    if tenant.HasField("stopped"):
        stopped = tenant.stopped
        text = f"STOPPED since {ago(stopped.stop_time)} by {stopped.stopped_by}: {one_line(stopped.reason, 200)}"
        context.console.print(text, markup=False)
    if tenant.revision:
        context.console.print(
            f"revision {tenant.revision} by {tenant.actor}: {one_line(tenant.reason, 200)}", style="dim"
        )


def _set_by(use: pb.QuotaUse) -> str:
    return "default" if use.is_default else "tenant"


def _use(context: Context, use: pb.QuotaUse) -> str:
    if use.quota.no_limit:
        return "-"
    return f"{_amount(context, use, use.used)} of {_amount(context, use, use.quota.most)}"


def _amount(context: Context, use: pb.QuotaUse, amount: int) -> str:
    if use.quota.kind != pb.QUOTA_KIND_MONEY_PER_DAY:
        return f"{amount:,}"
    return usd(amount) if context.is_verbose else money_text(amount)


# `tenure tenants usage`.

_GROUPINGS: Final = {
    "tenant": pb.USAGE_GROUPING_TENANT,
    "root": pb.USAGE_GROUPING_ROOT,
    "model": pb.USAGE_GROUPING_MODEL,
    "day": pb.USAGE_GROUPING_DAY,
}


@tenants.command(short_help="Sum up the bills of model calls.")
@click.option(
    "--by", type=click.Choice(list(_GROUPINGS)), default="tenant", show_default=True, help="One line for each of these."
)
@click.option(
    "--since",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Only calls that were settled within this time, up to 366d.",
)
@click.option(
    "--root", metavar="TASK", default="", help="Only calls of this root task and its sub-agents, without a time limit."
)
@click.option("--of", "tenant", metavar="TENANT", default="", help="Another tenant. For operators.")
@click.option("--all", "every", is_flag=True, help="All tenants, with a line or more for each. For operators.")
@with_client
async def usage(context: Context, client: Client, by: str, since: float, root: str, tenant: str, every: bool) -> None:
    """Sum up the bills of model calls, including calls of pruned tasks.

    CACHED is the share of the input that the provider read from its cache. LOST counts lost model calls, which are
    billed by the usage that their worker reported. COST is what providers charge: a call of a model without a known
    price is unpriced, a call that the model simulator answered is simulated.
    """
    if every and (root or tenant):
        raise click.UsageError("--all cannot be given with --root or --of")

    request = pb.GetTenantUsageRequest(group_by=_GROUPINGS[by], tenant=tenant)
    if root:
        request.root_task_id = await find_task(client, root)
    else:
        request.begin_time.FromNanoseconds(int((time.time() - since) * 1e9))
    listed = client.items(client.tenants.ListTenants, pb.ListTenantsRequest(), lambda page: page.tenants)
    names = [one.tenant async for one in listed] if every else [tenant]
    rows: list[tuple[str, pb.UsageSum]] = []
    for name in names:
        request.tenant = name
        rows += [
            (name, one) async for one in client.items(client.tenants.GetTenantUsage, request, lambda page: page.sums)
        ]
    _show_usage(context, by, rows, show_tenants=every and by != "tenant")


def cached_share(usage: task_pb2.TokenUsage) -> float | None:
    """Returns the share of all input that was read from a cache, 0.0 to 1.0. None: there was no input."""
    total = input_total(usage)
    return usage.cache_read_input_tokens / total if total else None


def cost_text(billed: pb.UsageSum, amount: Callable[[int], str] = money_text) -> str:
    """Returns the cost in dollars, and how many calls are unpriced or simulated.

    The dollar sign appears only for money that a provider charges.
    """
    others = ((billed.unpriced_calls, "unpriced"), (billed.simulated_calls, "simulated"))
    for count, name in others:
        if count and count == billed.calls:
            return name
    parts = [f"{count:,} {name}" for count, name in others if count]
    if billed.calls > billed.unpriced_calls + billed.simulated_calls or not parts:
        parts.insert(0, amount(billed.nano_usd - billed.simulated_nano_usd))
    return ", ".join(parts)


def _show_usage(context: Context, by: str, rows: list[tuple[str, pb.UsageSum]], *, show_tenants: bool) -> None:
    if context.as_json:
        for name, one in rows:
            context.emit(one if context.is_verbose else usage_info(name, one))
        return
    if not rows:
        echo("no bills", err=True)
        return
    first = ("TENANT",) if show_tenants else ()
    columns = (*first, by.upper(), "CALLS", "LOST", "INPUT", "CACHED", "OUTPUT", "TOKENS", "COST")
    table = make_table(*columns, right=range(len(first) + 1, len(columns)))
    for name, one in rows:
        share = cached_share(one.usage)
        table.add_row(
            *((name,) if show_tenants else ()),
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
