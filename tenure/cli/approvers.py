"""`tenure approvers`: the groups that may answer waits."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tenure.cli.context import Context, with_client
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
@with_client
async def set_group(context: Context, client: Client, name: str, members: tuple[str, ...]) -> None:
    """Create the group NAME, or replace its members.

    MEMBER is key/ID for an API key, user/SUBJECT for a token of the identity provider, an e-mail address, or
    webhook/NAME. The last two answer by links.
    """
    request = approval_service_pb2.SetApproverGroupRequest(name=name, members=members)
    group = (await client.approvals.SetApproverGroup(request)).group
    context.say(group, f"{group.name}: {', '.join(group.members)}")


@approvers.command("list")
@with_client
async def list_groups(context: Context, client: Client) -> None:
    """List the groups of the tenant, by name."""
    groups = (await client.approvals.ListApproverGroups(approval_service_pb2.ListApproverGroupsRequest())).groups
    context.show_all(groups, _show_all, none="no approver groups; create one: tenure approvers set NAME MEMBER")


def _show_all(context: Context, groups: Iterable[approval_service_pb2.ApproverGroup]) -> None:
    table = make_list("GROUP", "MEMBERS", "CHANGED", "BY")
    for group in groups:
        table.add_row(group.name, ", ".join(group.members), ago(group.update_time), group.actor)
    context.console.print(table)


@approvers.command()
@_name
@with_client
async def delete(context: Context, client: Client, name: str) -> None:
    """Delete the group NAME: its members may no longer answer."""
    request = approval_service_pb2.DeleteApproverGroupRequest(name=name)
    deleted = (await client.approvals.DeleteApproverGroup(request)).deleted
    if context.as_json:
        context.emit({"deleted": deleted})
    else:
        echo(f"{name} is deleted" if deleted else f"group {name} not found", err=not deleted)
