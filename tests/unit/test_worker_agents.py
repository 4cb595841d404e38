"""Registration of a worker's agents: requests that a coordinator accepts, and one refusal does not stop the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.coordinator import worker_agents
from services.coordinator.pools import WorkerPools
from services.coordinator.worker_agents import WorkerAgents
from services.worker import agents
from services.worker.agents import AT_ONCE, MAX_REQUEST_BYTES, WorkerAgentRegistration
from tenure.domain.access import Principal, Role
from tenure.domain.errors import InvalidRequest
from tenure.runtime.request_context import current_tenant
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2
from tenure.validators import validate
from tenure.validators.agent_service import MAX_DEFINITION_BYTES
from tests.support.patience import PATIENCE_SECONDS


class Coordinator:
    """Takes registrations, and refuses the requests that have the agent `refused`."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.requests: list[Any] = []
        self.taken: set[str] = set()

    async def RegisterWorkerAgents(self, request: Any, timeout: float) -> Any:
        assert timeout > 0
        self.requests.append(request)
        names = {agent.name for agent in request.agents}
        if self.refused in names:
            raise InvalidRequest(violations=[("agents", "no")])
        self.taken |= names
        return coordinator_service_pb2.RegisterWorkerAgentsResponse()


async def register(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, number: int, size_bytes: int) -> set[str]:
    monkeypatch.setattr(agents, "CoordinatorServiceStub", lambda _channel: coordinator)
    definition = pb.AgentDefinition(kind=pb.AGENT_KIND_FUNCTION, input_schema_json=" " * size_bytes)
    definitions = {f"agent-{index}": definition for index in range(number)}
    channel: Any = None
    await WorkerAgentRegistration(channel, "worker", "b1", (), definitions).run()
    return set(definitions)


async def test_no_request_is_larger_than_a_coordinator_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    names = await register(coordinator, monkeypatch, 20, MAX_DEFINITION_BYTES - 100)
    assert coordinator.taken == names
    assert max(request.ByteSize() for request in coordinator.requests) < 1.1 * MAX_REQUEST_BYTES
    small = Coordinator()
    await register(small, monkeypatch, 2 * AT_ONCE + 1, 0)
    assert [len(request.agents) for request in small.requests] == [AT_ONCE, AT_ONCE, 1]


async def test_a_refused_agent_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(refused="agent-3")
    names = await register(coordinator, monkeypatch, 8, 0)
    assert coordinator.taken == names - {"agent-3"}


def test_a_worker_registers_code_only() -> None:
    """An agent without code gets tasks without any worker that has its name: a person decides that."""
    request = coordinator_service_pb2.RegisterWorkerAgentsRequest(worker_id="w1")
    agent = request.agents.add(name="support", definition=pb.AgentDefinition(kind=pb.AGENT_KIND_FUNCTION))
    validate(request)
    agent.definition.kind = pb.AGENT_KIND_MODEL
    with pytest.raises(InvalidRequest, match="code only"):
        validate(request)


class Registries:
    """Takes registrations when as many have come as a coordinator makes at a time, and refuses one tenant's."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.taken = refused, list[tuple[str, str]]()
        self._many = asyncio.Semaphore(0)
        self._waiting = 0

    async def RegisterAgent(self, request: pb.RegisterAgentRequest, timeout: float) -> pb.RegisterAgentResponse:
        assert timeout > 0
        tenant = current_tenant()
        self._waiting += 1
        if self._waiting == worker_agents.AT_ONCE:
            self._waiting = 0
            for _ in range(worker_agents.AT_ONCE):
                self._many.release()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._many.acquire()
        if tenant == self.refused:
            raise InvalidRequest(violations=[("definition", "no")])
        self.taken.append((tenant, request.name))
        return pb.RegisterAgentResponse(revision=pb.AgentRevision(agent=f"{tenant}/{request.name}"))


async def registered(registries: Registries, monkeypatch: pytest.MonkeyPatch, tenants: list[str]) -> list[str]:
    monkeypatch.setattr(worker_agents, "AgentServiceStub", lambda _channel: registries)
    channel: Any = None
    request = coordinator_service_pb2.RegisterWorkerAgentsRequest(worker_id="w1", tenants=tenants)
    for name in ("a", "b"):
        request.agents.add(name=name, definition=pb.AgentDefinition(kind=pb.AGENT_KIND_FUNCTION))
    answer = await WorkerAgents(channel, WorkerPools(None)).register(request, Principal("w1", Role.WORKER))
    return [revision.agent for revision in answer.revisions]


async def test_agents_are_registered_with_many_tenants_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, those of a large pool took longer than the worker waits, again after each repeat."""
    tenants = [f"tenant-{number:02}" for number in range(worker_agents.AT_ONCE)]
    revisions = await registered(Registries(), monkeypatch, tenants)
    assert revisions == [f"{tenant}/{name}" for tenant in tenants for name in ("a", "b")]


async def test_a_refused_registration_is_answered_when_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [f"tenant-{number:02}" for number in range(worker_agents.AT_ONCE // 2)]
    registries = Registries(refused=tenants[0])
    with pytest.raises(InvalidRequest, match="definition"):
        await registered(registries, monkeypatch, tenants)
    assert sorted(registries.taken) == [(tenant, name) for tenant in tenants[1:] for name in ("a", "b")]
