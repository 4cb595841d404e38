"""AgentService, as far as the ledger serves it: registers revisions, and says where new tasks go."""

from __future__ import annotations

from typing import Any, Final

from services.checkpoint.agents.rows import (
    AGENTS,
    AgentRow,
    count_open_tasks,
    lock_agent,
    no_revision,
    read_agent,
    read_revision,
    read_revisions,
    route,
)
from services.checkpoint.queries import fetch_all, fetch_one, ledger_transaction
from tenure.domain.agents import ALL_BASIS_POINTS, MAX_REVISION, Routing, becomes_current, reference
from tenure.domain.errors import LimitReached, WrongState
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1.agent_service_pb2_grpc import AgentServiceServicer
from tenure.wire.agent_service import KINDS, digest_of

MAX_AGENTS: Final = 1000
MAX_REVISIONS: Final = 10_000
MAX_BUILDS: Final = 1000
DEFAULT_AGENTS: Final = 100
NEWEST_REVISIONS: Final = 100
MAX_LISTED: Final = 1000


@ledger_transaction
async def register(connection: Connection, tenant: str, request: pb.RegisterAgentRequest) -> pb.RegisterAgentResponse:
    """Registers a definition, or finds its revision, and adds the build. Raises LimitReached (TOO_MANY_AGENTS)."""
    digest, name = digest_of(request.definition), request.name
    row = await _locked(connection, tenant, name, request.actor)
    existing = await fetch_one(connection, AGENTS.find, {"tenant": tenant, "name": name, "digest": digest})
    revision = row.newest_revision + 1 if existing is None else int(existing[0])
    if existing is None:
        await _create(connection, row, revision, digest, request)
    if request.build:
        await _add_build(connection, row, revision, request.build)
    routing = await _routing(connection, row, revision, request, is_created=existing is None)
    if existing is None or routing != row.routing:
        newest = max(row.newest_revision, revision)
        reason = f"registered {reference(name, revision)}"
        await route(connection, row, routing, newest=newest, actor=request.actor, reason=reason)
    registered = await read_revision(connection, tenant, name, revision)
    return pb.RegisterAgentResponse(
        agent=(await read_agent(connection, tenant, name)).message(),
        revision=registered.message(0),
        created=existing is None,
    )


async def _locked(connection: Connection, tenant: str, name: str, actor: str) -> AgentRow:
    """Returns the agent's row, locked; makes it if there is none."""
    await connection.execute(AGENTS.ensure, {"tenant": tenant, "name": name, "actor": actor})
    row = await lock_agent(connection, tenant, name)
    if not row.newest_revision:
        counted = await fetch_one(connection, AGENTS.count, {"tenant": tenant})
        if counted is not None and counted[0] > MAX_AGENTS:
            raise _too_many(f"the tenant has {MAX_AGENTS:,} agents")
    return row


async def _create(
    connection: Connection, row: AgentRow, revision: int, digest: str, request: pb.RegisterAgentRequest
) -> None:
    if revision > MAX_REVISIONS:
        raise _too_many(f"the agent {row.name} has {MAX_REVISIONS:,} revisions")
    parameters = {
        "tenant": row.tenant,
        "name": row.name,
        "revision": revision,
        "digest": digest,
        "definition": request.definition.SerializeToString(deterministic=True),
        "actor": request.actor,
    }
    await connection.execute(AGENTS.create, parameters)


async def _add_build(connection: Connection, row: AgentRow, revision: int, build: str) -> None:
    of_revision = {"tenant": row.tenant, "name": row.name, "revision": revision}
    counted = await fetch_one(connection, AGENTS.count_builds, of_revision)
    if counted is not None and counted[0] >= MAX_BUILDS:
        raise _too_many(f"{reference(row.name, revision)} has {MAX_BUILDS:,} builds")
    await connection.execute(AGENTS.add_build, {**of_revision, "build": build})


def _too_many(fact: str) -> LimitReached:
    return LimitReached(f"{fact}, which is the limit: choose other names", reason="TOO_MANY_AGENTS")


async def _routing(
    connection: Connection, row: AgentRow, revision: int, request: pb.RegisterAgentRequest, *, is_created: bool
) -> Routing:
    if request.make_current:
        await _check_new_tasks(connection, row, revision)
        return Routing(revision)
    current_has_build = bool(row.current_revision) and await _has_build(connection, row, row.current_revision)
    if becomes_current(
        row.routing,
        KINDS.to_domain(request.definition.kind),
        is_created=is_created,
        has_build=bool(request.build),
        current_has_build=current_has_build,
    ):
        return Routing(revision)
    return row.routing


async def _has_build(connection: Connection, row: AgentRow, revision: int) -> bool:
    of_revision = {"tenant": row.tenant, "name": row.name, "revision": revision}
    counted = await fetch_one(connection, AGENTS.count_builds, of_revision)
    return counted is not None and counted[0] > 0


async def _check_new_tasks(connection: Connection, row: AgentRow, revision: int) -> None:
    """Raises NotFound and WrongState (AGENT_REVISION_RETIRED) for a revision that new tasks cannot have."""
    if (await read_revision(connection, row.tenant, row.name, revision)).retired_at is not None:
        raise WrongState(f"{reference(row.name, revision)} is retired for good", reason="AGENT_REVISION_RETIRED")


@ledger_transaction
async def ramp(connection: Connection, tenant: str, request: pb.RampAgentRequest) -> pb.Agent:
    """Sets the part of new tasks that a revision gets."""
    name, revision = request.name, request.revision
    row = await lock_agent(connection, tenant, name)
    await _check_new_tasks(connection, row, revision)
    if revision == row.current_revision and 0 < request.basis_points < ALL_BASIS_POINTS:
        raise WrongState(
            f"{reference(name, revision)} is the current revision: ramp another one",
            reason="AGENT_REVISION_CURRENT",
        )
    routing = row.routing.ramped(revision, request.basis_points)
    if routing != row.routing:
        await route(connection, row, routing, newest=row.newest_revision, actor=request.actor, reason=request.reason)
    return (await read_agent(connection, tenant, name)).message()


@ledger_transaction
async def retire(connection: Connection, tenant: str, request: pb.RetireAgentRevisionRequest) -> pb.AgentRevision:
    """Retires a revision. Raises NotFound, WrongState (AGENT_REVISION_IN_USE)."""
    name, revision = request.name, request.revision
    row = await lock_agent(connection, tenant, name)
    if not 1 <= revision <= row.newest_revision:
        raise no_revision(name, revision)
    if revision in {row.current_revision, row.ramp_revision}:
        role = "the current revision" if revision == row.current_revision else "in its ramp"
        raise WrongState(
            f"{reference(name, revision)} is {role}: ramp another revision first", reason="AGENT_REVISION_IN_USE"
        )
    await connection.execute(AGENTS.retire, {"tenant": tenant, "name": name, "revision": revision})
    retired = await read_revision(connection, tenant, name, revision)
    return retired.message((await count_open_tasks(connection, tenant, name)).get(revision, 0))


async def get(pool: Pool, tenant: str, request: pb.GetAgentRequest) -> pb.GetAgentResponse:
    """Returns an agent with one revision, or with those that matter. Raises NotFound."""
    async with pool_connection(pool) as connection:
        row = await read_agent(connection, tenant, request.name)
        open_tasks = await count_open_tasks(connection, tenant, request.name)
        if request.revision:
            rows = [await read_revision(connection, tenant, request.name, request.revision, with_definition=True)]
        else:
            rows = await read_revisions(
                connection,
                tenant,
                request.name,
                sorted({row.current_revision, row.ramp_revision, *open_tasks}),
                newer_than=min(row.newest_revision - NEWEST_REVISIONS, MAX_REVISION),
                with_definitions=False,
                limit=MAX_LISTED,
            )
    revisions = [each.message(open_tasks.get(each.revision, 0)) for each in rows]
    return pb.GetAgentResponse(agent=row.message(), revisions=revisions)


async def list_agents(pool: Pool, tenant: str, request: pb.ListAgentsRequest) -> pb.ListAgentsResponse:
    """Returns a page by name. The token is the last name."""
    page_size = request.page_size or DEFAULT_AGENTS
    parameters = {"tenant": tenant, "after": request.page_token, "limit": page_size + 1}
    async with pool_connection(pool) as connection:
        rows = [AgentRow(*columns) for columns in await fetch_all(connection, AGENTS.list, parameters)]
    more = len(rows) > page_size
    agents = [row.message() for row in rows[:page_size]]
    return pb.ListAgentsResponse(agents=agents, next_page_token=agents[-1].name if more else "")


class AgentServicer(AgentServiceServicer):
    """See protos/tenure/v1/agent_service.proto for each method. The gateway decides who may call."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def RegisterAgent(self, request: pb.RegisterAgentRequest, _context: Any) -> pb.RegisterAgentResponse:
        return await register(self._pool, current_tenant(), request)

    async def ListAgents(self, request: pb.ListAgentsRequest, _context: Any) -> pb.ListAgentsResponse:
        return await list_agents(self._pool, current_tenant(), request)

    async def GetAgent(self, request: pb.GetAgentRequest, _context: Any) -> pb.GetAgentResponse:
        return await get(self._pool, current_tenant(), request)

    async def RampAgent(self, request: pb.RampAgentRequest, _context: Any) -> pb.RampAgentResponse:
        return pb.RampAgentResponse(agent=await ramp(self._pool, current_tenant(), request))

    async def RetireAgentRevision(
        self, request: pb.RetireAgentRevisionRequest, _context: Any
    ) -> pb.RetireAgentRevisionResponse:
        return pb.RetireAgentRevisionResponse(revision=await retire(self._pool, current_tenant(), request))
