"""The checkpoint process: its settings and its composition."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.checkpoint.agents.servicer import AgentServicer
from services.checkpoint.approvals.issuing import PREFIX as LINK_PREFIX
from services.checkpoint.approvals.issuing import LinkIssuer, LinkSettings, OldLinks
from services.checkpoint.approvals.servicer import ApprovalServicer
from services.checkpoint.audit import AuditServicer, refusal_log
from services.checkpoint.commit.committer import LedgerCommitter, commit_batcher, report_health
from services.checkpoint.commit.opener import LedgerOpener
from services.checkpoint.commit.refused_writes import Refusals
from services.checkpoint.comparing import Comparison, compare
from services.checkpoint.comparing_model_calls import MODEL_CALLS
from services.checkpoint.comparing_tool_calls import TOOL_CALLS
from services.checkpoint.epochs import get_epochs, raise_generation
from services.checkpoint.prices import load_prices
from services.checkpoint.queries import MIGRATIONS, SCHEMA, session_settings
from services.checkpoint.queue.admitting import LineSweeper
from services.checkpoint.queue.backlog import Backlog
from services.checkpoint.queue.depth import QueueDepths
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.offering import Offering
from services.checkpoint.queue.sweeps import SWEEPS, Sweeper
from services.checkpoint.retention.clearing import PrunedRowCleaner
from services.checkpoint.retention.pruning import TaskPruner
from services.checkpoint.schedules.servicer import ScheduleServicer
from services.checkpoint.schedules.sweeping import ScheduleSweeper
from services.checkpoint.servicer import CheckpointServicer, LedgerDependencies
from services.checkpoint.standby import PREFIX as STANDBY_PREFIX
from services.checkpoint.standby import LedgerReads, Standby, StandbySettings
from services.checkpoint.submit.creator import LedgerCreator
from services.checkpoint.submit.prepared_ids import PreparedIds
from services.checkpoint.submit.source_defaults import load_source_defaults
from services.checkpoint.submit.undo_sweeping import UndoSweeper
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.tenants.api_keys import ApiKeyServicer, create_operator_key
from services.checkpoint.tenants.near_quotas import NearQuotas
from services.checkpoint.tenants.quotas import LimitedTenants
from services.checkpoint.tenants.servicer import TenantServicer, adopt_defaults
from services.checkpoint.traces.settings import PREFIX as TRACES_PREFIX
from services.checkpoint.traces.settings import TraceSettings
from services.checkpoint.waits.sub_agent_events import SubAgentEvents
from services.checkpoint.watch.change_feed import ChangePruner, adopt_feed
from services.checkpoint.watch.change_stream import ChangeStream
from services.checkpoint.watch.hub import Hub
from services.checkpoint.watch.notifications import ReplicaNotifications
from services.checkpoint.watch.task_stream import EntryWatch
from services.checkpoint.webhooks.notifier import OpenNotifier
from services.checkpoint.webhooks.sealing import seal_again
from services.checkpoint.webhooks.sender_lease import WebhookDispatcher
from services.checkpoint.webhooks.sending import PREFIX as WEBHOOK_PREFIX
from services.checkpoint.webhooks.sending import WebhookPolicy, WebhookSettings
from services.checkpoint.webhooks.servicer import WebhookServicer
from services.checkpoint.webhooks.smtp_settings import PREFIX as SMTP_PREFIX
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.access import Role
from tenure.domain.budget import MAX_NANO_USD, NANO_USD
from tenure.domain.fairness import FLOOR_SLOTS
from tenure.domain.fencing import Audience
from tenure.domain.outbound import Networks
from tenure.domain.task import DEFAULT_MAX_USD, CapDefaults
from tenure.runtime.process import Duties, NoLimit, Process
from tenure.runtime.rpc.call_limiter import WorkerLimitSettings
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.schema_checks import SchemaChecks
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.secret_box import SecretBox
from tenure.runtime.security.signing import Verifier
from tenure.runtime.service import CommonSettings, instance_id, metrics_setting, run_service, serve
from tenure.runtime.settings import Address, ConfigurationError, Secret, group, setting
from tenure.runtime.store.batching import Batcher
from tenure.runtime.store.postgres import Pool, PoolOptions, dsn_problems, open_pool, startup_guard
from tenure.runtime.store.sql import Rights, migrate
from tenure.validators import longest_request, validate
from tenure.validators.task import schemas_in
from tenure.wire.access import access_rules
from tenure.wire.token import TokenChecker

NAME: Final = "checkpoint"
GENERATIONS_SKIPPED: Final = 1000
"""More than etcd can have had since any backup, and few of the eight million that there are."""
POLL_SILENCE_SECONDS: Final = 120.0
SWEEP_SILENCE_SECONDS: Final = 120.0
"""Of one transaction, run again after conflicts: each of its statements is given up after seconds."""

WRITE_SILENCE_SECONDS: Final = 120.0
"""Of one write of a batch, which is given up like a sweep's."""

UNTIL_THE_END: Final = NoLimit("it waits for the end of the process, and for nothing outside of it")


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """The settings of this process."""

    listen: Address = setting("address to serve on", default=Address("127.0.0.1:8472"))
    metrics_listen: Address | None = metrics_setting()
    postgres_dsn: Secret = setting("the database of the ledger")
    encryption_keys_file: Path | None = setting(
        "the keys that encrypt the secrets of webhooks; without it they are stored as they are", default=None
    )
    verifying_keys_file: Path = setting("public keys that verify fencing tokens")
    migrate: str = setting("check: refuse an old schema; auto: migrate it", default="check", choices=("check", "auto"))
    service_role: str = setting("database role that the command migrate gives the rights of the service", default="")
    allow_unsafe_postgres: bool = setting("accept a Postgres that may lose acknowledged writes", default=False)
    pool_size: int = setting(
        "most connections besides those for commits, opens and submits", default=12, minimum=2, maximum=200
    )
    clock_schema: str = setting("schema with functions that replace Postgres's clock, for tests", default="")
    sweep_interval_seconds: float = setting("seconds between two sweeps", default=0.5, minimum=0.05, maximum=60)
    change_retention_seconds: float = setting(
        "how long changes are kept for disconnected watchers", default=7 * 86_400.0, minimum=1, maximum=366 * 86_400.0
    )
    task_retention_seconds: float = setting(
        "how long ended tasks are kept; 0: forever", default=0.0, minimum=0, maximum=100 * 366 * 86_400.0
    )
    max_ledger_bytes: int = setting(
        "most bytes of one task's history; 0: no limit", default=512 * 1024 * 1024, minimum=0, maximum=2**40
    )
    lower_tier_share: float = setting(
        "share of the slots, as 1/n, for each lower tier while higher tiers wait; 0: a strict order of tiers",
        default=1 / FLOOR_SLOTS,
        minimum=0,
        maximum=0.5,
    )
    max_schedules_per_tenant: int = setting("most schedules of one tenant", default=1000, minimum=1)
    standby: StandbySettings = group(StandbySettings, STANDBY_PREFIX)
    traces: TraceSettings = group(TraceSettings, TRACES_PREFIX)
    webhook: WebhookSettings = group(WebhookSettings, WEBHOOK_PREFIX)
    smtp: SmtpSettings = group(SmtpSettings, SMTP_PREFIX)
    answer_link: LinkSettings = group(LinkSettings, LINK_PREFIX)
    limit: WorkerLimitSettings = group(WorkerLimitSettings, "TENURE_CHECKPOINT_LIMIT_")
    defaults_file: Path | None = setting("TOML of defaults.<source>: see docs/defaults.md", default=None)
    default_model: str = setting("model of tasks that name none, recorded at submit; empty: the worker's", default="")
    default_max_usd: float = setting(
        "cap in dollars of tasks that set none, where the model has a price; 0: no cap",
        default=DEFAULT_MAX_USD,
        minimum=0,
        maximum=MAX_NANO_USD // NANO_USD,
    )
    prices_file: Path | None = setting(
        "TOML of models and the prices of their tokens: see docs/budgets.md", default=None
    )
    common: CommonSettings = group(CommonSettings)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between the settings."""
        if self.webhook.lease_seconds < 2 * self.smtp.longest_seconds:
            yield f"{WEBHOOK_PREFIX}LEASE_SECONDS must be at least 2 s more than twice {SMTP_PREFIX}TIMEOUT_SECONDS"
        yield from dsn_problems(self.common, "TENURE_CHECKPOINT_POSTGRES_DSN", self.postgres_dsn)
        yield from dsn_problems(self.common, f"{STANDBY_PREFIX}DSN", self.standby.dsn)

    @property
    def caps(self) -> CapDefaults:
        return CapDefaults(self.default_model, round(self.default_max_usd * NANO_USD))

    @property
    def in_session(self) -> tuple[tuple[str, str], ...]:
        """The settings of the connections that read the time."""
        return session_settings(self.clock_schema)

    @property
    def floor_slots(self) -> int:
        """Of so many slots, each lower tier gets one; 0: none."""
        return round(1 / self.lower_tier_share) if self.lower_tier_share else 0


async def compose(process: Process, settings: CheckpointSettings, open_notifier: OpenNotifier) -> None:
    """Assembles the process and serves until it is stopped."""
    await serve(process, await assemble(process, settings, open_notifier))


async def assemble(process: Process, settings: CheckpointSettings, open_notifier: OpenNotifier) -> RpcServer:
    """Opens everything in the order of dependency and returns the server, not yet opened."""
    security = Security.load(settings.common, Role.CHECKPOINT, settings.listen, access_rules)
    tokens = TokenChecker(Verifier(settings.verifying_keys_file), Audience.CHECKPOINT, settings.common.tls.installation)
    prices = load_prices(settings.prices_file)
    defaults = TaskDefaults(load_source_defaults(settings.defaults_file), settings.caps, prices)
    await migrate(settings.postgres_dsn, MIGRATIONS, allowed=settings.migrate == "auto")
    options = PoolOptions(max_size=settings.pool_size, settings=settings.in_session)
    pool = await process.open(open_pool(settings.postgres_dsn, service=NAME, schema=SCHEMA, options=options))
    await startup_guard(pool, allow_unsafe=settings.allow_unsafe_postgres)
    await adopt_feed(pool)
    hub = Hub()
    replicas = ReplicaNotifications(settings.postgres_dsn, pool, hub)
    refusals = Refusals(pool)
    limited = LimitedTenants(pool)
    await adopt_defaults(pool, defaults.sources.tenant_quotas)
    await limited.refresh()
    committer = await process.open(
        LedgerCommitter(
            settings.postgres_dsn,
            replicas.announce,
            refusals.note_commit,
            prices,
            limited,
            settings.max_ledger_bytes,
            settings.in_session,
        )
    )
    opener = await process.open(LedgerOpener(settings.postgres_dsn, pool, replicas.announce, settings.in_session))
    creator = await process.open(
        LedgerCreator(settings.postgres_dsn, pool, replicas.announce, defaults, settings.in_session)
    )
    batcher = commit_batcher(committer.write)
    due = DueWork(pool, settings.sweep_interval_seconds, {"families": hub.sub_agent_events, "lines": hub.source_lines})
    duties = await process.open(Duties())
    _write(duties, batcher, creator, opener)
    duties.start("refusals", refusals.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("tenants' quotas", limited.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    _notify(duties, replicas)
    duties.start("due work", due.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    _sweep(duties, Sweeper(pool, replicas.announce, due), LineSweeper(pool, replicas.announce, due))
    _create_due(duties, pool, replicas, due, defaults)
    sub_agent_events = SubAgentEvents(pool, replicas.announce, due)
    duties.start("families", sub_agent_events.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("prepared ids", PreparedIds(pool).run, silence_seconds=SWEEP_SILENCE_SECONDS)
    policy = _send(duties, pool, settings, due, open_notifier)
    _retain(duties, pool, settings)
    audit = await process.open(refusal_log(pool, security.identity).opened())
    server = RpcServer(
        settings.listen,
        security=security,
        validate=validate,
        longest_request=longest_request,
        examine=SchemaChecks(schemas_in).examine,
        stopping=process.stopping,
        audit=audit,
        limiter=settings.limit.limiter(),
    )
    reads = _reads(duties, pool, settings)
    watching, changes = EntryWatch(reads, hub), ChangeStream(pool, hub)
    depths = _look(duties, pool)
    ledger = LedgerDependencies(
        pool,
        reads,
        tokens,
        batcher,
        creator,
        opener,
        watching,
        changes,
        refusals,
        replicas.announce,
        server.stopping,
        defaults,
        depths,
    )
    server.add(
        "tenure.v1.CheckpointService",
        CheckpointServicer(ledger, Offering(floor_slots=settings.floor_slots)),
    )
    schedules = ScheduleServicer(pool, replicas.announce, settings.max_schedules_per_tenant, defaults)
    server.add("tenure.v1.ScheduleService", schedules)
    _serve_tenants(server, pool)
    server.add("tenure.v1.WebhookService", WebhookServicer(pool, policy))
    approvals = ApprovalServicer(pool, replicas.announce, audit.note, security.identity)
    server.add("tenure.v1.ApprovalService", approvals)
    duties.start(
        "commit health",
        lambda: report_health(committer, server.health.set_all_serving),
        silence_seconds=SWEEP_SILENCE_SECONDS,
    )
    duties.start(
        "close watches", lambda: _close_when(server.stopping, hub), may_end=True, silence_seconds=UNTIL_THE_END
    )
    return server


def _write(duties: Duties, batcher: Batcher[Any, Any], creator: LedgerCreator, opener: LedgerOpener) -> None:
    """Starts the duties that write batches."""
    duties.start("commit", batcher.run, silence_seconds=WRITE_SILENCE_SECONDS)
    duties.start("create", creator.run, silence_seconds=WRITE_SILENCE_SECONDS)
    duties.start("open", opener.run, silence_seconds=WRITE_SILENCE_SECONDS)


def _reads(duties: Duties, pool: Pool, settings: CheckpointSettings) -> LedgerReads:
    """Starts the duty that follows the standby, if there is one. Returns where reads run."""
    if not settings.standby.dsn.reveal():
        return LedgerReads(pool)
    standby = Standby(settings.standby, pool, settings.in_session)
    duties.start("standby", standby.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    return LedgerReads(pool, standby)


def _look(duties: Duties, pool: Pool) -> QueueDepths:
    """Starts the duties that read how much waits, for metrics. Returns the depths of queues, which callers read too."""
    depths = QueueDepths(pool)
    duties.start("queue depths", depths.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("backlog", Backlog(pool).run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("near quotas", NearQuotas(pool).run, silence_seconds=SWEEP_SILENCE_SECONDS)
    return depths


def _serve_tenants(server: RpcServer, pool: Pool) -> None:
    """Adds the services of tenants, of their agents and keys, and of the audit log."""
    server.add("tenure.v1.TenantService", TenantServicer(pool))
    server.add("tenure.v1.ApiKeyService", ApiKeyServicer(pool))
    server.add("tenure.v1.AgentService", AgentServicer(pool))
    server.add("tenure.v1.AuditService", AuditServicer(pool))


def _notify(duties: Duties, replicas: ReplicaNotifications) -> None:
    """Starts the notifications between replicas."""
    duties.start("notify", replicas.run_notify, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("listen", replicas.run_listen, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("poll", replicas.run_poll, silence_seconds=POLL_SILENCE_SECONDS)


def _sweep(duties: Duties, sweeper: Sweeper, lines: LineSweeper) -> None:
    """Starts the sweeps."""
    for name in SWEEPS:
        duties.start(name, partial(sweeper.run, name), silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("starts", sweeper.run_starts, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("lines", lines.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("old signals", sweeper.run_forgetting, silence_seconds=SWEEP_SILENCE_SECONDS)


def _create_due(
    duties: Duties, pool: Pool, replicas: ReplicaNotifications, due: DueWork, defaults: TaskDefaults
) -> None:
    """Starts the duties that create tasks by themselves: the runs of schedules, and undos of failed tasks."""
    schedules = ScheduleSweeper(pool, replicas.announce, due, defaults)
    duties.start("schedules", schedules.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    undos = UndoSweeper(pool, replicas.announce, due, defaults)
    duties.start("undos", undos.run, silence_seconds=SWEEP_SILENCE_SECONDS)


def _retain(duties: Duties, pool: Pool, settings: CheckpointSettings) -> None:
    """Starts the duties that delete data after its retention period."""
    changes, kept_seconds = ChangePruner(pool, settings.change_retention_seconds), settings.task_retention_seconds
    duties.start("prune changes", changes.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    if kept_seconds:
        duties.start("prune tasks", TaskPruner(pool, kept_seconds).run, silence_seconds=SWEEP_SILENCE_SECONDS)
    cleaner = PrunedRowCleaner(pool, kept_seconds)
    duties.start("clear pruned tasks", cleaner.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("retention lag", cleaner.run_lag, silence_seconds=SWEEP_SILENCE_SECONDS)


def _send(
    duties: Duties, pool: Pool, settings: CheckpointSettings, due: DueWork, open_notifier: OpenNotifier
) -> WebhookPolicy:
    """Starts the duties that send the ledger's news elsewhere: to webhooks, and to a collector of traces.

    Returns what the installation allows of webhooks.
    """
    policy = WebhookPolicy(
        Networks(settings.webhook.allowed_networks),
        settings.smtp,
        settings.webhook.max_per_tenant,
        settings.webhook.max_pending,
        SecretBox(settings.encryption_keys_file),
        open_notifier,
        settings.webhook.allow_insecure,
        has_links=bool(settings.answer_link.public_url),
    )
    links = LinkIssuer(pool, settings.answer_link)
    webhooks = WebhookDispatcher(pool, policy, settings.webhook, due, settings.change_retention_seconds, links)
    duties.start("webhooks", webhooks.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    duties.start("old links", OldLinks(pool).run, silence_seconds=SWEEP_SILENCE_SECONDS)
    if settings.traces.endpoint:
        # Imported here because the import takes half a second, which only a process that exports should pay.
        from services.checkpoint.traces.exporting import TraceExporter

        exporter = TraceExporter(pool, settings.traces, instance_id())
        duties.start("traces", exporter.run, silence_seconds=SWEEP_SILENCE_SECONDS)
    return policy


async def _close_when(stopping: asyncio.Event, hub: Hub) -> None:
    """Closes the hub when the server stops, so that waiting streams do not delay the end."""
    await stopping.wait()
    hub.close()


async def print_operator_key(process: Process, settings: CheckpointSettings) -> None:
    """Creates an API key of an operator and prints it: the first key of an installation."""
    pool = await process.open(open_pool(settings.postgres_dsn, service=NAME, schema=SCHEMA))
    sys.stdout.write(f"{await create_operator_key(pool)}\n")


async def seal_secrets_again(process: Process, settings: CheckpointSettings) -> None:
    """Encrypts all secrets of webhooks with the current key, and prints how many had another key or none."""
    pool = await process.open(open_pool(settings.postgres_dsn, service=NAME, schema=SCHEMA))
    done = await seal_again(pool, SecretBox(settings.encryption_keys_file))
    sys.stdout.write(f"{done.sealed} webhooks encrypted again\n")
    for webhook_id in done.unreadable:
        sys.stderr.write(f"{webhook_id}: its secret cannot be read; give it a new one: tenure webhooks rotate\n")


async def raise_after_restore(process: Process, settings: CheckpointSettings) -> None:
    """Raises the generation above all that may have been in use since the moment of a restored ledger."""
    pool = await process.open(open_pool(settings.postgres_dsn, service=NAME, schema=SCHEMA))
    generation, _ = await get_epochs(pool)
    raised = await raise_generation(pool, generation + GENERATIONS_SKIPPED - 1, "the ledger was restored")
    sys.stdout.write(f"generation {raised}, before {generation}\n")


async def print_findings(comparison: Comparison[Any, Any, Any], process: Process, settings: CheckpointSettings) -> None:
    """Compares the ledger with the records on standard input, and prints a line of JSON for each finding.

    Raises ConfigurationError for an input that is not of the comparison's command.
    """
    pool = await process.open(open_pool(settings.postgres_dsn, service=NAME, schema=SCHEMA))
    counts: Counter[str] = Counter()
    try:
        async for finding in compare(comparison, pool, sys.stdin):
            counts[finding.finding] += 1
            sys.stdout.write(f"{json.dumps(asdict(finding))}\n")
    except ValueError as error:
        raise ConfigurationError([str(error)]) from error
    for kind in comparison.kinds:
        sys.stderr.write(f"{kind:<18} {counts[kind]}\n")


async def migrate_only(_process: Process, settings: CheckpointSettings) -> None:
    """Migrates the database, and gives the service's role its rights."""
    await migrate(settings.postgres_dsn, MIGRATIONS)
    if settings.service_role:
        await Rights.of("services.checkpoint").give(settings.postgres_dsn, settings.service_role)


def main(open_notifier: OpenNotifier) -> int:
    """Runs the service and returns the exit code."""
    commands: dict[str, Callable[[Process, CheckpointSettings], Awaitable[None]]] = {
        "migrate": migrate_only,
        "operator-key": print_operator_key,
        "reencrypt": seal_secrets_again,
        "raise-generation": raise_after_restore,
        "compare-records": partial(print_findings, TOOL_CALLS),
        "compare-model-calls": partial(print_findings, MODEL_CALLS),
    }
    composing = partial(compose, open_notifier=open_notifier)
    return run_service(NAME, CheckpointSettings, os.environ, composing, arguments=sys.argv[1:], commands=commands)
