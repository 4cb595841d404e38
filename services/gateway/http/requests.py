"""The contents of requests besides the path: the fields of their bodies, and the parameters of their query strings.

The fields of a submit are the arguments of `client.submit(…)`: tenure/sdk/submit_options.py describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from services.gateway.http.shapes import given
from tenure.domain.audit import Decision
from tenure.domain.model_parameters import Effort
from tenure.domain.schedules import OverlapPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import FailurePolicy, InputFile, NoProgressPolicy, Priority
from tenure.domain.webhooks import DeliveryState, WebhookKind
from tenure.sdk.option_values import Money, Seconds
from tenure.sdk.submit_options import FORK_OPTIONS, OPTIONS, default_of
from tenure.sdk.submit_request import is_given

T = TypeVar("T")

# Tasks.


@dataclass(frozen=True, slots=True, kw_only=True)
class NoQuery:
    """No parameters."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a list."""

    page_size: int = given("the most items; 0: the default of the list", 0)
    page_token: str = given("of the previous page; empty: the first page", "")


_JSON_TYPES: Final[dict[Any, tuple[Any, str]]] = {
    Iterable[str]: (tuple[str, ...], ""),
    Iterable[str] | None: (tuple[str, ...] | None, ""),
    Money | None: (Decimal | None, ""),
    Seconds | None: (float | None, ", in seconds"),
    FailurePolicy | str | None: (FailurePolicy | None, ""),
    NoProgressPolicy | str | None: (NoProgressPolicy | None, ""),
    Priority | str | None: (Priority | None, ""),
    Effort | str | None: (Effort | None, ""),
    Mapping[str, str] | None: (Mapping[str, str], ""),
    Iterable[InputFile | Path] | None: (tuple[InputFile, ...] | None, ""),
}
"""The types of options that have another form in JSON than in Python, each with what its text adds."""


def with_options(names: Iterable[str], *, may_be_null: bool = False) -> Callable[[type[T]], type[T]]:
    """Declares a field for each of these options of a submit. `may_be_null`: each is null when it is not given."""

    def declared(body: type[T]) -> type[T]:
        for name in names:
            hint, option = OPTIONS[name]
            json_type, unit = _JSON_TYPES.get(hint, (hint, ""))
            default: Any = {"default": default_of(hint)}
            if json_type == Mapping[str, str]:
                default = {"default_factory": dict}
            if may_be_null:
                json_type, default = json_type | None, {"default": None}
            body.__annotations__[name] = json_type
            setattr(body, name, field(metadata={"text": f"{option.text}{unit}"}, **default))
        return body

    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
@with_options(OPTIONS)
class SubmitBody:
    """A task to submit: these fields, and the options of tenure/sdk/submit_options.py."""

    goal: str = given("the first message to the agent; at most 256 KiB", "")
    agent: str = given(
        "an agent in Python or a registered one, by its name or its revision, support@7; empty: the agent that these "
        "fields describe",
        "",
    )
    input: Any = given("a JSON value for the agent in Python", None)
    function: str = given(
        "a control function that runs instead of an agent, by its name or its revision; with `input`", ""
    )
    result: Any = given("a JSON Schema of the result; null: any text", None)

    @property
    def options(self) -> dict[str, Any]:
        """The options that are given, by name."""
        return {name: value for name in OPTIONS if is_given(value := getattr(self, name))}

    def changed(self, **values: Any) -> SubmitBody:
        """Returns the body with other values of these fields and options."""
        return replace(self, **values)


class Order(StrEnum):
    """The order of a list of tasks."""

    NEWEST = "NEWEST"
    WAIT_DEADLINE = "WAIT_DEADLINE"


@dataclass(frozen=True, kw_only=True)
class OfStates:
    """The tasks in some states."""

    state: tuple[TaskState, ...] = given("any of these states", ())


@dataclass(frozen=True, kw_only=True)
class TaskSelection:
    """The tasks that match all parameters, in any state."""

    reason: tuple[str, ...] = given("any of these reasons of the state", ())
    label: Mapping[str, str] = field(default_factory=dict, metadata={"text": "name:value; all of them"})
    queue: str = given("this queue", "")
    agent: str = given("pinned to this agent, or to this revision of it, support@7", "")
    source: str = given("this source: its kind, KIND/ID or KIND/ID/RUN; a slash in the ID is written as %2F", "")
    text: str = given(
        "all of these words, or words that begin so, in the goal and the results: letters and digits in any case; at "
        "most 8",
        "",
    )
    since: datetime | None = given("submitted at this time or later", None)
    before: datetime | None = given("submitted before this time", None)
    ended_since: datetime | None = given("ended at this time or later", None)
    ended_before: datetime | None = given("ended before this time", None)
    model: str = given("the model of the newest model call", "")
    min_cost: Decimal | None = given("its own model calls cost this much or more, in US dollars", None)
    max_cost: Decimal | None = given("its own model calls cost at most this much, in US dollars", None)
    min_duration: float | None = given(
        "it took this many seconds or more, from the submit to the end or until now", None
    )
    max_duration: float | None = given("it took at most this many seconds", None)
    task_id: tuple[str, ...] = given("any of these tasks", ())
    output_kind: str = given("with an output of this kind", "")
    output_uri: str = given("with an output whose URI begins so; with output_kind: one output has both", "")
    root_task_id: str = given("the tasks of the tree of this root", "")
    forked_from_task_id: str = given("the forks of this task", "")


@dataclass(frozen=True, kw_only=True)
class TaskFilterQuery(TaskSelection, OfStates):
    """The tasks that match all parameters."""


@dataclass(frozen=True, kw_only=True)
class TasksQuery(TaskFilterQuery, Page):
    """The tasks to list."""

    order: Order = given("NEWEST, or WAIT_DEADLINE: tasks that wait, the earliest deadline first", Order.NEWEST)
    fresh: bool = given("the page must not be stale, where the server has a standby", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesQuery(TaskFilterQuery):
    """The changes to stream."""

    after: str = given("the cursor of an earlier change; the header Last-Event-ID goes before it", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesQuery:
    """The entries to list."""

    after_sequence: int = given("only entries after this one", 0)
    limit: int = given("the most entries; 0: 200", 0)
    kind: tuple[str, ...] = given("any of these kinds, as the contract's EntryBody names them: user_message", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQuery:
    """The prompt to read."""

    step: int = given("the step whose newest model call is meant", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsQuery:
    """The events to stream."""

    after_sequence: int = given("only events after this entry; the header Last-Event-ID goes before it", 0)
    live: bool = given("also the text of the model call in flight", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitQuery:
    """The time to wait for the end."""

    timeout_seconds: float = given("0 to 600", 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBody:
    """The cancel of a task."""

    reason: str = given("recorded; at most 1,000 characters", "")


class ActKind(StrEnum):
    """What to do with each of many tasks."""

    CANCEL = "CANCEL"
    REQUEUE = "REQUEUE"
    BEGIN_WAIT = "BEGIN_WAIT"
    END_WAIT = "END_WAIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActBody:
    """An act on many tasks: on the next page of those that match, the newest first."""

    act: ActKind = given("CANCEL, REQUEUE, BEGIN_WAIT, or END_WAIT of a wait that BEGIN_WAIT began")
    filter: TaskFilterQuery = given(
        "the tasks; at least one field. Without `state` and `task_id`: those that the act can change"
    )
    reason: str = given("recorded; only CANCEL may have none", "")
    operation_id: str = given(
        "the same for all pages: it acts on no task twice; also as the header Idempotency-Key. Empty: a new one", ""
    )
    tasks_per_second: int = given("1 to 1,000; 0: 20", 0)
    dry_run: bool = given("only count the tasks that match, by state and reason", False)
    page_token: str = given("of the previous page; empty: the first page", "")
    extra_tokens: int = given("REQUEUE: also raise the cap in tokens", 0)
    extra_steps: int = given("REQUEUE: also raise the limit of steps", 0)
    extra_cost: Decimal | None = given("REQUEUE: also raise the cap in US dollars", None)
    question: str = given("BEGIN_WAIT: what the tasks wait for", "")
    until: datetime | None = given("BEGIN_WAIT: the deadline, at most 30 days from now", None)


def _message_files() -> Any:
    return given("files for a new directory of the workspace, at most 16 and 3 MB together", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBody:
    """A message for the agent."""

    text: str = given("1 byte to 256 KiB")
    files: tuple[InputFile, ...] = _message_files()
    interrupt: bool = given("stop the model call that runs; the live sub-agents of the task get the text, too", False)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
@with_options(FORK_OPTIONS, may_be_null=True)
class ForkBody:
    """A fork: a new task from the history of this one. A field that is null keeps what the other task has; of the
    parameters of the model, from temperature to extra_body, one that is given replaces all. The limits are those of the
    fork itself, whose usage begins at zero.
    """

    at_sequence: int | None = given("cut the history after this entry; null: at the latest possible point", None)
    step: int | None = given("instead: cut it after this step", None)
    message: str = given("the next message for the agent; empty: it continues by itself", "")
    files: tuple[InputFile, ...] = _message_files()
    without_files: bool = given("begin with an empty workspace", False)
    all_tools: bool = given("all of the tenant's tools", False)
    result: Any = given("another JSON Schema of the result; an empty text: any text", None)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPlanBody:
    """The early end of a plan."""

    plan_id: str = given("the plan")
    reason: str = given("recorded; at most 1,000 characters")


@dataclass(frozen=True, kw_only=True)
class UndoQuery:
    """The effects to list."""

    since_step: int = given("only effects of this step and later ones; 0: all", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoBody:
    """The effects to undo."""

    since_step: int = given("only effects of this step and later ones; 0: all", 0)
    plan_digest: str = given("`plan_digest` of the list that you saw; empty: whatever can be undone", "")
    go_on: bool = given("go on with the next effect after a compensation that failed", False)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecisionBody:
    """The decision on one call of a wait for several calls."""

    call_id: str = given("the call: `wait.calls[].call_id`")
    decision: str = given("allow, deny or edit")
    call_digest: str = given("`wait.calls[].call_digest`: binds the decision to that call", "")
    edited_arguments: Mapping[str, Any] | None = given("with edit: the arguments instead", None)
    comment: str = given("recorded, and read by the agent; at most 4,000 characters", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlanBody:
    """Later calls that the answer approves at once: of one tool, up to a number."""

    count: int = given("the most calls; at most 10,000")
    tool: str = given("the tool; empty: that of the first call that the answer allows", "")
    when: str = given("a CEL expression that is true for the calls, such as args.amount <= 50", "")
    same: tuple[str, ...] = given("paths, such as args.customer, with the value of the allowed call; at most 8", ())
    sum_of: str = given("the path of the amount of a call, such as args.amount", "")
    limit: str = given("the most of all amounts together, as a decimal", "")
    ends_at: datetime | None = given("until when; absent: 24 hours, at most 30 days", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBody:
    """The answer of a wait: a decision, or a reply."""

    wait_id: str = given("the wait that you answer: `wait.wait_id` of the task")
    decision: str = given("one of the options of the wait; for a tool call allow, deny or edit", "")
    reply: str = given("instead: a text, if the wait takes one", "")
    call_digest: str = given("`wait.call_digest`: needed for a tool call, binds the answer to that call", "")
    edited_arguments: Mapping[str, Any] | None = given("with edit: the arguments instead", None)
    comment: str = given("recorded, and read by the agent; at most 4,000 characters", "")
    calls: tuple[CallDecisionBody, ...] = given("instead of a decision: those on calls of a wait for several calls", ())
    extra_tokens: int = given("raises the cap in tokens of the tree", 0)
    extra_cost: Decimal | None = given("raises the cap in US dollars of the tree", None)
    files: tuple[InputFile, ...] = _message_files()
    plan: CallPlanBody | None = given("with an allowed tool call: later calls that it approves, too", None)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalBody:
    """An event for the task that waits for it."""

    correlation_id: str = given("the name under which the task waits")
    payload: Any = given("a JSON value of at most 64 KiB", None)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesQuery(Page):
    """The files to list."""

    path: str = given("only those below this directory", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """The part of a file to read."""

    offset: int = given("the bytes to skip", 0)
    version: str = given("this version, from the header ETag of an earlier answer; empty: the present one", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsQuery:
    """The receipts to sign."""

    call_id: str = given("only the receipt of this call", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsQuery(Page):
    """The waits to list."""

    external: bool = given("also waits for an event or for sub-agents", False)


# Schedules.


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBody:
    """A schedule to create."""

    name: str = given("unique in the tenant")
    task: SubmitBody = given("what it submits; without start_at, source and request_id")
    cron: str = given("minute, hour, day of month, month, day of week: 0 7 * * MON-FRI")
    time_zone: str = given("of the due times, for example Europe/Berlin", "UTC")
    overlap_policy: OverlapPolicy = given("at a due time while an earlier run is active", OverlapPolicy.SKIP)
    catch_up_seconds: float | None = given("how late a due time may still start a task", None)
    start_at: datetime | None = given("no due times before", None)
    end_at: datetime | None = given("no due times after", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChangeBody:
    """A change of a schedule. A field that is null stays as it is."""

    expected_revision: int = given("`revision` of the schedule that you read; 0: any", 0)
    task: SubmitBody | None = given("what it submits, as a whole", None)
    cron: str | None = given("the due times", None)
    time_zone: str | None = given("of the due times", None)
    overlap_policy: OverlapPolicy | None = given("at a due time while an earlier run is active", None)
    catch_up_seconds: float | None = given("how late a due time may still start a task", None)
    start_at: datetime | None = given("no due times before", None)
    end_at: datetime | None = given("no due times after", None)
    clear_start_at: bool = given("remove this bound", False)
    clear_end_at: bool = given("remove this bound", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuery:
    """The parts of a schedule to read."""

    runs: int = given("how many of its newest runs; 0: 20", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerBody:
    """A run at once."""

    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonBody:
    """Why; it is recorded."""

    reason: str = given("why", "")


# Webhooks.


@dataclass(frozen=True, kw_only=True)
class WebhookFilterBody(TaskSelection):
    """The tasks whose changes a webhook sends: all fields must match. A webhook is shown with the same fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookBody:
    """A webhook to create."""

    name: str = given("unique in the tenant")
    kind: WebhookKind = given("STANDARD, SLACK or EMAIL", WebhookKind.STANDARD)
    url: str = given("where it sends to; empty for EMAIL", "")
    email_addresses: tuple[str, ...] = given("for EMAIL: 1 to 20", ())
    event_types: tuple[str, ...] = given("such as task.failed or task.*; empty: ends, waits and warnings", ())
    filter: WebhookFilterBody = given("the tasks, by label, queue, source and so on; empty: all", WebhookFilterBody())
    secret: str = given("signs the deliveries of STANDARD; empty: a new one", "")
    answer_links: bool = given("send links that answer waits", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveriesQuery(Page):
    """The deliveries to list."""

    state: tuple[DeliveryState, ...] = given("any of these states", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBody:
    """Dead deliveries to send again."""

    delivery_id: str = given("one of them; empty: all", "")


# Operations.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsQuery:
    """The claims to list."""

    task_id: str = given("of this task only", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesQuery(Page):
    """The leases to list."""

    prefix: str = given("resources that begin like this", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubtQuery(Page):
    """The calls in doubt to list."""

    task_id: str = given("of this task only", "")
    all: bool = given("also calls of tasks that ended or continued without a resolution", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsQuery(Page):
    """The calls with an effect key to list."""

    tool: str = given("of this tool only", "")
    key: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"text": "argument:value; all of them. A value matches as text and, if it is JSON, as JSON"},
    )


class ResolutionKind(StrEnum):
    """The finding of a person about a call in doubt."""

    HAPPENED = "HAPPENED"
    DID_NOT_HAPPEN = "DID_NOT_HAPPEN"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionBody:
    """The resolution of a call in doubt (docs/in_doubt.md)."""

    call_attempt: int = given("the attempt that it is about, as listed")
    resolution: ResolutionKind = given("HAPPENED, DID_NOT_HAPPEN: it may run again, or ABANDONED")
    reason: str = given("why; it is recorded")
    result: str = given("with HAPPENED: what the agent reads as its result", "")
    runner_is_gone: bool = given("with DID_NOT_HAPPEN: the old runner is gone, although nothing proves it", False)
    request_id: str = given("makes a repeat safe; also as the header Idempotency-Key", "")


class UsageBy(StrEnum):
    """The key by which a usage report sums up."""

    TENANT = "TENANT"
    ROOT = "ROOT"
    MODEL = "MODEL"
    DAY = "DAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery(Page):
    """The bills to sum up."""

    by: UsageBy = given("one line for each of these", UsageBy.TENANT)
    since: datetime | None = given("settled at or after; null: the last 24 hours, or all of a root", None)
    until: datetime | None = given("settled before", None)
    root_task_id: str = given("of this tree only", "")
    dearest_first: bool = given("one page of the dearest sums, instead of pages by their keys", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery(Page):
    """The audit records to list."""

    oldest_first: bool = given("the oldest first", False)
    of_tenant: str = given("of this tenant", "")
    subject: str = given("of this caller", "")
    method: str = given("of this method, such as AdminService/DrainWorker", "")
    decision: Decision | None = given("ALLOWED or DENIED", None)
