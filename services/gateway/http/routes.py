"""The table of the routes: the application and /openapi.json are made of it, and of the routes of edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from starlette.convertors import PathConvertor, register_url_convertor

from services.gateway.http import answers, operations, streams, tasks
from services.gateway.http import requests as req
from services.gateway.http.field_names import name_of
from services.gateway.http.translation import Handler, translating
from tenure.sdk import events
from tenure.sdk import operations_info as info
from tenure.sdk.events import Event, HeartbeatEvent, TaskChangeEvent
from tenure.sdk.task_info import TaskInfo, TaskPage
from tenure.sdk.traces import Trace


class _AnyPath(PathConvertor):
    """The rest of a path: a file's name may have line breaks."""

    regex = "(?s:.*)"


register_url_convertor("path", _AnyPath())


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


def _route(method: str, path: str, handler: Handler | str, answer: Any, summary: str, **fields: Any) -> ApiRoute:
    """Returns a route. `handler`: a method that does it all, as a text; `with_`: what its request differs in."""
    differing = fields.pop("with_", {})
    if isinstance(handler, str):
        sent = fields.get("body") or fields.get("query", req.NoQuery)
        fields.setdefault("group", _GROUPS[handler.partition(".")[0]])
        handler = translating(handler, path, sent, answer, **differing)
    name = fields.pop("name", handler.__name__)
    return ApiRoute(method=method, path=path, name=name, summary=summary, handler=handler, answer=answer, **fields)


_GROUPS: Final = {
    "TaskService": "tasks",
    "ScheduleService": "schedules",
    "WebhookService": "webhooks",
    "AdminService": "operations",
    "LeaseService": "operations",
    "TenantService": "tenants",
    "AuditService": "tenants",
}
_TASK: Final = "/v1/tasks/{task_id}"
_SCHEDULE: Final = "/v1/schedules/{schedule}"
_WEBHOOK: Final = "/v1/webhooks/{webhook}"
_TENANTS: Final[dict[str, Any]] = {"group": "tenants"}

TASK_EVENTS: Final = tuple(
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
)

ROUTES: Final = (
    _route("POST", "/v1/tasks", tasks.submit, TaskInfo, "Submit a task", body=req.SubmitBody, status=201),
    _route("GET", "/v1/tasks", tasks.list_tasks, TaskPage, "List tasks, the newest first", query=req.TasksQuery),
    _route(
        *("POST", "/v1/tasks/act", operations.act, answers.ActPage),
        "Cancel or requeue many tasks, let them wait, or continue them",
        body=req.ActBody,
        name="act_on_tasks",
    ),
    _route("GET", _TASK, "TaskService.GetTask", TaskInfo, "Read a task"),
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
    _route("GET", f"{_TASK}/explain", "TaskService.ExplainTask", answers.Explanation, "Why the task is in its state"),
    _route(
        "GET", f"{_TASK}/tree", tasks.tree, TaskPage, "List the tree of sub-agents", query=req.Page, name="task_tree"
    ),
    _route(
        *("GET", f"{_TASK}/trace", tasks.trace, Trace),
        "The spans of a task and its sub-agents, with the rows of their waterfall",
        name="task_trace",
    ),
    _route(
        *("GET", f"{_TASK}/prompt", tasks.prompt, answers.StepPrompt),
        "What the model read at a step",
        query=req.PromptQuery,
        name="step_prompt",
    ),
    _route(
        *("GET", f"{_TASK}/wait", tasks.wait, answers.Waited),
        "Wait until the task has ended, or the time is over",
        query=req.WaitQuery,
        name="wait_for_task",
    ),
    _route("POST", f"{_TASK}/cancel", "TaskService.CancelTask", TaskInfo, "Cancel a task", body=req.CancelBody),
    _route(
        *("POST", f"{_TASK}/messages", "TaskService.SendMessage", TaskInfo),
        "Send a message to the agent",
        body=req.MessageBody,
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
        *("POST", "/v1/schedules", "ScheduleService.CreateSchedule", info.ScheduleInfo),
        "Create a schedule",
        body=req.ScheduleBody,
        with_=operations.AS_SCHEDULE,
        status=201,
    ),
    _route(
        *("GET", "/v1/schedules", "ScheduleService.ListSchedules", answers.SchedulePage),
        "List schedules",
        query=req.Page,
    ),
    _route(
        *("GET", _SCHEDULE, "ScheduleService.GetSchedule", info.ScheduleWithRuns),
        "Read a schedule with its newest runs",
        query=req.ScheduleQuery,
        with_={"rename": {"runs": "run_count"}},
    ),
    _route(
        *("PATCH", _SCHEDULE, "ScheduleService.UpdateSchedule", info.ScheduleInfo),
        "Change a schedule",
        body=req.ScheduleChangeBody,
        with_=operations.AS_SCHEDULE,
    ),
    _route("DELETE", _SCHEDULE, "ScheduleService.DeleteSchedule", answers.Deleted, "Delete a schedule"),
    _route(
        *("POST", f"{_SCHEDULE}/pause", "ScheduleService.PauseSchedule", info.ScheduleInfo),
        "Pause a schedule",
        body=req.ReasonBody,
    ),
    _route("POST", f"{_SCHEDULE}/resume", "ScheduleService.ResumeSchedule", info.ScheduleInfo, "Resume a schedule"),
    _route(
        *("POST", f"{_SCHEDULE}/trigger", "ScheduleService.TriggerSchedule", TaskInfo),
        "Submit the task of a schedule at once",
        body=req.TriggerBody,
    ),
    _route("GET", "/v1/webhooks", "WebhookService.ListWebhooks", answers.WebhookPage, "List webhooks", query=req.Page),
    _route(
        *("POST", "/v1/webhooks", "WebhookService.CreateWebhook", info.WebhookSecret),
        "Create a webhook; the answer has its secret, this once",
        body=req.WebhookBody,
        with_=operations.AS_WEBHOOK,
        status=201,
    ),
    _route("GET", _WEBHOOK, "WebhookService.GetWebhook", info.WebhookInfo, "Read a webhook"),
    _route("DELETE", _WEBHOOK, "WebhookService.DeleteWebhook", answers.Deleted, "Delete a webhook"),
    _route(
        *("POST", f"{_WEBHOOK}/pause", "WebhookService.PauseWebhook", info.WebhookInfo),
        "Pause a webhook",
        body=req.ReasonBody,
    ),
    _route("POST", f"{_WEBHOOK}/resume", "WebhookService.ResumeWebhook", info.WebhookInfo, "Resume a webhook"),
    _route(
        *("GET", f"{_WEBHOOK}/deliveries", "WebhookService.ListWebhookDeliveries", answers.DeliveryPage),
        "List the deliveries of a webhook",
        query=req.DeliveriesQuery,
        with_={"rename": {"state": "states"}},
        name="list_deliveries",
    ),
    _route(
        *("POST", f"{_WEBHOOK}/replay", "WebhookService.ReplayWebhookDeliveries", answers.Replayed),
        "Send dead deliveries again",
        body=req.ReplayBody,
        name="replay_deliveries",
    ),
    _route(*("GET", "/v1/workers", "AdminService.ListWorkers", answers.WorkerPage), "List workers", query=req.Page),
    _route(
        *("POST", "/v1/workers/{worker_id}/drain", "AdminService.DrainWorker", answers.Workers),
        "Drain a worker: it releases its tasks and takes no more",
        body=req.ReasonBody,
    ),
    _route(
        *("GET", "/v1/claims", "AdminService.ListClaims", answers.ClaimList), "List live claims", query=req.ClaimsQuery
    ),
    _route("GET", "/v1/queues", "AdminService.ListQueues", answers.Queues, "List queues"),
    _route(
        *("GET", "/v1/leases", "LeaseService.ListLeases", answers.LeasePage), "List named leases", query=req.LeasesQuery
    ),
    _route(
        *("GET", "/v1/calls-in-doubt", "AdminService.ListInDoubtCalls", answers.InDoubtPage),
        "List calls in doubt",
        query=req.InDoubtQuery,
        name="list_calls_in_doubt",
    ),
    _route(
        "GET", "/v1/tools", "AdminService.ListTools", answers.ToolList, "List tools", with_={"leaves_out": "instance"}
    ),
    _route("GET", "/v1/tenants", "TenantService.ListTenants", answers.TenantPage, "List tenants", query=req.Page),
    _route(
        "GET",
        "/v1/tenants/{name}",
        "TenantService.GetTenant",
        info.TenantInfo,
        "Read a tenant with its quotas",
        with_={"rename": {"name": "tenant"}},
    ),
    _route(
        *("GET", "/v1/tenants/{name}/usage", operations.usage, answers.UsagePage),
        "Sum up the bills of model calls",
        query=req.UsageQuery,
        name="get_usage",
        **_TENANTS,
    ),
    _route(
        *("GET", "/v1/audit", "AuditService.ListAuditRecords", answers.AuditPage),
        "List audit records, the newest first",
        query=req.AuditQuery,
        with_={"rename": {"of_tenant": "tenant"}},
    ),
    _route("GET", "/v1/me", operations.caller, answers.KnownCaller, "Who the caller is", name="get_caller", **_TENANTS),
)
