"""`tenure leases`: named resources that backends hold. What tasks hold is shown by `tenure claims`."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Iterable
from contextlib import aclosing

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import (
    ago,
    clock,
    harmless,
    make_table,
    seconds_text,
)
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION
from tenure.client import Client
from tenure.client.leases import HeldLease
from tenure.domain.errors import NotFound
from tenure.domain.fencing import describe_epoch
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.common import duration, seconds

_epoch = click.option("--epoch", type=int, help="Only if this is still its epoch. Default: whoever holds it now.")
_reason = click.option("--reason", required=True, help="Why; it is kept, and shown to the next holder.")


@click.group()
def leases() -> None:
    """Show and change who holds which named resource."""


@leases.command("list")
@click.argument("prefix", default="")
@pass_context
def list_leases(context: Context, prefix: str) -> None:
    """Show live leases, or those whose names begin with PREFIX."""

    async def work(client: Client) -> None:
        leases = [lease async for lease in client.list_leases(prefix)]
        if context.as_json:
            for lease in leases:
                context.emit(lease)
        elif not leases:
            echo("nothing is held", err=True)
        else:
            _show(context, leases)

    context.run(work)


@leases.command(short_help="Show who holds RESOURCE.")
@click.argument("resource")
@pass_context
def get(context: Context, resource: str) -> None:
    """Show who holds RESOURCE, since when, and how the lease before ended."""

    async def work(client: Client) -> None:
        lease = await client.get_lease(resource)
        if context.as_json:
            context.emit(lease)
            return
        echo(f"{lease.resource} is held by {lease.holder}, epoch {describe_epoch(lease.epoch)} ({lease.epoch})")
        left, ttl = seconds_text(seconds(lease.remaining)), seconds_text(seconds(lease.ttl))
        echo(f"since {ago(lease.acquire_time)}; without a renewal it ends in {left} of {ttl}")
        before = f"epoch {describe_epoch(lease.previous_epoch)}, {_why(lease)}"
        echo(f"before it: {before if lease.previous_epoch else 'nobody ever held it'}")

    context.run(work)


@leases.command(short_help="Show what happens to leases, until Ctrl-C.")
@click.argument("prefix", default="")
@click.option("--after", default=0, help="The revision of an earlier line; default: from now on.")
@pass_context
def watch(context: Context, prefix: str, after: int) -> None:
    """Show what happens to leases whose names begin with PREFIX, until Ctrl-C. Nothing is left out."""

    async def work(client: Client) -> None:
        if not context.as_json:
            echo("what happens to leases; Ctrl-C stops", err=True)
        async with aclosing(client.watch_leases(prefix, after)) as events:
            async for event in events:
                if context.as_json:
                    context.emit(event)
                else:
                    echo(_say(event))

    context.run(work)


@leases.command(short_help="Take RESOURCE, and print its token.")
@click.argument("resource")
@click.option("--holder", required=True, help="In whose name.")
@click.option("--ttl", type=DURATION, default=60.0, show_default="60s", help="2s to 1h.")
@click.option("--hold", is_flag=True, help="Renew it until Ctrl-C, then give it back; else it runs out.")
@pass_context
def acquire(context: Context, resource: str, holder: str, ttl: float, hold: bool) -> None:
    """Take RESOURCE, for example to keep everybody away from it, and print its token (base64, for scripts)."""

    async def work(client: Client) -> None:
        if hold:
            async with HeldLease(client.leases, resource, holder=holder, ttl_seconds=ttl) as held:
                _tell(context, held.info)
                await asyncio.Event().wait()
        request = pb.AcquireLeaseRequest(
            resource=resource, holder=holder, ttl=duration(ttl), request_id=str(uuid.uuid4())
        )
        _tell(context, (await client.leases.AcquireLease(request)).lease)

    context.run(work)


@leases.command()
@click.argument("resource")
@_epoch
@_reason
@pass_context
def release(context: Context, resource: str, epoch: int | None, reason: str) -> None:
    """Take RESOURCE away from its holder. Its writes count until the next holder was seen by the guard."""

    async def work(client: Client) -> None:
        meant = await _meant(client, resource, epoch)
        answer = await client.leases.ReleaseLease(pb.ReleaseLeaseRequest(lease=meant, reason=reason))
        if not answer.released:
            raise NotFound(f"epoch {describe_epoch(meant.epoch)} of {resource} is gone already", reason="LEASE_LOST")
        if context.as_json:
            context.emit({"resource": resource, "epoch": meant.epoch, "released": True})
        else:
            echo(f"{resource}, epoch {describe_epoch(meant.epoch)}, is released")

    context.run(work)


@leases.command(short_help="Hand RESOURCE over to HOLDER.")
@click.argument("resource")
@click.argument("holder")
@_epoch
@_reason
@click.option("--ttl", type=DURATION, default=None, help="2s to 1h. Default: as before.")
@pass_context
def transfer(context: Context, resource: str, holder: str, epoch: int | None, reason: str, ttl: float | None) -> None:
    """Hand RESOURCE over to HOLDER, who has to acquire it under that name before it runs out."""

    async def work(client: Client) -> None:
        request = pb.TransferLeaseRequest(
            lease=await _meant(client, resource, epoch), holder=holder, reason=reason, request_id=str(uuid.uuid4())
        )
        if ttl is not None:
            request.ttl.CopyFrom(duration(ttl))
        _tell(context, (await client.leases.TransferLease(request)).lease)

    context.run(work)


@leases.command()
@pass_context
def keys(context: Context) -> None:
    """Show the public keys that verify tokens, of leases and of tasks."""

    async def work(client: Client) -> None:
        listed = (await client.leases.ListSigningKeys(pb.ListSigningKeysRequest())).keys
        for key in listed:
            if context.as_json:
                context.emit(key)
            else:
                message = "signs now" if key.active else "retired"
                echo(f"{key.key_id}  {base64.b64encode(key.public_key).decode()}  {message}")

    context.run(work)


async def _meant(client: Client, resource: str, epoch: int | None) -> pb.LeaseReference:
    """The lease seen, so that one acquired a moment later is left alone."""
    return pb.LeaseReference(resource=resource, epoch=epoch or (await client.get_lease(resource)).epoch)


def _tell(context: Context, lease: pb.Lease) -> None:
    if context.as_json:
        context.emit(lease)
        return
    echo(f"{lease.resource} is held by {lease.holder}, epoch {describe_epoch(lease.epoch)}", err=True)
    echo(base64.b64encode(lease.token.SerializeToString()).decode())


def _why(lease: pb.Lease) -> str:
    """Of the end of the lease before; whoever ended it has a say in the message."""
    return lease.reason + (f": {harmless(lease.message)}" if lease.message else "")


def _say(event: pb.LeaseEvent) -> str:
    held = event.HasField("held")
    lease = event.held if held else event.ended
    what = f"is held by {lease.holder} ({_why(lease)})" if held else f"was lost or given back by {lease.holder}"
    at = f"{clock(lease.acquire_time)}  " if held else ""
    return f"{event.revision}  {at}{lease.resource} {what}, epoch {describe_epoch(lease.epoch)}"


def _show(context: Context, leases: Iterable[pb.Lease]) -> None:
    table = make_table("RESOURCE", "HOLDER", "EPOCH", "REASON", "SINCE", "LEFT", "TTL")
    for lease in leases:
        table.add_row(
            lease.resource,
            lease.holder,
            describe_epoch(lease.epoch),
            lease.reason,
            ago(lease.acquire_time),
            seconds_text(seconds(lease.remaining)),
            seconds_text(seconds(lease.ttl)),
        )
    context.console.print(table)
