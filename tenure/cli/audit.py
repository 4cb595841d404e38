"""`tenure admin audit`: the audit log, and the verification of its hash chain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

import click

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import ago, count_text, make_list
from tenure.cli.output import echo
from tenure.cli.parameters import Typed
from tenure.client import Client
from tenure.domain.audit import BrokenChainError, ChainedRecord, Decision, Head, verify_chain
from tenure.v1 import audit_service_pb2 as pb
from tenure.wire.audit import DECISIONS, chained_from_wire

_PAGE: Final = 500


def _head(text: str) -> Head:
    try:
        return Head.parse(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a head: {error}") from None


@click.group()
def audit() -> None:
    """List and verify the record of administrative acts and of refused calls."""


@audit.command("list")
@click.option("--of-tenant", default="", help="Only calls for this tenant.")
@click.option("--subject", default="", help="Only calls of this caller: key/…, user/… or spiffe://….")
@click.option("--method", default="", help="Only calls of this method, such as AdminService/DrainWorker.")
@click.option("--denied", is_flag=True, help="Only refused calls.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@with_client
async def list_records(
    context: Context, client: Client, of_tenant: str, subject: str, method: str, denied: bool, limit: int
) -> None:
    """List the newest records of all tenants, the newest first."""
    request = pb.ListAuditRecordsRequest(
        tenant=of_tenant,
        subject=subject,
        method=method,
        decision=DECISIONS.to_wire(Decision.DENIED) if denied else pb.AUDIT_DECISION_UNSPECIFIED,
    )

    records = client.items(client.audit.ListAuditRecords, request, lambda page: page.records, limit=limit)
    await context.show_each(records, _show_all, none="no records")


def _show_all(context: Context, records: Iterable[pb.AuditRecord]) -> None:
    table = make_list("NUMBER", "WHEN", "CALLER", "TENANT", "METHOD", "DECISION", "REASON", "RECORDED BY", "TARGET")
    for record in records:
        decision = DECISIONS.to_domain(record.decision).lower()
        table.add_row(
            str(record.number),
            ago(record.record_time),
            record.subject or "(none)",
            record.tenant or "-",
            record.method,
            f"{decision} {record.count} times" if record.count > 1 else decision,
            record.reason,
            _process(record.recorder),
            record.target,
        )
    context.console.print(table)


def _process(identity: str) -> str:
    """Returns the role and the name of a process: `coordinator/c-1`."""
    return identity.removeprefix("spiffe://").partition("/")[2] or "-"


@audit.command()
@click.option(
    "--noted",
    type=Typed("NUMBER:HASH", _head),
    help="The head of an earlier verification, which the log must still have.",
)
@pass_context
def verify(context: Context, noted: Head | None) -> None:
    """Read the whole log, compute its hash chain anew, and print its head.

    The chain shows records that were changed, inserted or deleted, but not a log that was cut at its end: keep the head
    elsewhere, and give it with --noted next time. The logs of the checkpoint service note each head as audit_head.
    """

    async def work(client: Client) -> Head:
        return await verify_chain(_all_records(client), noted)

    try:
        head = context.run(work)
    except BrokenChainError as broken:
        echo(f"the audit log was changed: {broken}", err=True)
        click.get_current_context().exit(Exit.INVARIANT_VIOLATED)
    context.say(
        {"records": head.number, "head": str(head)},
        f"{count_text(head.number, 'record')}, the chain is unbroken; head {head}",
    )


async def _all_records(client: Client) -> AsyncIterator[ChainedRecord]:
    request = pb.ListAuditRecordsRequest(page_size=_PAGE, oldest_first=True)
    async for record in client.items(client.audit.ListAuditRecords, request, lambda page: page.records):
        yield chained_from_wire(record)
