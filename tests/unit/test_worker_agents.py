"""Registration of a worker's agents: requests that a coordinator accepts, and one refusal does not stop the others."""

from __future__ import annotations

from typing import Any

import pytest

from services.worker import agents
from services.worker.agents import AT_ONCE, MAX_REQUEST_BYTES, WorkerAgentRegistration
from tenure.domain.errors import InvalidRequest
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2
from tenure.validators import validate
from tenure.validators.agent_service import MAX_DEFINITION_BYTES


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
