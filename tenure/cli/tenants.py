"""`tenure tenants`: what tenants may use, and how much of it they do."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.tables import make_table
from tenure.cli.words import ago, one_line, seconds_text
from tenure.client import Client
from tenure.domain.money import nano_usd_of, usd
from tenure.domain.quotas import QuotaKind, QuotaPolicy
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.quotas import KINDS, POLICIES
from tenure.wire.times import seconds

_OPTIONS: Final = {
    "running_tasks": QuotaKind.RUNNING_TASKS,
    "submits_per_minute": QuotaKind.SUBMITS_PER_MINUTE,
    "tokens_per_hour": QuotaKind.TOKENS_PER_HOUR,
    "usd_per_day": QuotaKind.MONEY_PER_DAY,
}
_NAMES: Final = {kind: name.replace("_", " ") for name, kind in _OPTIONS.items()}

_name = click.argument("name", metavar="[NAME]", required=False, default="")


class Asked(NamedTuple):
    """A quota as typed. `most` None: the default."""

    most: Decimal | None
    policy: QuotaPolicy | None


class QuotaType(click.ParamType[Asked]):
    """`100`, `100,delay`, `100,refuse`; `none`; `default`."""

    name = "quota"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Asked:
        number, comma, policy = str(value).partition(",")
        if value == "default":
            return Asked(None, None)
        try:
            most = Decimal(0 if number == "none" else number.replace("_", ""))
            return Asked(most, QuotaPolicy(policy.upper()) if comma else None)
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
        found = [tenant async for tenant in client.list_tenants()]
        if context.as_json:
            for tenant in found:
                context.emit(tenant)
            return
        table = make_table("TENANT", *(name.upper() for name in _NAMES.values()))
        for tenant in found:
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
def limit(context: Context, /, name: str, reason: str, **options: Asked | None) -> None:
    """Set NAME's quotas. For operators. What is not given stays as it is.

    A quota is a number; `100,refuse` or `100,delay` say also what a submit meets beyond it. `none`: no cap. `default`:
    that of the installation.
    """
    told = {_OPTIONS[option]: asked for option, asked in options.items() if asked is not None}
    if not told:
        raise click.UsageError("say what is to be otherwise")
    request = pb.UpdateTenantLimitsRequest(
        tenant=name,
        quotas=[_quota(kind, asked) for kind, asked in told.items() if asked.most is not None],
        follow_defaults=[KINDS.to_wire(kind) for kind, asked in told.items() if asked.most is None],
        reason=reason,
    )

    async def work(client: Client) -> None:
        request.expected_revision = (await client.get_tenant(name)).revision
        _show(context, await client.update_tenant_limits(request))

    context.run(work)


def _quota(kind: QuotaKind, asked: Asked) -> pb.Quota:
    assert asked.most is not None
    is_money = kind is QuotaKind.MONEY_PER_DAY
    most = nano_usd_of(asked.most) if is_money else int(asked.most)
    if most is None or (not is_money and most != asked.most):
        raise click.UsageError(f"{_NAMES[kind]}: {asked.most} is no {'sum of money' if is_money else 'whole number'}")
    policy = pb.QUOTA_POLICY_UNSPECIFIED if asked.policy is None else POLICIES.to_wire(asked.policy)
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
