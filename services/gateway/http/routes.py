"""The table of the routes: the application and /openapi.json are made of it, and of the routes of edges."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from starlette.convertors import PathConvertor, register_url_convertor

from services.gateway.http import answers, operations, streams, tasks
from services.gateway.http import requests as req
from services.gateway.http.field_names import name_of
from tenure.sdk import events
from tenure.sdk import operations_info as info
from tenure.sdk.events import Event, HeartbeatEvent, TaskChangeEvent
from tenure.sdk.task_info import TaskInfo, TaskPage


class _AnyPath(PathConvertor):
    """The rest of a path: a file's name may have line breaks."""

    regex = "(?s:.*)"


register_url_convertor("path", _AnyPath())
Handler = Callable[..., Awaitable[Any]]
"""Gets the call, the query and the body (None without one). Returns a public value, or a whole response."""


@dataclass(frozen=True, slots=True)
class EventsOf:
    """An answer of server-sent events, with the dataclasses of their data."""

    data: tuple[type[Any], ...]


@dataclass(frozen=True, slots=True)
class Bytes:
    """An answer of bytes, of this media type."""

    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """A route. `name`: of the operation. `path`: a part in braces is one text, with `:path` also with slashes.

    `prepare`: makes the body of what another project's client sends. `answer`: a public dataclass, EventsOf or Bytes.
    `body`: the dataclass of the body, None without a body.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answer: Any
    query: type[Any] = req.NoQuery
    body: type[Any] | None = None
    prepare: Callable[[Any], Any] | None = None
    group: str = "tasks"
    status: int = 200

    def name_of(self, field: str) -> str:
        """Returns what a request of this route calls a field of the contract."""
        parts = [*fields(self.query), *(fields(self.body) if self.body else ())]
        path = re.findall(r"{(\w+)", self.path)
        return name_of(field, {*(part.name for part in parts), *path})


def _route(method: str, path: str, handler: Handler, answer: Any, summary: str, **fields: Any) -> ApiRoute:
    name = fields.pop("name", handler.__name__)
    return ApiRoute(method=method, path=path, name=name, summary=summary, handler=handler, answer=answer, **fields)


_TASK: Final = "/v1/tasks/{task_id}"
_SCHEDULE: Final = "/v1/schedules/{schedule}"
_WEBHOOK: Final = "/v1/webhooks/{webhook}"
_SCHEDULES: Final[dict[str, Any]] = {"group": "schedules"}
_WEBHOOKS: Final[dict[str, Any]] = {"group": "webhooks"}
_OPERATIONS: Final[dict[str, Any]] = {"group": "operations"}
_TENANTS: Final[dict[str, Any]] = {"group": "tenants"}

TASK_EVENTS: Final = tuple(
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
)

ROUTES: Final = (
    _route("POST", "/v1/tasks", tasks.submit, TaskInfo, "Submit a task", body=req.SubmitBody, status=201),
    _route("GET", "/v1/tasks", tasks.list_tasks, TaskPage, "List tasks, the newest first", query=req.TasksQuery),
    _route("GET", _TASK, tasks.get, TaskInfo, "Read a task", name="get_task"),
    _route(
        *("GET", f"{_TASK}/entries", tasks.entries, answers.EntryPage),
        "List the entries of a task's ledger, the oldest first",
        query=req.EntriesQuery,
        name="list_entries",
    ),
    _route(
        *("GET", f"{_TASK}/events", streams.task_events, EventsOf(TASK_EVENTS)),
        "Stream the events of a task until it ends",
        query=req.EventsQuery,
    ),
    _route(
        "GET",
        f"{_TASK}/explain",
        tasks.explain,
        answers.Explanation,
        "Why the task is in its state",
        name="explain_task",
    ),
    _route(
        "GET", f"{_TASK}/tree", tasks.tree, TaskPage, "List the tree of sub-agents", query=req.Page, name="task_tree"
    ),
    _route(
        *("GET", f"{_TASK}/wait", tasks.wait, answers.Waited),
        "Wait until the task has ended, or the time is over",
        query=req.WaitQuery,
        name="wait_for_task",
    ),
    _route("POST", f"{_TASK}/cancel", tasks.cancel, TaskInfo, "Cancel a task", body=req.CancelBody, name="cancel_task"),
    _route(
        *("POST", f"{_TASK}/messages", tasks.send, TaskInfo),
        "Send a message to the agent",
        body=req.MessageBody,
        name="send_message",
    ),
    _route(
        *("POST", f"{_TASK}/fork", tasks.fork, TaskInfo),
        "Start a new task from the history of this one",
        body=req.ForkBody,
        name="fork_task",
        status=201,
    ),
    _route(
        *("POST", f"{_TASK}/resume", tasks.resume, TaskInfo),
        "Answer the wait of a task",
        body=req.AnswerBody,
        name="answer_wait",
    ),
    _route(
        "GET",
        f"{_TASK}/files",
        tasks.files,
        answers.FileListPage,
        "List files",
        query=req.FilesQuery,
        name="list_files",
    ),
    _route(
        *("GET", f"{_TASK}/files/{{path:path}}", tasks.read_file, Bytes("application/octet-stream")),
        "Read a file of the task's workspace",
    ),
    _route(
        *("GET", f"{_TASK}/refusals", operations.refusals, answers.RefusedWrites),
        "List refused writes of stale workers",
        name="list_refusals",
    ),
    _route(
        *("POST", f"{_TASK}/calls/{{call_id}}/resolve", operations.resolve, TaskInfo),
        "Resolve a call in doubt",
        body=req.ResolutionBody,
        name="resolve_call",
    ),
    _route(
        *("GET", "/v1/changes", streams.changes, EventsOf((TaskChangeEvent, HeartbeatEvent))),
        "Stream the changes of all tasks",
        query=req.ChangesQuery,
        name="task_changes",
    ),
    _route(
        *("GET", "/v1/waits", tasks.waits, TaskPage),
        "List the tasks that wait, the earliest deadline first",
        query=req.WaitsQuery,
        name="list_waits",
    ),
    _route(
        *("POST", "/v1/signals", tasks.signal, answers.Signalled),
        "Deliver an event to the task that waits for it",
        body=req.SignalBody,
        name="send_signal",
    ),
    _route(
        *("POST", "/v1/schedules", operations.create_schedule, info.ScheduleInfo),
        "Create a schedule",
        body=req.ScheduleBody,
        status=201,
        **_SCHEDULES,
    ),
    _route(
        *("GET", "/v1/schedules", operations.list_schedules, answers.SchedulePage),
        "List schedules",
        query=req.Page,
        **_SCHEDULES,
    ),
    _route(
        *("GET", _SCHEDULE, operations.get_schedule, info.ScheduleWithRuns),
        "Read a schedule with its newest runs",
        query=req.ScheduleQuery,
        **_SCHEDULES,
    ),
    _route(
        *("PATCH", _SCHEDULE, operations.update_schedule, info.ScheduleInfo),
        "Change a schedule",
        body=req.ScheduleChangeBody,
        **_SCHEDULES,
    ),
    _route("DELETE", _SCHEDULE, operations.delete_schedule, answers.Deleted, "Delete a schedule", **_SCHEDULES),
    _route(
        *("POST", f"{_SCHEDULE}/pause", operations.pause_schedule, info.ScheduleInfo),
        "Pause a schedule",
        body=req.ReasonBody,
        **_SCHEDULES,
    ),
    _route(
        "POST", f"{_SCHEDULE}/resume", operations.resume_schedule, info.ScheduleInfo, "Resume a schedule", **_SCHEDULES
    ),
    _route(
        *("POST", f"{_SCHEDULE}/trigger", operations.trigger_schedule, TaskInfo),
        "Submit the task of a schedule at once",
        body=req.TriggerBody,
        **_SCHEDULES,
    ),
    _route(
        "GET",
        "/v1/webhooks",
        operations.list_webhooks,
        answers.WebhookPage,
        "List webhooks",
        query=req.Page,
        **_WEBHOOKS,
    ),
    _route("GET", _WEBHOOK, operations.get_webhook, info.WebhookInfo, "Read a webhook", **_WEBHOOKS),
    _route(
        *("POST", f"{_WEBHOOK}/pause", operations.pause_webhook, info.WebhookInfo),
        "Pause a webhook",
        body=req.ReasonBody,
        **_WEBHOOKS,
    ),
    _route("POST", f"{_WEBHOOK}/resume", operations.resume_webhook, info.WebhookInfo, "Resume a webhook", **_WEBHOOKS),
    _route(
        *("GET", f"{_WEBHOOK}/deliveries", operations.deliveries, answers.DeliveryPage),
        "List the deliveries of a webhook",
        query=req.DeliveriesQuery,
        name="list_deliveries",
        **_WEBHOOKS,
    ),
    _route(
        *("POST", f"{_WEBHOOK}/replay", operations.replay, answers.Replayed),
        "Send dead deliveries again",
        body=req.ReplayBody,
        name="replay_deliveries",
        **_WEBHOOKS,
    ),
    _route(
        *("GET", "/v1/workers", operations.workers, answers.WorkerPage),
        "List workers",
        query=req.Page,
        name="list_workers",
        **_OPERATIONS,
    ),
    _route(
        *("POST", "/v1/workers/{worker_id}/drain", operations.drain, answers.Workers),
        "Drain a worker: it releases its tasks and takes no more",
        body=req.ReasonBody,
        name="drain_worker",
        **_OPERATIONS,
    ),
    _route(
        *("GET", "/v1/claims", operations.claims, answers.ClaimList),
        "List live claims",
        query=req.ClaimsQuery,
        name="list_claims",
        **_OPERATIONS,
    ),
    _route("GET", "/v1/queues", operations.queues, answers.Queues, "List queues", name="list_queues", **_OPERATIONS),
    _route(
        *("GET", "/v1/leases", operations.leases, answers.LeasePage),
        "List named leases",
        query=req.LeasesQuery,
        name="list_leases",
        **_OPERATIONS,
    ),
    _route(
        *("GET", "/v1/calls-in-doubt", operations.in_doubt, answers.InDoubtPage),
        "List calls in doubt",
        query=req.InDoubtQuery,
        name="list_calls_in_doubt",
        **_OPERATIONS,
    ),
    _route("GET", "/v1/tools", operations.tools, answers.ToolList, "List tools", name="list_tools", **_OPERATIONS),
    _route(
        "GET", "/v1/tenants", operations.list_tenants, answers.TenantPage, "List tenants", query=req.Page, **_TENANTS
    ),
    _route(
        "GET", "/v1/tenants/{name}", operations.get_tenant, info.TenantInfo, "Read a tenant with its quotas", **_TENANTS
    ),
    _route(
        *("GET", "/v1/tenants/{name}/usage", operations.usage, answers.UsagePage),
        "Sum up the bills of model calls",
        query=req.UsageQuery,
        name="get_usage",
        **_TENANTS,
    ),
    _route(
        *("GET", "/v1/audit", operations.audit, answers.AuditPage),
        "List audit records, the newest first",
        query=req.AuditQuery,
        name="list_audit_records",
        **_TENANTS,
    ),
    _route("GET", "/v1/me", operations.caller, answers.KnownCaller, "Who the caller is", name="get_caller", **_TENANTS),
)
