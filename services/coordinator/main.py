"""The coordinator: who may try. Any number of replicas, no leader: all they do is conditional."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

from services.coordinator.claims.close_out import CloseOutRunner, PendingEndings
from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.claims.granting import ClaimGranter, Issuer
from services.coordinator.claims.key_watch import KeyWatch
from services.coordinator.claims.lost_claims import ClaimReleases, LostClaims
from services.coordinator.claims.queue_watch import QueueListener
from services.coordinator.claims.reconcile import Reconciliation
from services.coordinator.claims.stuck_claims import StuckClaims
from services.coordinator.generation import Generation
from services.coordinator.in_doubt_waits import InDoubtWaits
from services.coordinator.lease_store import open_lease_store
from services.coordinator.leases.servicer import lease_service
from services.coordinator.ledger_client import WATCH_SECONDS, LedgerClient
from services.coordinator.operator_requests import OperatorRequests
from services.coordinator.pruned_tasks import PrunedTasks
from services.coordinator.servicer import CoordinatorServicer
from services.coordinator.sessions.own_session import OwnSession
from services.coordinator.sessions.session_attach import SessionAttach, Sessions, Takeover
from services.coordinator.settings import CoordinatorSettings
from services.coordinator.tools_client import ToolsClient
from tenure.runtime.process import Duties, Process
from tenure.runtime.rpc_client import open_channel
from tenure.runtime.rpc_options import ServerLimits
from tenure.runtime.rpc_server import RpcServer
from tenure.runtime.service import instance_id, run_service, serve
from tenure.v1.coordinator_service_pb2_grpc import add_CoordinatorServiceServicer_to_server
from tenure.v1.lease_service_pb2_grpc import add_LeaseServiceServicer_to_server
from tenure.validators import validate

SERVICE = "tenure.v1.CoordinatorService"
LEASES = "tenure.v1.LeaseService"
SILENCE_SECONDS: Final = 60.0
"""Of duties that talk to etcd: their calls have deadlines of seconds, and a quiet watch is asked for a sign of life."""

LISTS_SILENCE_SECONDS: Final = 300.0
"""Of duties that read everything there is of a kind, page by page."""

TOOLS_SILENCE_SECONDS: Final = 180.0
"""Of duties that have others close fences or forget tasks: such a call may take its whole deadline, and is repeated."""

HINTS_SILENCE_SECONDS: Final = WATCH_SECONDS + 60.0
"""A watch without a hint ends by its deadline."""

GENERATION_SILENCE_SECONDS: Final = 300.0
"""After a restore of etcd one look clears away all that is left of older generations."""

# Streams are sent away one by one, with an announcement; a connection's age must not break them unannounced.
LIMITS = ServerLimits(max_connection_age_seconds=20 * 24 * 3600.0)


async def compose(process: Process, settings: CoordinatorSettings) -> None:
    """Everything, served until the process is to end."""
    await serve(process, await assemble(process, settings))


async def assemble(process: Process, settings: CoordinatorSettings) -> RpcServer:
    """Clients, then what is known in memory, then the duties: what closes first needs what closes later."""
    coordinator_id = settings.id or f"{instance_id()}-{uuid4().hex[:6]}"
    timing = settings.timing()
    store = await process.open(
        open_lease_store(
            settings.etcd_endpoints,
            ca_file=settings.etcd_ca_file,
            certificate_file=settings.etcd_certificate_file,
            key_file=settings.etcd_key_file,
        )
    )
    checkpoint = await process.open(open_channel(settings.checkpoint_address))
    ledger = LedgerClient(checkpoint)
    tool_fence = ToolsClient(await process.open(open_channel(settings.tools_address)))
    issuer = Issuer(settings.signing_key_file, settings.verifying_keys_file)
    server = RpcServer(settings.listen, validate=validate, stopping=process.stopping, limits=LIMITS)

    sessions = Sessions()
    losses = LostClaims(store, ledger)
    generation = Generation(store, ledger, losses, server_health(server))
    granting = ClaimGranter(store, ledger, losses, issuer, generation)
    dispatch = Dispatch(ledger, sessions, granting, generation, process.stopping)
    losses.on_requeued(dispatch.on_queued)

    # Deletions outlive all that hands them in: on its way out, every other part may still have some.
    deletions = await process.open(Duties())
    deletions.start("claim deletions", losses.run, silence_seconds=SILENCE_SECONDS)
    own_session = await process.open(OwnSession(coordinator_id, store, generation, timing))
    duties = await process.open(Duties())
    ender = CloseOutRunner(store, ledger, tool_fence, losses, issuer, generation, own_session)
    endings = PendingEndings(ledger, sessions, ender, grace_seconds=settings.cancel_grace_seconds)
    operating = OperatorRequests(store, sessions, losses)
    interval_seconds = settings.reconcile_interval_seconds
    reconciliation = Reconciliation(store, ledger, sessions, losses, interval_seconds, timing, operating)
    vanishing = KeyWatch(coordinator_id, store, sessions, losses, generation, operating)
    releases = await process.open(ClaimReleases(store, losses))
    takeover = await process.open(Takeover(store, timing.reconnect_grace_seconds))
    attaching = SessionAttach(coordinator_id, store, generation, sessions, timing)
    servicer = CoordinatorServicer(
        store, sessions, attaching, takeover, dispatch, releases, issuer, operating, process.stopping
    )
    server.add(SERVICE, add_CoordinatorServiceServicer_to_server, servicer)
    leases, sweeping = lease_service(settings, store, checkpoint, issuer, generation, process.stopping)
    server.add(LEASES, add_LeaseServiceServicer_to_server, leases)

    duties.start("generation", generation.watch_over, silence_seconds=GENERATION_SILENCE_SECONDS)
    duties.start("vanishing", vanishing.run, silence_seconds=SILENCE_SECONDS)
    duties.start("dispatch", dispatch.run, may_end=True, silence_seconds=SILENCE_SECONDS)
    hints = QueueListener(ledger, dispatch.on_queued, endings.on_cancels)
    duties.start("hints", hints.run, silence_seconds=HINTS_SILENCE_SECONDS)
    duties.start("stalled", StuckClaims(sessions, losses).run, silence_seconds=SILENCE_SECONDS)
    duties.start("reconciliation", reconciliation.run, silence_seconds=LISTS_SILENCE_SECONDS)
    duties.start("own session", own_session.run, silence_seconds=SILENCE_SECONDS)
    duties.start("endings", endings.run, silence_seconds=TOOLS_SILENCE_SECONDS)
    prunings = PrunedTasks(ledger, tool_fence, issuer, coordinator_id)
    duties.start("prunings", prunings.run, silence_seconds=TOOLS_SILENCE_SECONDS)
    duties.start("doubt waits", InDoubtWaits(ledger, tool_fence).run, silence_seconds=TOOLS_SILENCE_SECONDS)
    duties.start("signing key", issuer.follow_rotation, silence_seconds=SILENCE_SECONDS)
    duties.start("unregistered leases", sweeping.run, silence_seconds=LISTS_SILENCE_SECONDS)
    await generation.first_look()
    return server


def server_health(server: RpcServer) -> Callable[[bool], Awaitable[None]]:
    """How the generation's duty says whether this replica serves: not while etcd does not answer."""

    async def say(serving: bool) -> None:
        for service in ("", SERVICE, LEASES):
            await server.health.set_serving(service, serving)

    return say


def main() -> int:
    """The exit code."""
    return run_service("coordinator", CoordinatorSettings, os.environ, compose, arguments=sys.argv[1:])
