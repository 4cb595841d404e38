"""The agents and functions of this worker as definitions, and their registration.

The digest of a definition names the revision that the worker has the code of. It is computed here, so that the worker
offers its revisions before anything has registered them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.agents.functions import content_of, undo_tools_of
from tenure.control import Function
from tenure.domain.agents import AgentContent, AgentKind
from tenure.domain.errors import Refused, TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import note_progress, rest
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import agent_service_pb2, coordinator_service_pb2
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.wire.agent_service import definition_to_wire, digest_of

_log: Final = logging.getLogger(__name__)
Definitions = Mapping[str, agent_service_pb2.AgentDefinition]
PATIENCE: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=30.0)
TIMEOUT_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 3 * TIMEOUT_SECONDS
AT_ONCE: Final = 16
"""Agents in one request. A coordinator registers each with each tenant before it answers."""
MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
"""Of definitions, each up to half a megabyte: a request stays below what a coordinator accepts."""


def definitions_of(functions: Mapping[str, Function], build: str) -> dict[str, agent_service_pb2.AgentDefinition]:
    """Returns the definitions by name. A function that says nothing of itself has only its code.

    Raises ConfigurationError for agents that cannot run as tasks, with all problems.
    """
    plain, problems = AgentContent(AgentKind.FUNCTION), list[str]()
    definitions = {}
    for name, function in sorted(functions.items()):
        try:
            definitions[name] = definition_to_wire(content_of(function) or plain, build)
            undo_tools_of(function)  # raises for a compensation that it could not make
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(problems)
    return definitions


def digests_of(definitions: Definitions) -> dict[str, str]:
    """Returns the digests by name."""
    return {name: digest_of(definition) for name, definition in definitions.items()}


class WorkerAgentRegistration:
    """Registers the worker's definitions once, however long that takes: the worker runs tasks meanwhile."""

    def __init__(
        self, channel: TenureChannel, worker_id: str, build: str, tenants: Sequence[str], definitions: Definitions
    ) -> None:
        self._stub: Any = CoordinatorServiceStub(channel)
        self._worker_id, self._build, self._tenants = worker_id, build, tenants
        self._definitions = list(definitions.items())

    async def run(self) -> None:
        """Registers until a coordinator has taken or refused each definition. A duty that ends."""
        for portion in _portions(self._definitions):
            await self._register(portion)

    async def _register(self, definitions: Definitions) -> None:
        request = coordinator_service_pb2.RegisterWorkerAgentsRequest(
            worker_id=self._worker_id,
            build=self._build,
            tenants=self._tenants,
            agents=[
                coordinator_service_pb2.WorkerAgent(name=name, definition=definition)
                for name, definition in definitions.items()
            ],
        )
        failures = 0
        while True:
            try:
                registered = await self._stub.RegisterWorkerAgents(request, timeout=TIMEOUT_SECONDS)
            except Refused as error:
                if len(definitions) > 1:  # one of them: the others go on
                    for name, definition in definitions.items():
                        await self._register({name: definition})
                    return
                # Tasks that are pinned already reach this worker all the same: new ones may not.
                _log.error(
                    "the agents of this worker cannot be registered",
                    extra={"agents": ", ".join(definitions), "why": str(error)},
                )
                return
            except (TryLater, PeerFailed) as error:
                failures += 1
                _log.info("the agents of this worker are registered later", extra={"why": str(error)})
            else:
                revisions = sorted({f"{one.agent}@{one.revision}" for one in registered.revisions})
                _log.info("registered", extra={"revisions": ", ".join(revisions), "build": self._build})
                return
            note_progress()
            await rest(PATIENCE.wait_seconds(failures, random.random()))


def _portions(
    definitions: Sequence[tuple[str, agent_service_pb2.AgentDefinition]],
) -> list[dict[str, agent_service_pb2.AgentDefinition]]:
    """Returns the definitions in as many parts as their number and size need."""
    portions: list[dict[str, agent_service_pb2.AgentDefinition]] = []
    left_bytes = 0
    for name, definition in definitions:
        left_bytes -= definition.ByteSize()
        if left_bytes < 0 or len(portions[-1]) == AT_ONCE:
            portions.append({})
            left_bytes = MAX_REQUEST_BYTES - definition.ByteSize()
        portions[-1][name] = definition
    return portions
