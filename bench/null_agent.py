"""An agent without a model and with a tool that does nothing: only Tenure's own part of a step is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.data_path import HeldTask
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import CallLimits, ToolsClient
from tenure.domain.entries import ControlStep, ToolIntent, ToolOutcome
from tenure.domain.tools import Outcome, call_id
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.ledger import new_entry

ANSWER_BYTES: Final = 2400
OUTPUT_TOKENS: Final = 800
MODEL: Final = "none"
TOOL: Final = "web_search"
ARGUMENTS: Final = json.dumps({"query": "nothing"})
NOT_SET_UP: Final = "NOT_CONFIGURED"
_LIMITS: Final = CallLimits(outcome_seconds=30.0)
_ENDING: Final = pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")


def dotted_text(step: int) -> str:
    """Returns a text of `ANSWER_BYTES` bytes."""
    return f"{step:08}".ljust(ANSWER_BYTES, ".")


@dataclass(frozen=True, slots=True)
class NullAgent:
    """Uses the worker's own clients, and writes the entries of a worker's step.

    `answer_text`: returns the model's text for a step.
    """

    ledger: LedgerClient
    tools: ToolsClient
    answer_text: Callable[[int], str] = dotted_text

    async def begin(self, task: HeldTask) -> None:
        """Reserves the tokens of the first step."""
        await self._commit(task, beginning(task))

    async def step(self, task: HeldTask, *, last: bool = False) -> float:
        """Commits answer and intent, executes the call, commits its outcome. Returns the seconds.

        The last commit also has the reservation of the next step, or with `last` the end of the task.
        """
        began = perf_counter()
        intent = intent_of(task)
        await self._commit(task, answered(task, intent, self.answer_text(task.step)))
        outcome = await self.tools.execute(task.token, intent, _ignore_progress, _LIMITS, None)
        assert outcome.detail == NOT_SET_UP, f"the unconfigured tool returned {outcome}"
        await self._commit(task, finished(task, intent, outcome, last=last))
        return perf_counter() - began

    async def recorded_step(self, task: HeldTask, effect: Callable[[], str], *, last: bool = False) -> float:
        """Makes the effect in this process, then commits its result, as a function's `work.step`. Returns the seconds.

        The last commit also has the end of the task.
        """
        began = perf_counter()
        result = effect()
        entry = new_entry(task.step, ControlStep("effect", json.dumps(result), duration_seconds=perf_counter() - began))
        task.step += 1
        await self._commit(task, task.commit([entry], transition=_ENDING if last else None))
        return perf_counter() - began

    async def _commit(self, task: HeldTask, request: pb.CommitRequest) -> None:
        response = await self.ledger.commit(request)
        assert not request.HasField("reserve") or response.reserve.HasField("granted"), "the reservation was denied"
        task.acknowledged(response)


def beginning(task: HeldTask) -> pb.CommitRequest:
    """Returns the commit before the first step."""
    return task.commit((), reserve=_reserve(task.step))


def intent_of(task: HeldTask) -> ToolIntent:
    """Returns the call of the task's present step."""
    return ToolIntent(call_id(task.step, 0), f"toolu_{task.step}", TOOL, ARGUMENTS)


def answered(task: HeldTask, intent: ToolIntent, text: str) -> pb.CommitRequest:
    """Returns the commit of the answer and its intent."""
    return task.commit([_answer(task.step, intent, text), new_entry(task.step, intent)])


def finished(task: HeldTask, intent: ToolIntent, outcome: Outcome, *, last: bool) -> pb.CommitRequest:
    """Returns the commit of the outcome, and moves the task to its next step."""
    entry = new_entry(task.step, ToolOutcome(intent.call_id, outcome))
    task.step += 1
    if last:
        return task.commit([entry], transition=_ENDING)
    return task.commit([entry], reserve=_reserve(task.step))


def _ignore_progress() -> None:
    """Progress is reported with renewals, and the bench has none."""


def _reserve(step: int) -> pb.Reserve:
    return pb.Reserve(
        step=step, attempt_number=1, model=MODEL, input_tokens=1000, max_output_tokens=1000, min_output_tokens=1
    )


def _answer(step: int, intent: ToolIntent, text: str) -> ledger_pb2.NewEntry:
    """Returns a model's answer with a tool call. Its usage settles the model attempt."""
    tool_use = {
        "type": "tool_use",
        "id": intent.tool_use_id,
        "name": intent.tool,
        "input": json.loads(intent.arguments_json),
    }
    message = ledger_pb2.AssistantMessage(
        attempt_number=1,
        content_json=json.dumps([{"type": "text", "text": text}, tool_use]),
        stop_reason="tool_use",
        usage=task_pb2.TokenUsage(input_tokens=100, output_tokens=OUTPUT_TOKENS),
        model=MODEL,
        provider_request_id=f"req_{step}",
    )
    return ledger_pb2.NewEntry(step=step, body=ledger_pb2.EntryBody(assistant_message=message))
