"""The answers that are not public dataclasses of tenure/sdk. All of it is public JSON (docs/json.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tenure.domain.prompts import MessagePart
from tenure.sdk import operations_info as info
from tenure.sdk.agent_info import AgentInfo
from tenure.sdk.events import Event
from tenure.sdk.json_shape import PublicValue, public_class
from tenure.sdk.task_info import TaskFile, TaskInfo


@dataclass(frozen=True, slots=True)
class EntryPage(PublicValue):
    """A page of entries. `more`: there are more after the last of these."""

    entries: tuple[Event, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Explanation(PublicValue):
    """Why a task is in its state, for people. `obstacle`: why no attached worker may take the queued task; empty: one
    may, or the task is not queued, or the workers are unknown.
    """

    lines: tuple[str, ...]
    task: TaskInfo
    obstacle: str


@dataclass(frozen=True, slots=True)
class PromptMessage(PublicValue):
    """A message that the model read. `role`: user or assistant."""

    role: str
    parts: tuple[MessagePart, ...]


@dataclass(frozen=True, slots=True)
class StepPrompt(PublicValue):
    """What the model read at a step. `tools`: the names of the tools that it was shown."""

    step: int
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[PromptMessage, ...]


@dataclass(frozen=True, slots=True)
class Stops(PublicValue):
    """The stops in force, the oldest first."""

    stops: tuple[info.StopInfo, ...]


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


def _page(name: str, what: str, items: str, kind: Any, **others: Any) -> Any:
    """Returns the dataclass of a page of items of this kind."""
    fields: dict[str, Any] = {items: tuple[kind, ...], "next_page_token": str, **others}
    return public_class(name, f"A page of {what}.", **fields)


SchedulePage: Final[Any] = _page("SchedulePage", "schedules", "schedules", info.ScheduleInfo)
WebhookPage: Final[Any] = _page("WebhookPage", "webhooks", "webhooks", info.WebhookInfo)
DeliveryPage: Final[Any] = _page("DeliveryPage", "deliveries", "deliveries", info.DeliveryInfo)
WorkerPage: Final[Any] = _page("WorkerPage", "workers with a session", "workers", info.WorkerInfo)
LeasePage: Final[Any] = _page("LeasePage", "leases. `revision`: of the list", "leases", info.LeaseInfo, revision=int)
InDoubtPage: Final[Any] = _page("InDoubtPage", "calls in doubt, the longest wait first", "calls", info.InDoubtCallInfo)
EffectPage: Final[Any] = _page(
    "EffectPage", "calls with an effect key, the first accepted first", "effects", info.EffectCallInfo
)
TenantPage: Final[Any] = _page("TenantPage", "tenants", "tenants", info.TenantInfo)
UsagePage: Final[Any] = _page("UsagePage", "sums of bills", "sums", info.UsageInfo)
AuditPage: Final[Any] = _page("AuditPage", "audit records", "records", info.AuditRecordInfo)
AgentPage: Final[Any] = _page("AgentPage", "agents", "agents", AgentInfo)
ApiKeyPage: Final[Any] = _page("ApiKeyPage", "API keys, without their secrets", "api_keys", info.ApiKeyInfo)
AgingPage: Final[Any] = _page(
    "AgingPage",
    "tasks that have not ended. `leases_unknown`: no coordinator answered about their leases",
    *("tasks", info.AgingTaskInfo),
    leases_unknown=bool,
)
Workers: Final[Any] = public_class("Workers", "Workers with a session.", workers=tuple[info.WorkerInfo, ...])
ClaimList: Final[Any] = public_class("ClaimList", "Live claims.", claims=tuple[info.ClaimInfo, ...])
Queues: Final[Any] = public_class("Queues", "Queued tasks by queue and priority.", queues=tuple[info.QueueInfo, ...])
ToolList: Final[Any] = public_class(
    "ToolList", "The tools that the tenant's tasks may call.", tools=tuple[info.ToolInfo, ...]
)
PlanList: Final[Any] = public_class(
    "PlanList", "The plans of a task's tree, those that end last first.", plans=tuple[info.PlanInfo, ...]
)
RefusedWrites: Final[Any] = public_class(
    "RefusedWrites",
    "Refused writes of stale workers, the newest first.",
    refusals=tuple[info.RefusedWriteInfo, ...],
)
ActPage: Final[Any] = public_class(
    "ActPage",
    "The outcomes of a page of an act on many tasks; of a dry run, the groups of the tasks that match.\n\n"
    "`more`: there are more tasks than the 100,000 that were counted.",
    operation_id=str,
    outcomes=tuple[info.ActOutcomeInfo, ...],
    next_page_token=str,
    groups=tuple[info.TaskGroupInfo, ...],
    more=bool,
)
ApproverGroups: Final[Any] = public_class(
    "ApproverGroups", "Groups of approvers.", groups=tuple[info.ApproverGroupInfo, ...]
)
AcceptedTools: Final[Any] = public_class(
    "AcceptedTools", "The tools of the source that are offered now.", source=str, accepted=tuple[str, ...]
)
Transferred: Final[Any] = public_class(
    "Transferred", "The task. `taken`: a claim was taken from its worker.", task=TaskInfo, taken=bool
)
Pruned: Final[Any] = public_class(
    "Pruned", "The deleted tasks. `more`: repeat the request.", task_ids=tuple[str, ...], more=bool
)
Discarded: Final[Any] = public_class(
    "Discarded",
    "The numbers of discarded deliveries and of dead ones that remain: repeat the request for these.",
    discarded=int,
    remaining=int,
)
Deleted: Final[Any] = public_class("Deleted", "The answer to a deletion.", deleted=bool)
Replayed: Final[Any] = public_class(
    "Replayed",
    "The numbers of deliveries that are sent again and of dead ones that remain: repeat the request for these.",
    replayed=int,
    remaining=int,
)


@dataclass(frozen=True, slots=True)
class KnownCaller(PublicValue):
    """The caller. `authenticated` false: this gateway knows no callers. `any_tenant`: it may name every tenant.

    `stack_folder`: of the development stack that the gateway is a part of, else "".
    """

    tenant: str
    subject: str
    permissions: tuple[str, ...]
    authenticated: bool
    any_tenant: bool
    installation: str
    stack_folder: str


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
