"""`tenure approvers`: the groups that may answer waits."""

from __future__ import annotations

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, make_list
from tenure.cli.output import echo
from tenure.client import Client
from tenure.v1 import approval_service_pb2

_name = click.argument("name")


@click.group(short_help="Say who may answer the waits of tasks.")
def approvers() -> None:
    """Groups of people and programs who may answer waits. Tasks name them: `tenure submit --approver group:NAME`."""


@approvers.command("set")
@_name
@click.argument("members", nargs=-1, required=True, metavar="MEMBER...")
@pass_context
def set_group(context: Context, name: str, members: tuple[str, ...]) -> None:
    """Create the group NAME, or replace its members.

    MEMBER is key/ID for an API key, user/SUBJECT for a token of the identity provider, an e-mail address, or
    webhook/NAME. The last two answer by links.
    """

    async def work(client: Client) -> None:
        request = approval_service_pb2.SetApproverGroupRequest(name=name, members=members)
        group = (await client.approvals.SetApproverGroup(request)).group
        if context.as_json:
            context.emit(group)
        else:
            echo(f"{group.name}: {', '.join(group.members)}")

    context.run(work)


@approvers.command("list")
@pass_context
def list_groups(context: Context) -> None:
    """List the groups of the tenant, by name."""

    async def work(client: Client) -> None:
        groups = (await client.approvals.ListApproverGroups(approval_service_pb2.ListApproverGroupsRequest())).groups
        if context.as_json:
            for group in groups:
                context.emit(group)
        elif not groups:
            echo("no approver groups; create one: tenure approvers set NAME MEMBER", err=True)
        else:
            table = make_list("GROUP", "MEMBERS", "CHANGED", "BY")
            for group in groups:
                table.add_row(group.name, ", ".join(group.members), ago(group.update_time), group.actor)
            context.console.print(table)

    context.run(work)


@approvers.command()
@_name
@pass_context
def delete(context: Context, name: str) -> None:
    """Delete the group NAME: its members may no longer answer."""

    async def work(client: Client) -> None:
        request = approval_service_pb2.DeleteApproverGroupRequest(name=name)
        deleted = (await client.approvals.DeleteApproverGroup(request)).deleted
        if context.as_json:
            context.emit({"group": name, "deleted": deleted})
        else:
            echo(f"{name} is deleted" if deleted else f"group {name} not found", err=not deleted)

    context.run(work)
