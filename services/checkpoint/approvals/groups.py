"""Approver groups of tenants, and the members that count for one wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from services.checkpoint.queries import fetch_all, fetch_one, ledger_transaction
from tenure.domain.approvals import MAX_GROUPS, groups_in
from tenure.domain.errors import LimitReached
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import approval_service_pb2 as pb
from tenure.wire.common import timestamp

APPROVALS: Final = Queries.load("services.checkpoint", "sql/approvals.sql")


class _GroupRow(NamedTuple):
    """The columns of `set_group` and `list_groups`, in their order."""

    name: str
    members: list[str]
    updated_at: datetime
    actor: str

    def message(self) -> pb.ApproverGroup:
        return pb.ApproverGroup(
            name=self.name, members=self.members, update_time=timestamp(self.updated_at), actor=self.actor
        )


@ledger_transaction
async def set_group(connection: Connection, tenant: str, request: pb.SetApproverGroupRequest) -> pb.ApproverGroup:
    """Creates a group or replaces its members. Raises LimitReached (TOO_MANY_APPROVER_GROUPS)."""
    named = {"tenant": tenant, "name": request.name}
    await connection.execute(APPROVALS.lock_tenant, {"tenant": tenant})
    others = await fetch_one(connection, APPROVALS.count_others, named)
    if others is not None and others[0] >= MAX_GROUPS:
        message = f"the tenant has {others[0]:,} approver groups, the most that it may have: delete one first"
        raise LimitReached(message, reason="TOO_MANY_APPROVER_GROUPS")
    parameters = {**named, "members": list(request.members), "actor": request.actor}
    row = await fetch_one(connection, APPROVALS.set_group, parameters)
    assert row is not None, "the statement writes a row"
    return _GroupRow(*row).message()


async def list_groups(pool: Pool, tenant: str) -> list[pb.ApproverGroup]:
    """Returns all groups of the tenant by name."""
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, APPROVALS.list_groups, {"tenant": tenant})
    return [_GroupRow(*row).message() for row in rows]


@ledger_transaction
async def delete_group(connection: Connection, tenant: str, name: str) -> bool:
    """Deletes a group. Returns whether it existed."""
    parameters = {"tenant": tenant, "name": name}
    return await fetch_one(connection, APPROVALS.delete_group, parameters) is not None


async def members_for(connection: Connection, tenant: str, approvers: Iterable[str]) -> Mapping[str, list[str]]:
    """Returns the present members of the groups among the approvers, by group; reads nothing without groups."""
    names = groups_in(approvers)
    if not names:
        return {}
    rows = await fetch_all(connection, APPROVALS.members, {"tenant": tenant, "names": names})
    return dict(rows)
