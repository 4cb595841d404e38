"""Converts the messages of the API to the public dataclasses, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar, Unpack

from google.protobuf.message import Message

import tenure.wire.ledger
import tenure.wire.task
import tenure.wire.tool
import tenure.wire.undo  # noqa: F401  tasks, events and plans have parts of these modules
from tenure.domain.states import Reason
from tenure.domain.task import result_text
from tenure.sdk import events
from tenure.sdk.errors import ServerFailed
from tenure.sdk.task_info import (
    BudgetNeed,
    CallPlan,
    CallToApprove,
    FunctionCall,
    ModelParametersInfo,
    StateCount,
    TaskBudget,
    TaskCounts,
    TaskFile,
    TaskInfo,
    TaskLimits,
    TaskPage,
    TaskWait,
)
from tenure.sdk.undo_info import UndoEffect, UndoPlan
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.codec import PairOptions, json_of, reader, writer
from tenure.wire.common import PRIORITIES, EnumMap, to_dict

V = TypeVar("V")
M = TypeVar("M", bound=Message)
D = TypeVar("D", bound=Enum)


def _known(values: EnumMap[D, Any], number: int) -> D:
    """Returns the value of an enum. Raises ServerFailed for one that only a newer gateway knows."""
    member = values.find(number)
    if member is None:
        error = ServerFailed(f"the gateway sent {number}, a value that this client does not know", reason="NEWER_VALUE")
        error.hint = "upgrade the package tenure to the version of the gateway"
        raise error
    return member


def public(value: type[V], message: type[M], **options: Unpack[PairOptions]) -> Callable[[M], V]:
    """Returns the function from a message to its public form."""
    options["known"] = _known
    return reader(value, message, **options)


# Tasks.


def result_json_of(ended: task_pb2.Task | ledger_pb2.StateTransition) -> str:
    """Returns the result of a task as JSON: of one with a result schema, or what its function returned; else ""."""
    return ended.result_json or (ended.result if ended.reason == Reason.FUNCTION_RETURNED else "")


def _calls_in_doubt(ended: task_pb2.Task | ledger_pb2.StateTransition) -> tuple[str, ...]:
    return tuple(call.call_id for call in ended.calls_in_doubt)


public(FunctionCall, task_pb2.ControlWork, rename={"name": "function"})
public(ModelParametersInfo, task_pb2.ModelParameters)
public(TaskLimits, task_pb2.Limits, skip="no_money_cap")
public(TaskBudget, task_pb2.BudgetStatus)
public(BudgetNeed, task_pb2.BudgetRequest, skip="budget")
_OF_PLANS: Final = {"ends_at": "end_time", "approved_at": "approve_time"}
public(CallPlan, tool_pb2.CallPlan, rename=_OF_PLANS, skip="lasts")
call_plan_to_wire = writer(CallPlan, tool_pb2.CallPlan, rename=_OF_PLANS, skip="lasts")
public(CallToApprove, task_pb2.WaitingCall)
public(
    TaskWait,
    task_pb2.Wait,
    rename={"begun_at": "begin_time", "budget_need": "budget_request"},
    skip="next_step next_step_time steps_taken",
)
task_info = public(
    TaskInfo,
    task_pb2.Task,
    within=("spec", "spec.agent"),
    rename={
        "function": "spec.control",
        "agent": "spec.agent_pin.agent",
        "agent_revision": "spec.agent_pin.revision",
        "start_at": "spec.start_time",
        "worker": "owner",
        "cost_usd": "used_nano_usd",
        "forked_from_task_id": "forked_from.task_id",
        "forked_from_sequence": "forked_from.sequence",
    },
    given={
        "priority": lambda task: PRIORITIES.to_domain(task.priority or task.spec.priority),
        "queue": lambda task: task.queue or task.spec.queue,
        "calls_in_doubt": _calls_in_doubt,
        "result": lambda task: result_text(task.result, task.reason),
        "result_data": lambda task: json_of(result_json_of(task)),
    },
    skip="epoch spawn_call_id spawn_index result_json context_window_tokens undo",
)
task_page = public(
    TaskPage, api.ListTasksResponse, rename={"as_of": "as_of_time", "searched_until": "searched_until_time"}
)
public(StateCount, api.CountTasksResponse.StateCount)
task_counts = public(TaskCounts, api.CountTasksResponse)
public(UndoEffect, api.TaskEffect)
undo_plan = public(UndoPlan, api.PlanUndoResponse)
task_file = public(TaskFile, workspace_pb2.WorkspaceFile, skip="link_target unreadable_name")
_change = public(
    events.TaskChangeEvent,
    api.WatchTasksResponse,
    within=("change",),
    given={"kind": lambda _: "change"},
    skip="heartbeat",
)
_heartbeat = public(
    events.HeartbeatEvent,
    api.WatchTasksResponse,
    rename={"sent_at": "heartbeat.time"},
    given={"kind": lambda _: "heartbeat"},
    skip="change",
)


def change_event(message: api.WatchTasksResponse) -> events.TaskChangeEvent | events.HeartbeatEvent:
    """Returns a message of the stream of all tasks."""
    return _change(message) if message.HasField("change") else _heartbeat(message)


# Entries.


def _event(
    kind: type[events.Event],
    body: str,
    *inside: str,
    rename: Mapping[str, str] | None = None,
    given: Mapping[str, Callable[[Any], Any]] | None = None,
    skip: str = "epoch",
) -> Callable[[ledger_pb2.Entry], events.Event]:
    """Returns the function from an entry to its event. `rename` and `given` are about the entry's body."""

    def of_body(read: Callable[[Any], Any]) -> Callable[[ledger_pb2.Entry], Any]:
        return lambda entry: read(getattr(entry.body, body))

    return public(
        kind,
        ledger_pb2.Entry,
        within=(f"body.{body}", *(f"body.{body}.{part}" for part in inside)),
        rename={name: f"body.{body}.{path}" for name, path in (rename or {}).items()},
        given={"kind": lambda _: body, **{name: of_body(read) for name, read in (given or {}).items()}},
        skip=f"claim_id {skip}",
    )


def _texts(body: ledger_pb2.AssistantMessage) -> str:
    content = json_of(body.content_json)
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text", "") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return "\n\n".join(texts)


def _failure_text(body: ledger_pb2.ControlStep) -> str:
    return f"{body.failure.error_class}: {body.failure.message}" if body.HasField("failure") else ""


def _paths(body: Any) -> tuple[str, ...]:
    return tuple(file.path for file in body.files)


_EVENTS: Final[dict[str, Callable[[ledger_pb2.Entry], events.Event]]] = {
    "submitted": _event(
        events.SubmittedEvent,
        "submitted",
        rename={"goal": "spec.goal", "model": "spec.agent.model", "parent_task_id": "spawned_by.task_id"},
        given={"files": _paths},
        skip="epoch traceparent",
    ),
    "transition": _event(
        events.TransitionEvent,
        "transition",
        rename={"state": "to_state"},
        given={
            "calls_in_doubt": _calls_in_doubt,
            "result": lambda body: result_text(body.result, body.reason),
            "result_data": lambda body: json_of(result_json_of(body)),
        },
        skip="error_class result_json outputs",
    ),
    "tools_defined": _event(events.ToolsDefinedEvent, "tools_defined"),
    "model_attempt": _event(
        events.ModelAttemptEvent,
        "model_attempt",
        skip="epoch input_tokens max_output_tokens summary_through_step prices",
    ),
    "model_failure": _event(
        events.ModelFailureEvent, "model_failure", skip="epoch provider_request_id context_window_tokens"
    ),
    "attempt_lost": _event(events.AttemptLostEvent, "attempt_lost"),
    "assistant_message": _event(
        events.AssistantMessageEvent,
        "assistant_message",
        given={"text": _texts},
        skip="epoch provider_request_id context_window_tokens",
    ),
    "tool_intent": _event(events.ToolIntentEvent, "tool_intent", skip="epoch tool_use_id"),
    "tool_outcome": _event(
        events.ToolOutcomeEvent,
        "tool_outcome",
        "outcome",
        given={"images": lambda body: tuple(image.kept.path for image in body.outcome.images)},
        skip="epoch usage output no_effect",
    ),
    "user_message": _event(events.UserMessageEvent, "user_message", given={"files": _paths}),
    "cancel_request": _event(events.CancelRequestEvent, "cancel_request"),
    "wait_resolution": _event(
        events.WaitResolutionEvent,
        "wait_resolution",
        rename={"extra_tokens": "extra_budget_tokens", "extra_cost_usd": "extra_budget_nano_usd"},
        skip="epoch client_address",
    ),
    "control_step": _event(
        events.ControlStepEvent,
        "control_step",
        rename={"result_path": "kept.path"},
        given={"error": _failure_text},
        skip="epoch failure",
    ),
    "control_failure": _event(events.ControlFailureEvent, "control_failure", skip="epoch retry_after"),
    "result_rejected": _event(events.ResultRejectedEvent, "result_rejected", skip="epoch text"),
    "budget_warning": _event(events.BudgetWarningEvent, "budget_warning", skip="epoch own"),
    "sub_agents_spawned": _event(events.SubAgentsSpawnedEvent, "sub_agents_spawned", skip="epoch tools"),
}
_other = public(
    events.OtherEvent,
    ledger_pb2.Entry,
    given={
        "kind": lambda entry: entry.body.WhichOneof("body") or "unknown",
        "data": lambda entry: to_dict(getattr(entry.body, kind)) if (kind := entry.body.WhichOneof("body")) else {},
    },
    skip="claim_id epoch body",
)


def entry_event(entry: ledger_pb2.Entry) -> events.Event:
    """Returns an entry of the ledger. A kind of a newer gateway becomes an OtherEvent."""
    return _EVENTS.get(entry.body.WhichOneof("body") or "", _other)(entry)
