"""The model runner's process: commands, settings and composition.

tenure serve models            serves
tenure serve models migrate    migrates the database and ends
tenure serve models list-calls prints the newest model call of each task, for the ledger to compare
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, Final, NamedTuple

from services.models.endpoints.opening import open_default_endpoints, open_endpoints
from services.models.endpoints.routing import ModelEndpoints
from services.models.endpoints.settings import read_endpoints
from services.models.listing import list_calls
from services.models.liveness import RunnerLife
from services.models.relay import Relay
from services.models.runs import RunBounds, Runs, RunWriters
from services.models.servicer import SERVICE, ModelServicer
from services.models.settings import ModelsSettings
from services.models.settled_calls import SettledCalls
from services.models.statements import MIGRATIONS, SCHEMA, SESSION_SETTINGS
from services.models.stops import LedgerStops
from services.models.store import RequestBatcher, end_batcher, sent_batcher
from services.models.sweeping import GenerationSweep
from tenure.domain.access import Role
from tenure.domain.fencing import Audience
from tenure.domain.task import MAX_TIMEOUT_SECONDS
from tenure.runtime.observability import metrics
from tenure.runtime.process import Duties, Process
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.options import ServerLimits
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.audit import RefusalLog, log_refusals
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.signing import Verifier
from tenure.runtime.service import instance_id, run_service
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool, startup_guard
from tenure.runtime.store.sql import Rights, migrate
from tenure.runtime.usage_reports import UsageReport, UsageReports
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.validators import longest_request, validate
from tenure.wire.access import access_rules
from tenure.wire.audit import target_of
from tenure.wire.checkpoint_service import REPORT_TIMEOUT_SECONDS, usage_report_to_wire
from tenure.wire.model_service import MAX_MESSAGE_BYTES
from tenure.wire.token import TokenChecker

_log: Final = logging.getLogger(__name__)
SILENCE_SECONDS: Final = 120.0
"""The longest silence of a duty that runs statements. Each statement is given up after seconds."""
LAST_REPORTS_SECONDS: Final = 5.0
MAX_WAITING_REPORTS: Final = 10_000
REPORTS_TRIED_SECONDS: Final = MAX_TIMEOUT_SECONDS
"""The ledger takes no report while the task waits for its next owner, which a task does for as long as it may live."""


def main() -> int:
    """Runs a command and returns the exit code."""
    commands = {"migrate": migrate_only, "list-calls": print_calls}
    return run_service("models", ModelsSettings, os.environ, compose, arguments=sys.argv[1:], commands=commands)


async def migrate_only(_process: Process, settings: ModelsSettings) -> None:
    """Migrates the database, and gives the service's role its rights."""
    await migrate(settings.postgres_dsn, MIGRATIONS)
    if settings.service_role:
        await Rights.of("services.models").give(settings.postgres_dsn, settings.service_role)


async def print_calls(process: Process, settings: ModelsSettings) -> None:
    """Prints a line of JSON for the newest call of each task."""
    pool = await process.open(open_pool(settings.postgres_dsn, service="models", schema=SCHEMA))
    async for call in list_calls(pool):
        sys.stdout.write(f"{json.dumps(call)}\n")


class _Stores(NamedTuple):
    """The connections to Postgres: the pool, and one for each writer."""

    pool: Pool
    living: DedicatedConnection
    requesting: DedicatedConnection
    sending: DedicatedConnection
    ending: DedicatedConnection


async def compose(process: Process, settings: ModelsSettings) -> None:
    """Opens all parts, dependencies first, serves until the process is to stop, and drains."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # its line for every call repeats what the record has
    security = Security.load(settings.common, Role.MODELS, settings.listen, access_rules)
    await migrate(settings.postgres_dsn, MIGRATIONS, allowed=settings.migrate == "auto")
    stores = await _open_stores(process, settings)
    await startup_guard(stores.pool, allow_unsafe=settings.allow_unsafe_postgres)
    endpoints = await process.open(_endpoints(settings))
    duties = await process.open(Duties())
    checkpoint = await process.open(
        open_channel(settings.checkpoint_address, tls=security.peer(Role.CHECKPOINT), peer="checkpoint")
    )
    reports = _reports(checkpoint)
    duties.start("usage reports", reports.run, silence_seconds=SILENCE_SECONDS)
    sweep = GenerationSweep(stores.pool, settings.retention_days)
    duties.start("sweep model calls", sweep.run, silence_seconds=SILENCE_SECONDS)
    liveness = await process.open(RunnerLife(stores.living, settings.runner_ttl_seconds, endpoints.share_with))
    stops = LedgerStops(checkpoint, f"models/{instance_id()}")
    await stops.try_once()
    runs = await _serve(process, settings, security, stores, endpoints, duties, liveness, reports, stops)
    duties.start("stops", stops.run, silence_seconds=SILENCE_SECONDS)
    duties.start("stop settled calls", SettledCalls(runs, checkpoint).run, silence_seconds=SILENCE_SECONDS)
    await process.run_until_stopped()
    _log.info("draining", extra=runs.count_by_state())
    await runs.drain(settings.drain_seconds)
    await reports.try_once(LAST_REPORTS_SECONDS)


def _endpoints(settings: ModelsSettings) -> ModelEndpoints:
    """Opens the endpoints of the file, or those of the providers' variables. Raises ConfigurationError."""
    options: dict[str, Any] = {
        "timeout_seconds": settings.timeout_seconds,
        "silence_seconds": settings.silence_seconds,
        "prompt_caching": settings.prompt_caching,
        "counts_tokens": settings.count_tokens,
    }
    if settings.endpoints_file is None:
        opened = open_default_endpoints(settings.providers, **options)
    else:
        allows_insecure = settings.providers.allow_insecure_models
        opened = open_endpoints(read_endpoints(settings.endpoints_file, allows_insecure=allows_insecure), **options)
    return ModelEndpoints(opened, longest_wait_seconds=settings.rate_limit_wait_seconds)


def _reports(checkpoint: TenureChannel) -> UsageReports:
    """Returns the sender of usage reports. A task may be queued for long before its next owner joins its call."""
    stub: Any = CheckpointServiceStub(checkpoint)

    async def send(report: UsageReport) -> None:
        await stub.ReportUsage(usage_report_to_wire(report), timeout=REPORT_TIMEOUT_SECONDS)

    return UsageReports(
        send,
        lambda result: metrics.count("tenure_models_usage_reports_total", result=result),
        max_waiting=MAX_WAITING_REPORTS,
        tried_seconds=REPORTS_TRIED_SECONDS,
    )


async def _open_stores(process: Process, settings: ModelsSettings) -> _Stores:
    kept = PoolOptions(settings=SESSION_SETTINGS)
    pool = await process.open(open_pool(settings.postgres_dsn, service="models", schema=SCHEMA, options=kept))
    connections = [
        await process.open(DedicatedConnection(settings.postgres_dsn, service="models", schema=SCHEMA, options=kept))
        for _ in range(4)
    ]
    return _Stores(pool, *connections)


async def _serve(
    process: Process,
    settings: ModelsSettings,
    security: Security,
    stores: _Stores,
    endpoints: ModelEndpoints,
    duties: Duties,
    liveness: RunnerLife,
    reports: UsageReports,
    stops: LedgerStops,
) -> Runs:
    """Composes the writers, the runs and the server, and begins the life of the process once it serves."""
    writers = RunWriters(
        sent_batcher(stores.sending, lambda: liveness.own_id), end_batcher(stores.ending, lambda: liveness.own_id)
    )
    bounds = RunBounds(settings.max_calls, settings.max_prompt_megabytes * 1024 * 1024, settings.report_seconds)
    runs = Runs(endpoints, writers, stores.pool, liveness.own_id, reports.note, bounds, stops)
    deciding = RequestBatcher(
        lambda: liveness.runner_id,
        liveness.is_alive,
        lambda key: runs.find(key) is not None,
        runs.refuse_new,
        runs.begin,
    )
    requests = deciding.over(stores.requesting)
    for name, batcher in (("requests", requests), ("sent marks", writers.sent_marks), ("ends", writers.ends)):
        duties.start(f"write {name}", batcher.run, silence_seconds=SILENCE_SECONDS)
    relay = await process.open(Relay(security))
    server = RpcServer(
        settings.listen,
        security=security,
        validate=validate,
        longest_request=longest_request,
        stopping=process.stopping,
        limits=ServerLimits(max_message_bytes=MAX_MESSAGE_BYTES),
        audit=await process.open(RefusalLog(target_of, log_refusals).opened()),
        limiter=settings.limit.limiter(),
    )
    tokens = TokenChecker(Verifier(settings.verifying_keys_file), Audience.MODELS, settings.common.tls.installation)
    servicer = ModelServicer(tokens, requests, runs, relay, endpoints)
    server.add(SERVICE, servicer)
    process.enter(metrics.on_sample(lambda: _sample(runs, endpoints)))
    await process.open(server)
    await liveness.begin(settings.advertised(server.port))
    duties.start("renew model runner", liveness.renew, may_end=True, silence_seconds=SILENCE_SECONDS)
    _log.info("listening", extra={"address": server.address})
    return runs


def _sample(runs: Runs, endpoints: ModelEndpoints) -> None:
    for state, number in runs.count_by_state().items():
        metrics.gauge("tenure_models_calls", number, state=state)
    metrics.gauge("tenure_models_calls_max", runs.max_calls)
    for name, waiting in endpoints.waiting_by_endpoint().items():
        metrics.gauge("tenure_models_rate_limit_waiting", waiting, endpoint=name)
        metrics.histogram("tenure_models_rate_limit_wait_seconds", endpoint=name)  # from 0, so that its rate is known
    for name, is_open in endpoints.open_circuits().items():
        metrics.gauge("tenure_models_endpoint_circuit_open", is_open, endpoint=name)
