"""The rows of agents, of their revisions, and of the builds that can run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.checkpoint.columns import Unlisted, select_list
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one
from tenure.domain.agents import AgentKind, Routing, reference
from tenure.domain.errors import NotFound
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import agent_service_pb2 as pb
from tenure.wire.agent_service import KINDS
from tenure.wire.codec import writer
from tenure.wire.common import optional_timestamp, timestamp


class AgentRow(NamedTuple):
    """An agent. `definition`: of the current revision, if read."""

    tenant: str
    name: str
    current_revision: int
    ramp_revision: int
    ramp_basis_points: int
    newest_revision: int
    created_at: datetime
    updated_at: datetime
    actor: str
    reason: str
    definition: Unlisted[bytes]

    @property
    def routing(self) -> Routing:
        """Returns the revisions to which new tasks go."""
        return Routing(self.current_revision, self.ramp_revision, self.ramp_basis_points)

    def message(self) -> pb.Agent:
        message = _agent_to_wire(self)
        message.kind = pb.AgentDefinition.FromString(self.definition).kind
        return message


_agent_to_wire = writer(AgentRow, pb.Agent, skip="tenant definition kind")


AGENTS: Final = Queries.load("services.checkpoint", "sql/agents.sql", {"agent": select_list(AgentRow, "a")})


class RevisionRow(NamedTuple):
    """The columns of `revisions`, in their order. `definition`: empty if it was not read."""

    tenant: str
    name: str
    revision: int
    digest: str
    definition: bytes
    created_at: datetime
    creator: str
    retired_at: datetime | None
    builds: list[str]
    registered_at: list[datetime]

    def message(self, open_tasks: int) -> pb.AgentRevision:
        return pb.AgentRevision(
            agent=self.name,
            revision=self.revision,
            digest=self.digest,
            definition=pb.AgentDefinition.FromString(self.definition) if self.definition else None,
            builds=[
                pb.AgentBuild(build=build, register_time=timestamp(registered_at))
                for build, registered_at in zip(self.builds, self.registered_at, strict=True)
            ],
            create_time=timestamp(self.created_at),
            creator=self.creator,
            retire_time=optional_timestamp(self.retired_at),
            open_tasks=open_tasks,
        )


def no_agent(name: str) -> NotFound:
    """Returns the error for an unknown agent."""
    return NotFound(f"agent {name} not found: tenure agents list shows the agents", reason="AGENT_NOT_FOUND")


def no_revision(name: str, revision: int) -> NotFound:
    """Returns the error for an unknown revision."""
    return NotFound(
        f"{reference(name, revision)} not found: tenure agents show {name} lists its revisions",
        reason="AGENT_REVISION_NOT_FOUND",
        metadata={"agent": name, "revision": str(revision)},
    )


class TaskReader(NamedTuple):
    """The columns of `count_foreign`, in their order: what decides whether a task takes another message."""

    external_entries: int
    loop: str
    definition: bytes | None

    @property
    def kind(self) -> AgentKind | None:
        """Returns the kind of the agent or function that runs the task; None if it is not registered."""
        return KINDS.to_domain(pb.AgentDefinition.FromString(self.definition).kind) if self.definition else None


async def reader_of(connection: Connection, task_id: str) -> TaskReader:
    """Returns who would read messages to a task, which must exist."""
    record = await fetch_one(connection, QUERIES.count_foreign, {"task_id": task_id})
    assert record is not None, "the task exists"
    return TaskReader(*record)


async def read_agent(connection: Connection, tenant: str, name: str) -> AgentRow:
    """Returns an agent. Raises NotFound."""
    record = await fetch_one(connection, AGENTS.read, {"tenant": tenant, "name": name})
    if record is None:
        raise no_agent(name)
    return AgentRow(*record)


async def lock_agent(connection: Connection, tenant: str, name: str) -> AgentRow:
    """Returns an agent, locked until the transaction ends. Raises NotFound."""
    record = await fetch_one(connection, AGENTS.lock, {"tenant": tenant, "name": name})
    if record is None:
        raise no_agent(name)
    return AgentRow(*record)


async def read_revisions(
    connection: Connection,
    tenant: str,
    name: str,
    revisions: Sequence[int],
    *,
    newer_than: int,
    with_definitions: bool,
    limit: int,
) -> list[RevisionRow]:
    """Returns the named revisions and the newer ones, newest first."""
    parameters = {
        "tenant": tenant,
        "name": name,
        "revisions": list(revisions),
        "newer_than": newer_than,
        "with_definitions": with_definitions,
        "limit": limit,
    }
    return [RevisionRow(*columns) for columns in await fetch_all(connection, AGENTS.revisions, parameters)]


async def read_revision(
    connection: Connection, tenant: str, name: str, revision: int, *, with_definition: bool = False
) -> RevisionRow:
    """Returns one revision. Raises NotFound."""
    rows = await read_revisions(
        connection, tenant, name, [revision], newer_than=2**31 - 1, with_definitions=with_definition, limit=1
    )
    if not rows:
        raise no_revision(name, revision)
    return rows[0]


async def count_open_tasks(connection: Connection, tenant: str, name: str) -> Mapping[int, int]:
    """Returns how many tasks that have not ended are pinned to each revision."""
    rows = await fetch_all(connection, AGENTS.open_tasks, {"tenant": tenant, "name": name})
    return dict(rows)


async def route(
    connection: Connection, row: AgentRow, routing: Routing, *, newest: int, actor: str, reason: str
) -> None:
    """Writes where new tasks go."""
    await connection.execute(
        AGENTS.route,
        {
            "tenant": row.tenant,
            "name": row.name,
            "current": routing.current,
            "ramp_revision": routing.ramp_revision,
            "ramp_basis_points": routing.ramp_basis_points,
            "newest": newest,
            "actor": actor,
            "reason": reason,
        },
    )
