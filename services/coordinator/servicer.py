"""Serves CoordinatorService: sessions of workers, and the lists and requests of operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.claims.issuing import Issuer
from services.coordinator.claims.lost_claims import ClaimReleases
from services.coordinator.generation import Generation
from services.coordinator.lease_store import LeaseStore
from services.coordinator.operator_requests import OperatorRequests, list_claims, list_renewals, list_workers
from services.coordinator.pools import WorkerPools
from services.coordinator.receipts import Receipts
from services.coordinator.sessions.live_addresses import live_source
from services.coordinator.sessions.session_attach import Greeting, SessionAttach, Sessions
from services.coordinator.sessions.session_stream import SESSION_GOES_ON, SessionStreamServer, StreamEnd
from services.coordinator.sessions.takeover import Takeover
from services.coordinator.worker_agents import WorkerAgents
from tenure.domain.errors import InvalidRequest
from tenure.runtime.rpc.server import draining
from tenure.runtime.security.access_control import current_principal
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceServicer

_HELLO_SECONDS: Final = 10.0


class CoordinatorServicer(CoordinatorServiceServicer):
    """Passes each method on to the module that does the work."""

    def __init__(
        self,
        store: LeaseStore,
        sessions: Sessions,
        session_attach: SessionAttach,
        takeover: Takeover,
        dispatch: Dispatch,
        releases: ClaimReleases,
        issuer: Issuer,
        operator_requests: OperatorRequests,
        pools: WorkerPools,
        worker_agents: WorkerAgents,
        generation: Generation,
        receipts: Receipts,
        stopping: asyncio.Event,
    ) -> None:
        self._receipts = receipts
        self._generation = generation
        self._worker_agents = worker_agents
        self._pools = pools
        self._operator_requests = operator_requests
        self._store = store
        self._sessions = sessions
        self._session_attach = session_attach
        self._takeover = takeover
        self._dispatch = dispatch
        self._releases = releases
        self._issuer = issuer
        self._stopping = stopping

    async def Session(  # type: ignore[override]  # it writes to the context and yields nothing
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> None:
        """Attaches a session, serves its stream, and starts a takeover if the stream's end calls for one."""
        if self._stopping.is_set():
            raise draining()
        hello = await _hello(request_iterator)
        session = await self._session_attach.attach(Greeting.of(hello, current_principal(), context.peer()))
        stream = SessionStreamServer(
            session, self._store, self._issuer, self._releases, self._dispatch, self._generation, self._stopping
        )
        try:
            self._dispatch.on_queued()
            # Part of the first write otherwise: gRPC refuses the status of a stream that ends during that write, and
            # the worker would wait for its end in vain.
            await context.send_initial_metadata(())
            await stream.serve(request_iterator, context)
        finally:
            self._sessions.detach(session)
            if stream.ending not in SESSION_GOES_ON:
                self._takeover.begin(session, announced=stream.ending is StreamEnd.GOODBYE)

    async def RegisterWorkerAgents(
        self, request: pb.RegisterWorkerAgentsRequest, _context: Any
    ) -> pb.RegisterWorkerAgentsResponse:
        """Registers the agents and functions of a worker."""
        return await self._worker_agents.register(request, current_principal())

    async def ListWorkers(self, request: Any, _context: Any) -> admin_pb.ListWorkersResponse:
        """Lists the live sessions of workers."""
        return await list_workers(self._store, self._pools, request)

    async def ListClaims(self, request: Any, _context: Any) -> admin_pb.ListClaimsResponse:
        """Lists the live claims."""
        return admin_pb.ListClaimsResponse(claims=await list_claims(self._store, request.task_id))

    async def ListRenewals(self, request: pb.ListRenewalsRequest, _context: Any) -> pb.ListRenewalsResponse:
        """Lists the renewals of the claims at this replica."""
        return pb.ListRenewalsResponse(renewals=list_renewals(self._sessions, request.task_id))

    async def GetLiveSource(self, request: pb.GetLiveSourceRequest, _context: Any) -> pb.GetLiveSourceResponse:
        """Returns where the holder of a claim serves its live text."""
        return await live_source(self._store, request.task_id, request.epoch)

    async def TransferTask(self, request: Any, _context: Any) -> admin_pb.TransferTaskResponse:
        """Transfers a task from its owner to another worker."""
        return admin_pb.TransferTaskResponse(taken=await self._operator_requests.transfer(request))

    async def DrainWorker(self, request: Any, _context: Any) -> admin_pb.DrainWorkerResponse:
        """Drains a worker that is attached to any replica."""
        return admin_pb.DrainWorkerResponse(workers=await self._operator_requests.drain(request))

    async def GetReceipts(self, request: tasks_pb.GetReceiptsRequest, _context: Any) -> tasks_pb.GetReceiptsResponse:
        """Signs the receipts of a task of the tenant."""
        return await self._receipts.page(request)


async def _hello(requests: AsyncIterator[pb.SessionRequest]) -> pb.Hello:
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            first = await anext(aiter(requests))
    except (TimeoutError, StopAsyncIteration):
        raise InvalidRequest(violations=[("hello", f"must come within {_HELLO_SECONDS:g} s")]) from None
    if not first.HasField("hello"):
        raise InvalidRequest(violations=[("hello", "must be the first message")])
    return first.hello
