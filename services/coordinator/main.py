"""Starts the coordinator process. Any number of replicas run without a leader, because every write is conditional."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

from services.coordinator.claims.close_out import CloseOutRunner, PendingEndings
from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.claims.granting import ClaimGranter
from services.coordinator.claims.issuing import Issuer
from services.coordinator.claims.key_watch import KeyWatch
from services.coordinator.claims.lost_claims import ClaimReleases, LostClaims
from services.coordinator.claims.queue_watch import InterruptNotices, QueueListener
from services.coordinator.claims.reconcile import Reconciliation
from services.coordinator.claims.stuck_claims import StuckClaims
from services.coordinator.generation import Generation
from services.coordinator.in_doubt_waits import InDoubtWaits
from services.coordinator.lease_store import open_lease_store
from services.coordinator.leases.servicer import lease_service
from services.coordinator.ledger_client import WATCH_SECONDS, AuditClient, LedgerClient
from services.coordinator.operator_requests import OperatorRequests
from services.coordinator.pools import PoolEnforcement, WorkerPools
from services.coordinator.pruned_tasks import PrunedTasks
from services.coordinator.receipts import Receipts
from services.coordinator.servicer import CoordinatorServicer
from services.coordinator.sessions.live_addresses import LiveAddresses
from services.coordinator.sessions.own_session import OwnSession
from services.coordinator.sessions.session_attach import SessionAttach, Sessions
from services.coordinator.sessions.takeover import Takeover
from services.coordinator.settings import CoordinatorSettings
from services.coordinator.stops import StopPush
from services.coordinator.tools_client import ToolsClient
from services.coordinator.worker_agents import WorkerAgents
from tenure.domain.access import Role
from tenure.domain.outbound import LiveNetworks
from tenure.runtime.http.name_lookups import NameLookups
from tenure.runtime.process import Duties, Process
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.options import ServerLimits
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.audit import RefusalLog
from tenure.runtime.security.process_security import Security
from tenure.runtime.service import instance_id, run_service, serve
from tenure.validators import longest_request, validate
from tenure.wire.access import access_rules
from tenure.wire.audit import target_of

SERVICE = "tenure.v1.CoordinatorService"
LEASES = "tenure.v1.LeaseService"
SILENCE_SECONDS: Final = 60.0
"""The silence limit of duties that talk to etcd: their calls have deadlines of seconds, and watches send progress."""

LISTS_SILENCE_SECONDS: Final = 300.0
"""Of duties that read everything there is of a kind, page by page."""

TOOLS_SILENCE_SECONDS: Final = 180.0
"""Of duties that have others close fences or forget tasks: such a call may take its whole deadline, and is repeated."""

QUEUE_WATCH_SILENCE_SECONDS: Final = WATCH_SECONDS + 60.0
"""A watch without a hint ends by its deadline."""

GENERATION_SILENCE_SECONDS: Final = 300.0
"""Longer, because after a restore of etcd one check deletes everything of older generations."""

# Each old session stream gets a Goaway, so that its worker attaches elsewhere. A maximum age of connections would break
# streams without one.
LIMITS = ServerLimits(max_connection_age_seconds=20 * 24 * 3600.0)


async def compose(process: Process, settings: CoordinatorSettings) -> None:
    """Serves the coordinator until the process stops."""
    await serve(process, await assemble(process, settings))


async def assemble(process: Process, settings: CoordinatorSettings) -> RpcServer:
    """Opens the clients, then the state in memory, then the duties, because they close in the opposite order."""
    security = Security.load(settings.common, Role.COORDINATOR, settings.listen, access_rules)
    pools = WorkerPools(settings.pools_file)
    coordinator_id = settings.id or f"{instance_id()}-{uuid4().hex[:6]}"
    timing = settings.timing()
    store = await process.open(
        open_lease_store(
            settings.etcd_endpoints,
            key_prefix=settings.etcd_key_prefix,
            ca_file=settings.etcd_ca_file,
            certificate_file=settings.etcd_certificate_file,
            key_file=settings.etcd_key_file,
        )
    )
    checkpoint = await process.open(open_channel(settings.checkpoint_address, tls=security.peer(Role.CHECKPOINT)))
    ledger = LedgerClient(checkpoint)
    tools = ToolsClient(await process.open(open_channel(settings.tools_address, tls=security.peer(Role.TOOLS))))
    issuer = Issuer(settings.signing_key_file, settings.verifying_keys_file, settings.common.tls.installation)
    server = await _server(process, settings, security, AuditClient(checkpoint))
    sessions = process.enter(Sessions().sampled())
    lost_claims = LostClaims(store, ledger)
    generation = Generation(store, ledger, lost_claims, server_health(server))
    granter = ClaimGranter(store, ledger, lost_claims, issuer, generation)
    dispatch = Dispatch(ledger, sessions, granter, generation, process.stopping)
    lost_claims.on_requeued(dispatch.on_queued)

    # The claim deletions close last: every other part may still submit some while it closes.
    deletions = await process.open(Duties())
    deletions.start("claim deletions", lost_claims.run, silence_seconds=SILENCE_SECONDS)
    own_session = await process.open(OwnSession(coordinator_id, store, generation, timing))
    duties = await process.open(Duties())
    close_out_runner = CloseOutRunner(store, ledger, tools, lost_claims, issuer, generation, own_session)
    endings = PendingEndings(ledger, sessions, close_out_runner, grace_seconds=settings.cancel_grace_seconds)
    operator_requests = OperatorRequests(store, sessions, lost_claims, pools)
    reconciliation = Reconciliation(
        store, ledger, sessions, lost_claims, settings.reconcile_interval_seconds, timing, operator_requests
    )
    key_watch = KeyWatch(coordinator_id, store, sessions, lost_claims, generation, operator_requests)
    releases = await process.open(ClaimReleases(store, lost_claims))
    takeover = await process.open(Takeover(store, lost_claims, generation))
    enforcement = PoolEnforcement(pools, sessions, releases, dispatch.on_queued)
    live_addresses = LiveAddresses(LiveNetworks(settings.live_networks), await process.open(NameLookups()))
    session_attach = SessionAttach(
        coordinator_id, store, generation, sessions, timing, pools, enforcement, live_addresses
    )
    servicer = CoordinatorServicer(
        store,
        sessions,
        session_attach,
        takeover,
        dispatch,
        releases,
        issuer,
        operator_requests,
        pools,
        WorkerAgents(checkpoint, pools),
        generation,
        Receipts(ledger, tools, issuer),
        process.stopping,
    )
    server.add(SERVICE, servicer)
    leases, lease_sweep = lease_service(settings, store, checkpoint, issuer, generation, process.stopping)
    server.add(LEASES, leases)

    duties.start("generation", generation.watch_over, silence_seconds=GENERATION_SILENCE_SECONDS)
    duties.start("vanishing", key_watch.run, silence_seconds=SILENCE_SECONDS)
    duties.start("dispatch", dispatch.run, may_end=True, silence_seconds=SILENCE_SECONDS)
    queue_listener = QueueListener(ledger, dispatch.on_queued, endings.on_cancels, InterruptNotices(sessions))
    duties.start("hints", queue_listener.run, silence_seconds=QUEUE_WATCH_SILENCE_SECONDS)
    duties.start("stalled", StuckClaims(store, sessions, lost_claims).run, silence_seconds=SILENCE_SECONDS)
    duties.start("reconciliation", reconciliation.run, silence_seconds=LISTS_SILENCE_SECONDS)
    duties.start("own session", own_session.run, silence_seconds=SILENCE_SECONDS)
    duties.start("endings", endings.run, silence_seconds=TOOLS_SILENCE_SECONDS)
    duties.start(
        "prunings", PrunedTasks(ledger, tools, issuer, coordinator_id).run, silence_seconds=TOOLS_SILENCE_SECONDS
    )
    for name, duty in (("doubt waits", InDoubtWaits(ledger, tools).run), ("stops", StopPush(ledger, tools).run)):
        duties.start(name, duty, silence_seconds=TOOLS_SILENCE_SECONDS)
    duties.start("signing key", issuer.follow_rotation, silence_seconds=SILENCE_SECONDS)
    duties.start("pools", enforcement.run, may_end=True, silence_seconds=SILENCE_SECONDS)
    duties.start("unregistered leases", lease_sweep.run, silence_seconds=LISTS_SILENCE_SECONDS)
    await generation.first_look()
    return server


async def _server(process: Process, settings: CoordinatorSettings, security: Security, audit: AuditClient) -> RpcServer:
    return RpcServer(
        settings.listen,
        security=security,
        validate=validate,
        longest_request=longest_request,
        stopping=process.stopping,
        limits=LIMITS,
        audit=await process.open(RefusalLog(target_of, audit.append).opened()),
        limiter=settings.limit.limiter(),
    )


def server_health(server: RpcServer) -> Callable[[bool], Awaitable[None]]:
    """Returns the function that sets the health of this replica: NOT_SERVING while etcd does not answer."""

    async def set_serving_all(serving: bool) -> None:
        for service in ("", SERVICE, LEASES):
            await server.health.set_serving(service, serving)

    return set_serving_all


def main() -> int:
    """Runs the coordinator and returns its exit code."""
    return run_service("coordinator", CoordinatorSettings, os.environ, compose, arguments=sys.argv[1:])
