"""The answers that are not public dataclasses of tenure/sdk. All of it is public JSON (docs/json.md)."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, Final

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


def _answer(name: str, text: str, **fields: Any) -> Any:
    """Returns the public dataclass of the answer of one method, which no handler makes."""
    named = {"__doc__": text, "__module__": __name__}
    return make_dataclass(name, fields.items(), bases=(PublicValue,), namespace=named, frozen=True, slots=True)


def _page(name: str, what: str, items: str, kind: type[PublicValue], **others: Any) -> Any:
    """Returns the dataclass of a page of items of this kind."""
    fields = {items: tuple[kind, ...], "next_page_token": str, **others}  # type: ignore[valid-type]  # at run time
    return _answer(name, f"A page of {what}.", **fields)


SchedulePage: Final = _page("SchedulePage", "schedules", "schedules", info.ScheduleInfo)
WebhookPage: Final = _page("WebhookPage", "webhooks", "webhooks", info.WebhookInfo)
DeliveryPage: Final = _page("DeliveryPage", "deliveries", "deliveries", info.DeliveryInfo)
WorkerPage: Final = _page("WorkerPage", "workers with a session", "workers", info.WorkerInfo)
LeasePage: Final = _page("LeasePage", "leases, with the list's `revision`", "leases", info.LeaseInfo, revision=int)
InDoubtPage: Final = _page("InDoubtPage", "calls in doubt, the longest wait first", "calls", info.InDoubtCallInfo)
TenantPage: Final = _page("TenantPage", "tenants", "tenants", info.TenantInfo)
AuditPage: Final = _page("AuditPage", "audit records", "records", info.AuditRecordInfo)
Workers: Final = _answer("Workers", "Workers with a session.", workers=tuple[info.WorkerInfo, ...])
ClaimList: Final = _answer("ClaimList", "Live claims.", claims=tuple[info.ClaimInfo, ...])
Queues: Final = _answer("Queues", "Queued tasks by queue and priority.", queues=tuple[info.QueueInfo, ...])
ToolList: Final = _answer("ToolList", "The tools that the tenant's tasks may call.", tools=tuple[info.ToolInfo, ...])
Deleted: Final = _answer("Deleted", "The answer to a deletion.", deleted=bool)
Replayed: Final = _answer(
    "Replayed",
    "The numbers of deliveries that are sent again and of dead ones that remain: repeat the request for these.",
    replayed=int,
    remaining=int,
)


@dataclass(frozen=True, slots=True)
class RefusedWrites(PublicValue):
    """Refused writes of stale workers, the newest first."""

    refusals: tuple[info.RefusedWriteInfo, ...]


@dataclass(frozen=True, slots=True)
class UsagePage(PublicValue):
    """A page of sums of bills."""

    sums: tuple[info.UsageInfo, ...]
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
