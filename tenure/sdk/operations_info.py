"""Frozen dataclasses without protobuf of everything but tasks: leases, schedules, webhooks, tenants, keys, workers,
tools and the audit log.

Times are in UTC. Money is in US dollars, as exact decimals. Durations end in their unit. Enums are their names: also
those that only a newer gateway knows, as their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from tenure.domain.budget import TokenUsage
from tenure.domain.task import Priority, TaskPolicy
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.task_info import FunctionCall, ModelParametersInfo, TaskLimits

# Leases.


@dataclass(frozen=True, slots=True)
class LeaseInfo(PublicValue):
    """A named lease. `token`: its fencing token, base64; empty for all but its holder. `reason` and `message`: how the
    previous lease ended; `previous_epoch` 0: there was none.
    """

    resource: str
    holder: str
    epoch: int
    claim_id: str
    token: str
    previous_epoch: int
    reason: str
    message: str
    ttl_seconds: float
    remaining_seconds: float
    acquired_at: datetime | None


@dataclass(frozen=True, slots=True)
class LeaseEventInfo(PublicValue):
    """`kind`: HELD or ENDED. `revision`: continue after it with `tenure leases watch --after`."""

    kind: str
    revision: int
    lease: LeaseInfo


@dataclass(frozen=True, slots=True)
class SigningKeyInfo(PublicValue):
    """A public key that verifies fencing tokens. `public_key`: base64."""

    key_id: str
    public_key: str
    active: bool


# Schedules.


@dataclass(frozen=True, slots=True)
class TaskTemplate(PublicValue):
    """The task that a schedule submits: the fields of a task with the same names.

    `agent_revision`: the revision of `function` that each run has; None: the one that a submit gets at that time.
    """

    goal: str
    model: str
    system: str
    tools: tuple[str, ...] | None
    approve_tools: tuple[str, ...]
    max_output_tokens: int
    parameters: ModelParametersInfo | None
    loop: str
    function: FunctionCall | None
    result_schema: Any
    limits: TaskLimits
    policy: TaskPolicy
    priority: Priority
    queue: str
    labels: Mapping[str, str]
    agent_revision: int | None


@dataclass(frozen=True, slots=True)
class ScheduleInfo(PublicValue):
    """A schedule. `overlap_policy`: SKIP, QUEUE or CANCEL_PREVIOUS. `start_at`, `end_at`: no due time is outside."""

    schedule_id: str
    name: str
    task: TaskTemplate
    cron: str
    time_zone: str
    overlap_policy: str
    catch_up_seconds: float
    start_at: datetime | None
    end_at: datetime | None
    paused: bool
    pause_reason: str
    paused_by: str
    next_due_at: datetime | None
    started_runs: int
    waiting_runs: int
    skipped_runs: int
    failed_runs: int
    problem: str
    created_at: datetime | None
    updated_at: datetime | None
    revision: int


@dataclass(frozen=True, slots=True)
class ScheduleRunInfo(PublicValue):
    """The result of a due time. `outcome`: STARTED, WAITING, SKIPPED or FAILED. `due_times`: how many it stands for."""

    source_run_id: str
    due_at: datetime | None
    due_times: int
    outcome: str
    reason: str
    message: str
    task_id: str
    task_state: str
    recorded_at: datetime | None


@dataclass(frozen=True, slots=True)
class ScheduleWithRuns(PublicValue):
    """A schedule with its newest runs."""

    schedule: ScheduleInfo
    runs: tuple[ScheduleRunInfo, ...]


# Webhooks.


@dataclass(frozen=True, slots=True)
class WebhookFilter(PublicValue):
    """The tasks whose changes a webhook sends; an empty field matches all."""

    states: tuple[str, ...]
    labels: Mapping[str, str]
    queue: str


@dataclass(frozen=True, slots=True)
class WebhookGapInfo(PublicValue):
    """A span of changes that the webhook may have missed, and why."""

    reason: str
    from_at: datetime | None
    to_at: datetime | None


@dataclass(frozen=True, slots=True)
class WebhookInfo(PublicValue):
    """A webhook. `kind`: STANDARD, SLACK or EMAIL. `held_deliveries`: of the pending ones, those that wait for the
    tenant's quota. `answer_links`: its messages have links that answer waits.
    """

    webhook_id: str
    name: str
    kind: str
    url: str
    email_addresses: tuple[str, ...]
    event_types: tuple[str, ...]
    filter: WebhookFilter
    paused: bool
    pause_code: str
    pause_reason: str
    paused_by: str
    pending_deliveries: int
    held_deliveries: int
    dead_deliveries: int
    delivered: int
    last_delivered_at: datetime | None
    last_failed_at: datetime | None
    problem: str
    old_secret_until_at: datetime | None
    gaps: tuple[WebhookGapInfo, ...]
    created_at: datetime | None
    updated_at: datetime | None
    answer_links: bool


@dataclass(frozen=True, slots=True)
class WebhookSecret(PublicValue):
    """A webhook with its new secret, which is shown this once; empty for Slack and e-mail."""

    webhook: WebhookInfo
    secret: str


@dataclass(frozen=True, slots=True)
class DeliveryInfo(PublicValue):
    """A delivery. `state`: PENDING, DELIVERED or DEAD. `hold_reason`: why it waits although no attempt failed."""

    delivery_id: str
    event_type: str
    task_id: str
    sequence: int
    state: str
    attempts: int
    hold_reason: str
    last_status_code: int
    last_error: str
    accepted_addresses: tuple[str, ...]
    created_at: datetime | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    ended_at: datetime | None


# Tenants and keys.


@dataclass(frozen=True, slots=True)
class QuotaInfo(PublicValue):
    """A quota and its use. `limit` and `used`: a number of tasks, submits, tokens or e-mails; None for a quota of
    money, which has `limit_usd` and `used_usd`. No limit at all: both limits are None.
    """

    kind: str
    policy: str
    limit: int | None
    used: int | None
    limit_usd: Decimal | None
    used_usd: Decimal | None
    is_default: bool
    soft_reached: bool
    hard_reached: bool
    free_in_seconds: float | None
    warned_at: datetime | None


@dataclass(frozen=True, slots=True)
class TenantInfo(PublicValue):
    """A tenant with its quotas. `changed_by` and `reason`: of the newest change of its quotas."""

    tenant: str
    quotas: tuple[QuotaInfo, ...]
    revision: int
    changed_by: str
    reason: str
    created_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class UsageInfo(PublicValue):
    """A sum of bills. `key`: the tenant, root task, model or day. `tenant`: as given; empty: the caller's."""

    tenant: str
    key: str
    calls: int
    lost_calls: int
    usage: TokenUsage
    cost_usd: Decimal
    simulated_calls: int
    simulated_cost_usd: Decimal
    unpriced_calls: int


@dataclass(frozen=True, slots=True)
class ApiKeyInfo(PublicValue):
    """An API key, without its secret. `tenant` empty: any."""

    key_id: str
    name: str
    tenant: str
    permissions: tuple[str, ...]
    created_by: str
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApproverGroupInfo(PublicValue):
    """A group of people and programs who may answer waits."""

    name: str
    members: tuple[str, ...]
    updated_at: datetime | None
    updated_by: str


@dataclass(frozen=True, slots=True)
class NewApiKey(PublicValue):
    """A new API key with its secret, which is shown this once; empty if it was written to a file."""

    api_key: ApiKeyInfo
    secret: str


@dataclass(frozen=True, slots=True)
class AuditRecordInfo(PublicValue):
    """A record of the audit log. `decision`: ALLOWED or DENIED. `hash`: of the chain up to it, hexadecimal."""

    number: int
    record_id: str
    recorded_at: datetime | None
    tenant: str
    subject: str
    peer: str
    method: str
    target: str
    decision: str
    reason: str
    count: int
    hash: str
    recorder: str


# Workers.


@dataclass(frozen=True, slots=True)
class WorkerInfo(PublicValue):
    """A worker with a session. `tenants` empty: all."""

    worker_id: str
    pool: str
    queues: tuple[str, ...]
    priorities: tuple[str, ...]
    loops: tuple[str, ...]
    tenants: tuple[str, ...]
    held_tasks: int
    draining: bool
    started_at: datetime | None
    coordinator: str
    live_address: str
    build: str


@dataclass(frozen=True, slots=True)
class RenewalsInfo(PublicValue):
    """The renewals of a claim that are known. `model_call_waits`: at the model runner, and nothing was sent."""

    count: int
    first_at: datetime | None
    last_at: datetime | None
    model_call_waits: bool


@dataclass(frozen=True, slots=True)
class ClaimInfo(PublicValue):
    """A live claim. `remaining_seconds`: until its lease ends without a renewal."""

    task_id: str
    claim_id: str
    epoch: int
    worker: str
    reason: str
    previous_epoch: int
    remaining_seconds: float
    renewals: RenewalsInfo | None


@dataclass(frozen=True, slots=True)
class QueueInfo(PublicValue):
    """The waiting tasks of a queue and priority. `held_back`: of them, those whose tenant is at its quota."""

    queue: str
    priority: str
    queued: int
    held_back: int
    oldest_queued_at: datetime | None


@dataclass(frozen=True, slots=True)
class RefusedWriteInfo(PublicValue):
    """A refused write of a stale worker. `fence`: ledger or tools, which refused it."""

    fence: str
    task_id: str
    method: str
    worker: str
    presented_epoch: int
    current_epoch: int
    refused_at: datetime | None


@dataclass(frozen=True, slots=True)
class AgingTaskInfo(PublicValue):
    """A task that has not ended. `remaining_seconds`: of its lease; None: without a worker, or unknown."""

    task_id: str
    state: str
    reason: str
    queue: str
    loop: str
    worker: str
    attempt: int
    step: int
    epoch: int
    cancel_requested: bool
    created_at: datetime | None
    updated_at: datetime | None
    deadline_at: datetime | None
    next_retry_at: datetime | None
    remaining_seconds: float | None


# Tools.


@dataclass(frozen=True, slots=True)
class ToolInfo(PublicValue):
    """A tool as agents get it. `effect_class`: PURE, IDEMPOTENT, KEYED or UNSAFE."""

    name: str
    source: str
    effect_class: str
    timeout_seconds: float
    output_limit_bytes: int
    description: str
    input_schema: Any


@dataclass(frozen=True, slots=True)
class HeldToolInfo(PublicValue):
    """A tool that is held until an operator accepts it. `accepted_sha256` empty: it is new."""

    name: str
    sha256: str
    accepted_sha256: str
    difference: str


@dataclass(frozen=True, slots=True)
class ToolSourceInfo(PublicValue):
    """A tool source. `linked`: whether its server is connected; meaningless for kinds without a connection."""

    name: str
    kind: str
    linked: bool
    changed_at: datetime | None
    tool_count: int
    problems: tuple[str, ...]
    problem_count: int
    last_error: str
    last_error_at: datetime | None
    held: tuple[HeldToolInfo, ...]
    held_count: int


@dataclass(frozen=True, slots=True)
class ToolSources(PublicValue):
    """The tool sources as one replica of the tool service sees them."""

    seen_by: str
    sources: tuple[ToolSourceInfo, ...]


@dataclass(frozen=True, slots=True)
class TaskGroupInfo(PublicValue):
    """Tasks in the same state, for the same reason. `task_ids`: the newest of them, at most 3."""

    state: str
    reason: str
    count: int
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActOutcomeInfo(PublicValue):
    """What became of one of many tasks. `result`: DONE, ALREADY or REFUSED, for a `reason` with a `message`.

    `state`: after the act. A cancel, and a wait of a running task, are recorded and carried out soon.
    """

    task_id: str
    result: str
    state: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InDoubtCallInfo(PublicValue):
    """A call in doubt. `resolvable`: its task waits for a resolution. `runner_gone`: proven; else it may still act."""

    task_id: str
    call_id: str
    call_attempt: int
    tool: str
    effect_class: str
    arguments: Any
    arguments_truncated: bool
    started_at: datetime | None
    in_doubt_at: datetime | None
    runner_id: str
    runner_instance: str
    runner_gone: bool
    acts_elsewhere: bool
    note: str
    task_state: str
    task_reason: str
    resolvable: bool
