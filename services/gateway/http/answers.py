"""The answers that are not public dataclasses of tenure/sdk. All of it is public JSON (docs/json.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenure.sdk import operations_info as info
from tenure.sdk.events import Event
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.task_info import TaskFile, TaskInfo


@dataclass(frozen=True, slots=True)
class EntryPage(PublicValue):
    """A page of entries. `more`: there are more after the last of these."""

    entries: tuple[Event, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Explanation(PublicValue):
    """Why a task is in its state, for people."""

    lines: tuple[str, ...]
    task: TaskInfo


@dataclass(frozen=True, slots=True)
class ActPage(PublicValue):
    """The outcomes of a page of an act on many tasks; of a dry run, the groups of the tasks that match.

    `more`: there are more tasks than the 100,000 that were counted.
    """

    operation_id: str
    outcomes: tuple[info.ActOutcomeInfo, ...]
    next_page_token: str
    groups: tuple[info.TaskGroupInfo, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Waited(PublicValue):
    """A task after a wait. `ended`: it has ended."""

    ended: bool
    task: TaskInfo


@dataclass(frozen=True, slots=True)
class Signalled(PublicValue):
    """`delivered`: to the task `task_id`; otherwise the event is kept for a later wait."""

    delivered: bool
    task_id: str


@dataclass(frozen=True, slots=True)
class FileListPage(PublicValue):
    """A page of files. The usage of the whole workspace is on the first page only."""

    files: tuple[TaskFile, ...]
    next_page_token: str
    used_bytes: int | None
    used_files: int | None
    max_bytes: int | None
    max_files: int | None


@dataclass(frozen=True, slots=True)
class SchedulePage(PublicValue):
    """A page of schedules."""

    schedules: tuple[info.ScheduleInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class WebhookPage(PublicValue):
    """A page of webhooks."""

    webhooks: tuple[info.WebhookInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class DeliveryPage(PublicValue):
    """A page of deliveries."""

    deliveries: tuple[info.DeliveryInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class Deleted(PublicValue):
    """The answer to a deletion."""

    deleted: bool


@dataclass(frozen=True, slots=True)
class Replayed(PublicValue):
    """The numbers of deliveries that are sent again and of dead ones that remain: repeat the request for these."""

    replayed: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Workers(PublicValue):
    """Workers with a session."""

    workers: tuple[info.WorkerInfo, ...]


@dataclass(frozen=True, slots=True)
class WorkerPage(PublicValue):
    """A page of workers with a session."""

    workers: tuple[info.WorkerInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ClaimList(PublicValue):
    """Live claims."""

    claims: tuple[info.ClaimInfo, ...]


@dataclass(frozen=True, slots=True)
class Queues(PublicValue):
    """Queued tasks by queue and priority."""

    queues: tuple[info.QueueInfo, ...]


@dataclass(frozen=True, slots=True)
class LeasePage(PublicValue):
    """A page of leases. `revision`: of the list."""

    leases: tuple[info.LeaseInfo, ...]
    next_page_token: str
    revision: int


@dataclass(frozen=True, slots=True)
class RefusedWrites(PublicValue):
    """Refused writes of stale workers, the newest first."""

    refusals: tuple[info.RefusedWriteInfo, ...]


@dataclass(frozen=True, slots=True)
class InDoubtPage(PublicValue):
    """A page of calls in doubt, the longest wait first."""

    calls: tuple[info.InDoubtCallInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ToolList(PublicValue):
    """The tools that the tenant's tasks may call."""

    tools: tuple[info.ToolInfo, ...]


@dataclass(frozen=True, slots=True)
class TenantPage(PublicValue):
    """A page of tenants."""

    tenants: tuple[info.TenantInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class UsagePage(PublicValue):
    """A page of sums of bills."""

    sums: tuple[info.UsageInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class AuditPage(PublicValue):
    """A page of audit records."""

    records: tuple[info.AuditRecordInfo, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class KnownCaller(PublicValue):
    """The caller. `authenticated` false: this gateway knows no callers. `any_tenant`: it may name every tenant."""

    tenant: str
    subject: str
    permissions: tuple[str, ...]
    authenticated: bool
    any_tenant: bool


@dataclass(frozen=True, slots=True)
class HealthStatus(PublicValue):
    """`status`: SERVING, or NOT_SERVING while the gateway drains."""

    status: str


@dataclass(frozen=True, slots=True)
class FieldProblem(PublicValue):
    """A field, and the constraint that it breaks."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Problem(PublicValue):
    """An error (RFC 9457). `code`: UPPER_SNAKE, for programs; `detail`: for people; `metadata`: for both.

    `hint`: what to do, or empty. `violations`: the fields of a wrong request. `retry_after_seconds`: after this time
    the same request may succeed.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    metadata: Any
    hint: str = ""
    violations: tuple[FieldProblem, ...] = ()
    retry_after_seconds: float | None = None
