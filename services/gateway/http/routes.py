"""The table of the routes: the application and /openapi.json are made of it, and of the routes of edges."""

from __future__ import annotations

from typing import Any, Final

from starlette.convertors import PathConvertor, register_url_convertor

from services.gateway.http import answers, operations, streams, tasks
from services.gateway.http import requests as req
from services.gateway.http.api_route import Bytes, EventsOf, route_of
from services.gateway.http.operator_routes import OPERATOR_ROUTES
from tenure.sdk import events
from tenure.sdk import operations_info as info
from tenure.sdk.events import Event, HeartbeatEvent, TaskChangeEvent
from tenure.sdk.task_info import TaskCounts, TaskInfo, TaskPage
from tenure.sdk.traces import Trace
from tenure.sdk.undo_info import UndoPlan


class _AnyPath(PathConvertor):
    """The rest of a path: a file's name may have line breaks."""

    regex = "(?s:.*)"


register_url_convertor("path", _AnyPath())


_TASK: Final = "/v1/tasks/{task_id}"
_SCHEDULE: Final = "/v1/schedules/{schedule}"
_WEBHOOK: Final = "/v1/webhooks/{webhook}"
_TENANTS: Final[dict[str, Any]] = {"group": "tenants"}

TASK_EVENTS: Final = tuple(
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
)

ROUTES: Final = (
    route_of("POST", "/v1/tasks", tasks.submit, TaskInfo, "Submit a task", body=req.SubmitBody, status=201),
    route_of("GET", "/v1/tasks", tasks.list_tasks, TaskPage, "List tasks, the newest first", query=req.TasksQuery),
    route_of(
        *("GET", "/v1/tasks/count", tasks.count, TaskCounts),
        "Count tasks by state, up to 10,000 of each",
        query=req.TaskFilterQuery,
        name="count_tasks",
    ),
    route_of(
        *("POST", "/v1/tasks/act", operations.act, answers.ActPage),
        "Cancel or requeue many tasks, let them wait, or continue them",
        body=req.ActBody,
        name="act_on_tasks",
    ),
    route_of("GET", _TASK, "TaskService.GetTask", TaskInfo, "Read a task"),
    route_of(
        *("GET", f"{_TASK}/entries", tasks.entries, answers.EntryPage),
        "List the entries of a task's ledger, the oldest first",
        query=req.EntriesQuery,
        name="list_entries",
    ),
    route_of(
        *("GET", f"{_TASK}/events", streams.task_events, EventsOf(TASK_EVENTS)),
        "Stream the events of a task until it ends",
        query=req.EventsQuery,
    ),
    route_of("GET", f"{_TASK}/explain", "TaskService.ExplainTask", answers.Explanation, "Why the task is in its state"),
    route_of(
        "GET", f"{_TASK}/tree", tasks.tree, TaskPage, "List the tree of sub-agents", query=req.Page, name="task_tree"
    ),
    route_of(
        *("GET", f"{_TASK}/trace", tasks.trace, Trace),
        "The spans of a task and its sub-agents, with the rows of their waterfall",
        name="task_trace",
    ),
    route_of(
        *("GET", f"{_TASK}/prompt", tasks.prompt, answers.StepPrompt),
        "What the model read at a step",
        query=req.PromptQuery,
        name="step_prompt",
    ),
    route_of(
        *("GET", f"{_TASK}/wait", tasks.wait, answers.Waited),
        "Wait until the task has ended, or the time is over",
        query=req.WaitQuery,
        name="wait_for_task",
    ),
    route_of("POST", f"{_TASK}/cancel", "TaskService.CancelTask", TaskInfo, "Cancel a task", body=req.CancelBody),
    route_of(
        *("POST", f"{_TASK}/messages", "TaskService.SendMessage", TaskInfo),
        "Send a message to the agent",
        body=req.MessageBody,
    ),
    route_of(
        *("POST", f"{_TASK}/fork", tasks.fork, TaskInfo),
        "Start a new task from the history of this one",
        body=req.ForkBody,
        name="fork_task",
        status=201,
    ),
    route_of(
        *("GET", f"{_TASK}/undo", "TaskService.PlanUndo", UndoPlan),
        "List the effects of a task, and which of them can be undone",
        query=req.UndoQuery,
    ),
    route_of(
        *("POST", f"{_TASK}/undo", "TaskService.UndoTask", TaskInfo),
        "Undo effects of a task; the answer is the task that does it",
        body=req.UndoBody,
        status=201,
    ),
    route_of(
        *("GET", f"{_TASK}/plans", "TaskService.ListCallPlans", answers.PlanList),
        "List the plans of a task's tree, with what each has left",
    ),
    route_of(
        *("POST", f"{_TASK}/plans/end", "TaskService.EndCallPlan", info.PlanInfo),
        "End a plan early",
        body=req.EndPlanBody,
    ),
    route_of(
        *("POST", f"{_TASK}/resume", tasks.resume, TaskInfo),
        "Answer the wait of a task",
        body=req.AnswerBody,
        name="answer_wait",
    ),
    route_of(
        "GET",
        f"{_TASK}/files",
        tasks.files,
        answers.FileListPage,
        "List files",
        query=req.FilesQuery,
        name="list_files",
    ),
    route_of(
        *("GET", f"{_TASK}/files/{{path:path}}", tasks.read_file, Bytes("application/octet-stream")),
        "Read a file of the task's workspace",
        query=req.FileQuery,
    ),
    route_of(
        *("GET", f"{_TASK}/receipts", tasks.receipts, Bytes("application/jsonl")),
        "The signed receipts of a task's effects, as a file of JSON lines",
        query=req.ReceiptsQuery,
    ),
    route_of(
        *("GET", f"{_TASK}/refusals", operations.refusals, answers.RefusedWrites),
        "List refused writes of stale workers",
        name="list_refusals",
    ),
    route_of(
        *("POST", f"{_TASK}/calls/{{call_id}}/resolve", operations.resolve, TaskInfo),
        "Resolve a call in doubt",
        body=req.ResolutionBody,
        name="resolve_call",
    ),
    route_of(
        *("GET", "/v1/changes", streams.changes, EventsOf((TaskChangeEvent, HeartbeatEvent))),
        "Stream the changes of all tasks",
        query=req.ChangesQuery,
        name="task_changes",
    ),
    route_of(
        *("GET", "/v1/waits", tasks.waits, TaskPage),
        "List the tasks that wait, the earliest deadline first",
        query=req.WaitsQuery,
        name="list_waits",
    ),
    route_of(
        *("POST", "/v1/signals", tasks.signal, answers.Signalled),
        "Deliver an event to the task that waits for it",
        body=req.SignalBody,
        name="send_signal",
    ),
    route_of(
        *("POST", "/v1/schedules", "ScheduleService.CreateSchedule", info.ScheduleInfo),
        "Create a schedule",
        body=req.ScheduleBody,
        with_=operations.AS_SCHEDULE,
        status=201,
    ),
    route_of(
        *("GET", "/v1/schedules", "ScheduleService.ListSchedules", answers.SchedulePage),
        "List schedules",
        query=req.Page,
    ),
    route_of(
        *("GET", _SCHEDULE, "ScheduleService.GetSchedule", info.ScheduleWithRuns),
        "Read a schedule with its newest runs",
        query=req.ScheduleQuery,
        with_={"rename": {"runs": "run_count"}},
    ),
    route_of(
        *("PATCH", _SCHEDULE, "ScheduleService.UpdateSchedule", info.ScheduleInfo),
        "Change a schedule",
        body=req.ScheduleChangeBody,
        with_=operations.AS_SCHEDULE,
    ),
    route_of("DELETE", _SCHEDULE, "ScheduleService.DeleteSchedule", answers.Deleted, "Delete a schedule"),
    route_of(
        *("POST", f"{_SCHEDULE}/pause", "ScheduleService.PauseSchedule", info.ScheduleInfo),
        "Pause a schedule",
        body=req.ReasonBody,
    ),
    route_of("POST", f"{_SCHEDULE}/resume", "ScheduleService.ResumeSchedule", info.ScheduleInfo, "Resume a schedule"),
    route_of(
        *("POST", f"{_SCHEDULE}/trigger", "ScheduleService.TriggerSchedule", TaskInfo),
        "Submit the task of a schedule at once",
        body=req.TriggerBody,
    ),
    route_of(
        "GET", "/v1/webhooks", "WebhookService.ListWebhooks", answers.WebhookPage, "List webhooks", query=req.Page
    ),
    route_of(
        *("POST", "/v1/webhooks", "WebhookService.CreateWebhook", info.WebhookSecret),
        "Create a webhook; the answer has its secret, this once",
        body=req.WebhookBody,
        with_=operations.AS_WEBHOOK,
        status=201,
    ),
    route_of("GET", _WEBHOOK, "WebhookService.GetWebhook", info.WebhookInfo, "Read a webhook"),
    route_of(
        *("POST", f"{_WEBHOOK}/pause", "WebhookService.PauseWebhook", info.WebhookInfo),
        "Pause a webhook",
        body=req.ReasonBody,
    ),
    route_of("POST", f"{_WEBHOOK}/resume", "WebhookService.ResumeWebhook", info.WebhookInfo, "Resume a webhook"),
    route_of(
        *("GET", f"{_WEBHOOK}/deliveries", "WebhookService.ListWebhookDeliveries", answers.DeliveryPage),
        "List the deliveries of a webhook",
        query=req.DeliveriesQuery,
        with_={"rename": {"state": "states"}},
        name="list_deliveries",
    ),
    route_of(
        *("POST", f"{_WEBHOOK}/replay", "WebhookService.ReplayWebhookDeliveries", answers.Replayed),
        "Send dead deliveries again",
        body=req.ReplayBody,
        name="replay_deliveries",
    ),
    route_of(*("GET", "/v1/workers", "AdminService.ListWorkers", answers.WorkerPage), "List workers", query=req.Page),
    route_of(
        *("POST", "/v1/workers/{worker_id}/drain", "AdminService.DrainWorker", answers.Workers),
        "Drain a worker: it releases its tasks and takes no more",
        body=req.ReasonBody,
    ),
    route_of(
        *("GET", "/v1/claims", "AdminService.ListClaims", answers.ClaimList), "List live claims", query=req.ClaimsQuery
    ),
    route_of("GET", "/v1/queues", "AdminService.ListQueues", answers.Queues, "List queues"),
    route_of(
        *("GET", "/v1/leases", "LeaseService.ListLeases", answers.LeasePage), "List named leases", query=req.LeasesQuery
    ),
    route_of(
        *("GET", "/v1/calls-in-doubt", "AdminService.ListInDoubtCalls", answers.InDoubtPage),
        "List calls in doubt",
        query=req.InDoubtQuery,
        name="list_calls_in_doubt",
    ),
    route_of(
        *("GET", "/v1/effects", "AdminService.ListEffects", answers.EffectPage),
        "List calls with an effect key",
        query=req.EffectsQuery,
    ),
    route_of(
        "GET", "/v1/tools", "AdminService.ListTools", answers.ToolList, "List tools", with_={"leaves_out": "instance"}
    ),
    route_of("GET", "/v1/tenants", "TenantService.ListTenants", answers.TenantPage, "List tenants", query=req.Page),
    route_of(
        "GET",
        "/v1/tenants/{name}",
        "TenantService.GetTenant",
        info.TenantInfo,
        "Read a tenant with its quotas",
        with_={"rename": {"name": "tenant"}},
    ),
    route_of(
        *("GET", "/v1/tenants/{name}/usage", operations.usage, answers.UsagePage),
        "Sum up the bills of model calls",
        query=req.UsageQuery,
        name="get_usage",
        **_TENANTS,
    ),
    route_of(
        *("GET", "/v1/audit", "AuditService.ListAuditRecords", answers.AuditPage),
        "List audit records, the newest first",
        query=req.AuditQuery,
        with_={"rename": {"of_tenant": "tenant"}},
    ),
    route_of(
        "GET", "/v1/me", operations.caller, answers.KnownCaller, "Who the caller is", name="get_caller", **_TENANTS
    ),
    *OPERATOR_ROUTES,
)
