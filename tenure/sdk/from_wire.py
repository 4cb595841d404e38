"""Converts the messages of the API to the public dataclasses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.budget import NANO_USD
from tenure.domain.states import Reason
from tenure.domain.task import result_text
from tenure.sdk import events
from tenure.sdk.errors import ServerFailed
from tenure.sdk.task_info import (
    BudgetNeed,
    FunctionCall,
    TaskBudget,
    TaskFile,
    TaskInfo,
    TaskLimits,
    TaskPage,
    TaskWait,
)
from tenure.v1 import ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import (
    MONEY_CAPS,
    OUTCOME_STATUSES,
    PRIORITIES,
    STATES,
    WAIT_ANSWERS,
    WAIT_DEADLINES,
    WAIT_KINDS,
    EnumMap,
    moment,
    seconds,
    to_dict,
)
from tenure.wire.task import policy_to_domain, source_to_domain, usage_to_domain
from tenure.wire.tool import output_to_domain, tool_to_domain

D = TypeVar("D", bound=Enum)


def _known(values: EnumMap[D, Any], number: int) -> D:
    """Returns the value of an enum. Raises ServerFailed for one that only a newer gateway knows."""
    member = values.find(number)
    if member is None:
        error = ServerFailed(f"the gateway sent {number}, a value that this client does not know", reason="NEWER_VALUE")
        error.hint = "upgrade the package tenure to the version of the gateway"
        raise error
    return member


def dollars(nano_usd: int) -> Decimal:
    """Returns an exact amount of US dollars."""
    return Decimal(nano_usd) / NANO_USD


def _cap(nano_usd: int) -> Decimal | None:
    return dollars(nano_usd) if nano_usd else None


def optional_time(message: Timestamp) -> datetime | None:
    """Returns the moment; None for an absent one."""
    return moment(message) if message.seconds or message.nanos else None


def json_of(text: str) -> Any:
    """Returns the value of a JSON text; None for an empty one, and the text itself if it is not valid JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


# Tasks.


def result_json_of(ended: task_pb2.Task | ledger_pb2.StateTransition) -> str:
    """Returns the result of a task as JSON: of one with a result schema, or what its function returned; else ""."""
    return ended.result_json or (ended.result if ended.reason == Reason.FUNCTION_RETURNED else "")


def task_page(page: api.ListTasksResponse) -> TaskPage:
    """Returns a page of tasks. Raises ServerFailed for a state that only a newer gateway knows."""
    as_of = optional_time(page.as_of_time) if page.HasField("as_of_time") else None
    return TaskPage(tuple(map(task_info, page.tasks)), page.next_page_token, as_of)


def task_info(task: task_pb2.Task) -> TaskInfo:
    """Returns a task. Raises ServerFailed for a state that only a newer gateway knows."""
    spec, agent = task.spec, task.spec.agent
    return TaskInfo(
        task_id=task.task_id,
        tenant=task.tenant,
        state=_known(STATES, task.state),
        reason=task.reason,
        message=task.message,
        goal=spec.goal,
        model=agent.model,
        system=agent.system,
        tools=tuple(agent.tools.names) if agent.HasField("tools") else None,
        approve_tools=tuple(agent.approve_tools),
        max_output_tokens=agent.max_output_tokens,
        loop=agent.loop,
        function=_function(spec),
        agent=spec.agent_pin.agent,
        agent_revision=spec.agent_pin.revision or None,
        result_schema=json_of(spec.result_schema_json),
        limits=limits_info(spec.limits),
        policy=policy_to_domain(spec.policy),
        priority=PRIORITIES.to_domain(task.priority or spec.priority),
        queue=task.queue or spec.queue,
        labels=dict(sorted(spec.labels.items())),
        source=source_to_domain(spec.source),
        attempt=task.attempt,
        step=task.step,
        sequence=task.sequence,
        worker=task.owner,
        claim_count=task.claim_count,
        cancel_requested=task.cancel_requested,
        wait=task_wait(task.wait) if task.HasField("wait") else None,
        calls_in_doubt=tuple(call.call_id for call in task.calls_in_doubt),
        usage=usage_to_domain(task.usage),
        cost_usd=dollars(task.used_nano_usd),
        budget=task_budget(task.budget),
        result=result_text(task.result, task.reason),
        result_data=json_of(result_json_of(task)),
        outputs=tuple(output_to_domain(output) for output in task.outputs),
        parent_task_id=task.parent_task_id,
        root_task_id=task.root_task_id,
        depth=task.depth,
        forked_from_task_id=task.forked_from.task_id,
        forked_from_sequence=task.forked_from.sequence,
        created_at=optional_time(task.create_time),
        updated_at=optional_time(task.update_time),
        start_at=optional_time(spec.start_time),
        started_at=optional_time(task.start_time),
        ended_at=optional_time(task.end_time),
        next_retry_at=optional_time(task.next_retry_time),
        deadline_at=optional_time(task.deadline_time),
    )


def limits_info(limits: task_pb2.Limits) -> TaskLimits:
    return TaskLimits(
        max_tokens=limits.max_tokens,
        max_cost_usd=_cap(limits.max_nano_usd),
        money_cap=MONEY_CAPS.find(limits.money_cap),
        max_steps=limits.max_steps,
        timeout_seconds=seconds(limits.timeout),
    )


def _function(spec: task_pb2.TaskSpec) -> FunctionCall | None:
    return FunctionCall(spec.control.function, json_of(spec.control.input_json)) if spec.HasField("control") else None


def task_budget(budget: task_pb2.BudgetStatus) -> TaskBudget:
    return TaskBudget(
        max_tokens=budget.max_tokens,
        used_tokens=budget.used_tokens,
        reserved_tokens=budget.reserved_tokens,
        max_cost_usd=_cap(budget.max_nano_usd),
        used_cost_usd=dollars(budget.used_nano_usd),
        reserved_cost_usd=dollars(budget.reserved_nano_usd),
        unpriced_calls=budget.unpriced_calls,
    )


def task_wait(wait: task_pb2.Wait) -> TaskWait:
    """Returns a wait. Raises ServerFailed for a kind that only a newer gateway knows."""
    return TaskWait(
        wait_id=wait.wait_id,
        kind=_known(WAIT_KINDS, wait.kind),
        question=wait.question,
        options=tuple(wait.options),
        context=wait.context,
        reference=wait.reference,
        call_id=wait.call_id,
        tool=wait.tool,
        arguments=json_of(wait.arguments_json),
        call_digest=wait.call_digest,
        correlation_id=wait.correlation_id,
        assignee=wait.assignee,
        begun_at=optional_time(wait.begin_time),
        deadline_at=optional_time(wait.deadline_time),
        at_deadline=WAIT_DEADLINES.to_domain(wait.at_deadline),
        sub_agent_task_ids=tuple(wait.sub_agent_task_ids),
        budget_need=_budget_need(wait.budget_request) if wait.HasField("budget_request") else None,
        approvers=tuple(wait.approvers),
    )


def _budget_need(request: task_pb2.BudgetRequest) -> BudgetNeed:
    return BudgetNeed(
        limit=request.limit,
        own_cap=request.own_cap,
        needed_tokens=request.needed_tokens,
        needed_cost_usd=dollars(request.needed_nano_usd),
        suggested_tokens=request.suggested_tokens,
        suggested_cost_usd=dollars(request.suggested_nano_usd),
    )


def task_file(file: workspace_pb2.WorkspaceFile) -> TaskFile:
    kind = workspace_pb2.FileKind.Name(file.kind).removeprefix("FILE_KIND_")
    return TaskFile(path=file.path, kind=kind, size_bytes=file.size_bytes, modified_at=optional_time(file.modified_at))


def change_event(message: api.WatchTasksResponse) -> events.TaskChangeEvent | events.HeartbeatEvent:
    """Returns a message of the stream of all tasks."""
    if message.WhichOneof("event") != "change":
        return events.HeartbeatEvent(
            kind="heartbeat", cursor=message.cursor, sent_at=optional_time(message.heartbeat.time)
        )
    change = message.change
    return events.TaskChangeEvent(
        kind="change",
        cursor=message.cursor,
        task_id=change.task_id,
        sequence=change.sequence,
        state=_known(STATES, change.state),
        reason=change.reason,
        cancel_requested=change.cancel_requested,
        changed_at=optional_time(change.change_time),
        task=task_info(change.task),
    )


# Entries.


def entry_event(entry: ledger_pb2.Entry) -> events.Event:
    """Returns an entry of the ledger. A kind of a newer gateway becomes an OtherEvent."""
    kind = entry.body.WhichOneof("body") or "unknown"
    envelope: dict[str, Any] = {
        "kind": kind,
        "sequence": entry.sequence,
        "step": entry.step,
        "attempt": entry.attempt,
        "actor": entry.actor,
        "recorded_at": optional_time(entry.record_time),
    }
    if kind == "transition":
        envelope["epoch"] = entry.epoch
    body = getattr(entry.body, kind, None)
    if kind in _BODIES:
        event_type, convert = _BODIES[kind]
        return event_type(**envelope, **convert(body))
    return events.OtherEvent(**envelope, data={} if body is None else to_dict(body))


def _submitted(body: ledger_pb2.TaskSubmitted) -> dict[str, Any]:
    return {
        "goal": body.spec.goal,
        "model": body.spec.agent.model,
        "request_id": body.request_id,
        "parent_task_id": body.spawned_by.task_id,
    }


def _transition(body: ledger_pb2.StateTransition) -> dict[str, Any]:
    return {
        "from_state": STATES.find(body.from_state),
        "state": _known(STATES, body.to_state),
        "reason": body.reason,
        "message": body.message,
        "wait": task_wait(body.wait) if body.HasField("wait") else None,
        "calls_in_doubt": tuple(call.call_id for call in body.calls_in_doubt),
        "result": result_text(body.result, body.reason),
        "result_data": json_of(result_json_of(body)),
        "next_retry_at": optional_time(body.next_retry_time),
        "budget": task_budget(body.budget) if body.HasField("budget") else None,
    }


def _tools_defined(body: ledger_pb2.ToolsDefined) -> dict[str, Any]:
    return {
        "tools": tuple(tool_to_domain(tool) for tool in body.tools),
        "unknown_names": tuple(body.unknown_names),
    }


def _model_attempt(body: ledger_pb2.ModelAttempt) -> dict[str, Any]:
    return {
        "attempt_number": body.attempt_number,
        "model": body.model,
        "reserved_tokens": body.reserved_tokens,
        "reserved_cost_usd": dollars(body.reserved_nano_usd),
        "budget": task_budget(body.budget) if body.HasField("budget") else None,
        "outlives_worker": body.outlives_worker,
    }


def _model_failure(body: ledger_pb2.ModelFailure) -> dict[str, Any]:
    return {
        "attempt_number": body.attempt_number,
        "error_class": body.error_class,
        "message": body.message,
        "status_code": body.status_code,
        "retryable": body.retryable,
        "retry_after_seconds": seconds(body.retry_after) if body.HasField("retry_after") else None,
        "usage": usage_to_domain(body.usage),
    }


def _attempt_lost(body: ledger_pb2.AttemptLost) -> dict[str, Any]:
    return {"attempt_number": body.attempt_number, "usage": usage_to_domain(body.usage)}


def _assistant_message(body: ledger_pb2.AssistantMessage) -> dict[str, Any]:
    content = json_of(body.content_json)
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text", "") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return {
        "attempt_number": body.attempt_number,
        "text": "\n\n".join(texts),
        "content": content,
        "model": body.model,
        "stop_reason": body.stop_reason,
        "usage": usage_to_domain(body.usage),
        "usage_estimated": body.usage_estimated,
        "latency_seconds": seconds(body.latency),
    }


def _tool_intent(body: ledger_pb2.ToolIntent) -> dict[str, Any]:
    return {"call_id": body.call_id, "tool": body.tool, "arguments": json_of(body.arguments_json)}


def _tool_outcome(body: ledger_pb2.ToolOutcome) -> dict[str, Any]:
    outcome = body.outcome
    return {
        "call_id": body.call_id,
        "status": OUTCOME_STATUSES.to_domain(outcome.status),
        "content": outcome.content,
        "truncated": outcome.truncated,
        "detail": outcome.detail,
        "call_attempt": outcome.call_attempt,
        "output_path": outcome.output_path,
        "duration_seconds": seconds(outcome.duration),
    }


def _wait_resolution(body: ledger_pb2.WaitResolution) -> dict[str, Any]:
    return {
        "wait_id": body.wait_id,
        "call_id": body.call_id,
        "wait_kind": WAIT_KINDS.find(body.wait_kind),
        "answer_kind": WAIT_ANSWERS.find(body.answer_kind),
        "answer": body.answer,
        "comment": body.comment,
        "edited_arguments": json_of(body.edited_arguments_json),
        "extra_tokens": body.extra_budget_tokens,
        "extra_cost_usd": dollars(body.extra_budget_nano_usd),
        "request_id": body.request_id,
        "addressee": body.addressee,
        "shown_digest": body.shown_digest,
    }


def _control_step(body: ledger_pb2.ControlStep) -> dict[str, Any]:
    failure = body.failure
    return {
        "name": body.name,
        "result": json_of(body.result_json),
        "error": f"{failure.error_class}: {failure.message}" if body.HasField("failure") else "",
        "duration_seconds": seconds(body.duration),
        "result_path": body.kept.path,
    }


def _sub_agents_spawned(body: ledger_pb2.SubAgentsSpawned) -> dict[str, Any]:
    return {
        "call_id": body.call_id,
        "task_ids": tuple(body.task_ids),
        "max_tokens": body.max_tokens,
        "deadline_at": optional_time(body.deadline_time),
    }


_BODIES: Final[dict[str, tuple[type[events.Event], Callable[[Any], dict[str, Any]]]]] = {
    "submitted": (events.SubmittedEvent, _submitted),
    "transition": (events.TransitionEvent, _transition),
    "tools_defined": (events.ToolsDefinedEvent, _tools_defined),
    "model_attempt": (events.ModelAttemptEvent, _model_attempt),
    "model_failure": (events.ModelFailureEvent, _model_failure),
    "attempt_lost": (events.AttemptLostEvent, _attempt_lost),
    "assistant_message": (events.AssistantMessageEvent, _assistant_message),
    "tool_intent": (events.ToolIntentEvent, _tool_intent),
    "tool_outcome": (events.ToolOutcomeEvent, _tool_outcome),
    "user_message": (
        events.UserMessageEvent,
        lambda body: {"text": body.text, "request_id": body.request_id},
    ),
    "cancel_request": (events.CancelRequestEvent, lambda body: {"reason": body.reason}),
    "wait_resolution": (events.WaitResolutionEvent, _wait_resolution),
    "control_step": (events.ControlStepEvent, _control_step),
    "control_failure": (
        events.ControlFailureEvent,
        lambda body: {"error_class": body.error_class, "message": body.message, "retryable": body.retryable},
    ),
    "result_rejected": (events.ResultRejectedEvent, lambda body: {"violations": tuple(body.violations)}),
    "budget_warning": (
        events.BudgetWarningEvent,
        lambda body: {"limit": body.limit, "budget": task_budget(body.budget)},
    ),
    "sub_agents_spawned": (events.SubAgentsSpawnedEvent, _sub_agents_spawned),
}
