"""`tenure leases`: named leases of other systems. `tenure workers claims` shows the claims of tasks."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from contextlib import aclosing

import click

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, clock, harmless, make_table, seconds_text
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION
from tenure.client import Client
from tenure.client.leases import HeldLease, watch_leases
from tenure.domain.errors import NotFound
from tenure.domain.fencing import describe_epoch
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.common import duration, seconds

_epoch = click.option("--epoch", type=int, help="Only if the lease still has this epoch. Default: the present lease.")
_reason = click.option("--reason", required=True, help="Why; recorded, and shown to the next holder.")


@click.group(short_help="List, acquire and release named leases of other systems.")
def leases() -> None:
    """List, acquire, release and transfer named leases of other systems.

    RESOURCE is the name of the lease.
    """


@leases.command("list")
@click.argument("prefix", default="")
@with_client
async def list_leases(context: Context, client: Client, prefix: str) -> None:
    """List the live leases, or those whose names begin with PREFIX."""
    leases = client.items(client.leases.ListLeases, pb.ListLeasesRequest(prefix=prefix), lambda page: page.leases)
    await context.show_each(leases, _show, none="no lease is held")


@leases.command(short_help="Show the holder of RESOURCE.")
@click.argument("resource")
@with_client
async def get(context: Context, client: Client, resource: str) -> None:
    """Show the holder of RESOURCE, since when it holds it, and how the previous lease ended."""
    lease = (await client.leases.GetLease(pb.GetLeaseRequest(resource=resource))).lease
    if context.as_json:
        context.emit(lease)
        return
    exact = f" ({lease.epoch})" if context.is_verbose else ""
    echo(f"{lease.resource} is held by {lease.holder}{_epoch_text(context, lease.epoch)}{exact}")
    left, ttl = seconds_text(seconds(lease.remaining)), seconds_text(seconds(lease.ttl))
    echo(f"acquired {ago(lease.acquire_time)}; without a renewal it ends in {left} of {ttl}")
    previous = f"{_end_reason(lease)}{_epoch_text(context, lease.previous_epoch)}"
    echo(f"previous lease: {previous if lease.previous_epoch else 'none'}")


@leases.command(short_help="Show the events of leases, until Ctrl-C.")
@click.argument("prefix", default="")
@click.option("--after", default=0, help="Continue after the revision of an earlier line. Default: from now.")
@with_client
async def watch(context: Context, client: Client, prefix: str, after: int) -> None:
    """Show the events of leases whose names begin with PREFIX, until Ctrl-C. No event is left out."""
    if not context.as_json:
        echo("watching leases; Ctrl-C stops", err=True)
    async with aclosing(watch_leases(client.leases, prefix, after)) as events:
        async for event in events:
            context.say(event, _say(context, event))


@leases.command(short_help="Acquire RESOURCE, and print its token.")
@click.argument("resource")
@click.option("--holder", required=True, help="The name of the holder.")
@click.option(
    "--ttl", type=DURATION, default=60.0, show_default="60s", help="The time to live without a renewal, 2s to 1h."
)
@click.option(
    "--hold", is_flag=True, help="Renew the lease until Ctrl-C, then release it. Without this flag it ends after --ttl."
)
@with_client
async def acquire(context: Context, client: Client, resource: str, holder: str, ttl: float, hold: bool) -> None:
    """Acquire RESOURCE, for example to keep all other clients away, and print its token (base64, for scripts)."""
    if hold:
        async with HeldLease(client.leases, resource, holder=holder, ttl_seconds=ttl) as held:
            _tell(context, held.info)
            await asyncio.Event().wait()
    request = pb.AcquireLeaseRequest(resource=resource, holder=holder, ttl=duration(ttl))
    _tell(context, (await client.leases.AcquireLease(request)).lease)


@leases.command()
@click.argument("resource")
@_epoch
@_reason
@with_client
async def release(context: Context, client: Client, resource: str, epoch: int | None, reason: str) -> None:
    """Release RESOURCE on behalf of its holder.

    The old holder's writes are accepted until the fence of the guarded system has seen a newer epoch.
    """
    reference = await _reference(client, resource, epoch)
    answer = await client.leases.ReleaseLease(pb.ReleaseLeaseRequest(lease=reference, reason=reason))
    if not answer.released:
        raise NotFound(
            f"the lease of {resource} with epoch {describe_epoch(reference.epoch)} has already ended",
            reason="LEASE_LOST",
        )
    context.say(
        {"resource": resource, "epoch": reference.epoch, "released": True},
        f"{resource} is released{_epoch_text(context, reference.epoch)}",
    )


@leases.command(short_help="Transfer RESOURCE to HOLDER.")
@click.argument("resource")
@click.argument("holder")
@_epoch
@_reason
@click.option(
    "--ttl", type=DURATION, default=None, help="The time to live without a renewal, 2s to 1h. Default: unchanged."
)
@with_client
async def transfer(
    context: Context, client: Client, resource: str, holder: str, epoch: int | None, reason: str, ttl: float | None
) -> None:
    """Transfer RESOURCE to HOLDER, who must acquire it under that name before the lease ends."""
    request = pb.TransferLeaseRequest(lease=await _reference(client, resource, epoch), holder=holder, reason=reason)
    if ttl is not None:
        request.ttl.CopyFrom(duration(ttl))
    _tell(context, (await client.leases.TransferLease(request)).lease)


@leases.command()
@with_client
async def keys(context: Context, client: Client) -> None:
    """List the public keys that verify fencing tokens, of leases and of tasks."""
    listed = (await client.leases.ListSigningKeys(pb.ListSigningKeysRequest())).keys
    for key in listed:
        if context.as_json:
            context.emit(key)
        else:
            state = "active" if key.active else "retired"
            echo(f"{key.key_id}  {base64.b64encode(key.public_key).decode()}  {state}")


async def _reference(client: Client, resource: str, epoch: int | None) -> pb.LeaseReference:
    """Returns a reference to the present lease, by epoch, so that a lease acquired a moment later is not affected."""
    return pb.LeaseReference(
        resource=resource,
        epoch=epoch or (await client.leases.GetLease(pb.GetLeaseRequest(resource=resource))).lease.epoch,
    )


def _tell(context: Context, lease: pb.Lease) -> None:
    if context.as_json:
        context.emit(lease)
        return
    echo(f"{lease.resource} is held by {lease.holder}{_epoch_text(context, lease.epoch)}", err=True)
    echo(base64.b64encode(lease.token.SerializeToString()).decode())


def _end_reason(lease: pb.Lease) -> str:
    """Returns why the previous lease ended, with the message of the client that ended it."""
    return lease.reason + (f": {harmless(lease.message)}" if lease.message else "")


def _epoch_text(context: Context, epoch: int) -> str:
    """Returns the epoch, which only -v shows."""
    return f", epoch {describe_epoch(epoch)}" if context.is_verbose else ""


def _say(context: Context, event: pb.LeaseEvent) -> str:
    held = event.HasField("held")
    lease = event.held if held else event.ended
    what = f"is held by {lease.holder} ({_end_reason(lease)})" if held else f"was lost or released by {lease.holder}"
    at = f"{clock(lease.acquire_time)}  " if held else ""
    return f"{event.revision}  {at}{lease.resource} {what}{_epoch_text(context, lease.epoch)}"


def _show(context: Context, leases: Iterable[pb.Lease]) -> None:
    epoch = ("EPOCH",) if context.is_verbose else ()
    table = make_table("RESOURCE", "HOLDER", "REASON", "SINCE", "LEFT", "TTL", *epoch)
    for lease in leases:
        table.add_row(
            lease.resource,
            lease.holder,
            lease.reason,
            ago(lease.acquire_time),
            seconds_text(seconds(lease.remaining)),
            seconds_text(seconds(lease.ttl)),
            *([describe_epoch(lease.epoch)] if context.is_verbose else ()),
        )
    context.console.print(table)
