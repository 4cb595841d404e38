"""An agent without a model and without a tool's work: what is left of a step is what Tenure does in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.held_tasks import HeldTask
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import CallLimits, ToolsClient
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.tools import Outcome, call_id
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.ledger import new_entry

ANSWER_BYTES: Final = 2400
OUTPUT_TOKENS: Final = 800
MODEL: Final = "none"
TOOL: Final = "append_record"
ARGUMENTS: Final = json.dumps({"file": "bench", "line": "nothing"})
NOT_SET_UP: Final = "NOT_CONFIGURED"
_LIMITS: Final = CallLimits(outcome_seconds=30.0)


@dataclass(frozen=True, slots=True)
class NullAgent:
    """The worker's own clients, and the facts of a worker's step."""

    ledger: LedgerClient
    tools: ToolsClient

    async def begin(self, task: HeldTask) -> None:
        """Sets aside the tokens of the first step."""
        await self._commit(task, task.commit((), reserve=_reserve(task.step)))

    async def step(self, task: HeldTask, *, last: bool = False) -> float:
        """Answer and intent, the call, its outcome with the next step's tokens or the end. Returns how many seconds."""
        began = perf_counter()
        intent = ToolIntent(call_id(task.step, 0), f"toolu_{task.step}", TOOL, ARGUMENTS)
        await self._commit(task, task.commit([_answer(task.step, intent), new_entry(task.step, intent)]))
        outcome = await self.tools.execute(task.token, intent, _hear_nothing, _LIMITS, None)
        assert outcome.detail == NOT_SET_UP, f"a tool that is not set up answered {outcome}"
        await self._finish(task, intent, outcome, last=last)
        return perf_counter() - began

    async def _finish(self, task: HeldTask, intent: ToolIntent, outcome: Outcome, *, last: bool) -> None:
        written = new_entry(task.step, ToolOutcome(intent.call_id, outcome))
        task.step += 1
        if last:
            ending = pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
            await self._commit(task, task.commit([written], transition=ending))
        else:
            await self._commit(task, task.commit([written], reserve=_reserve(task.step)))

    async def _commit(self, task: HeldTask, request: pb.CommitRequest) -> None:
        response = await self.ledger.commit(request)
        assert not request.HasField("reserve") or response.reserve.HasField("granted"), "the tokens were refused"
        task.acknowledged(response)


def _hear_nothing() -> None:
    """Signs of life are for renewals; nobody renews here."""


def _reserve(step: int) -> pb.Reserve:
    return pb.Reserve(
        step=step, attempt_number=1, model=MODEL, input_tokens=1000, max_output_tokens=1000, min_output_tokens=1
    )


def _answer(step: int, intent: ToolIntent) -> ledger_pb2.NewEntry:
    """What a model says before it calls a tool. Its usage settles the attempt."""
    use = {
        "type": "tool_use",
        "id": intent.tool_use_id,
        "name": intent.tool,
        "input": json.loads(intent.arguments_json),
    }
    message = ledger_pb2.AssistantMessage(
        attempt_number=1,
        content_json=json.dumps([{"type": "text", "text": f"{step:08}".ljust(ANSWER_BYTES, ".")}, use]),
        stop_reason="tool_use",
        usage=task_pb2.TokenUsage(input_tokens=100, output_tokens=OUTPUT_TOKENS),
        model=MODEL,
        provider_request_id=f"req_{step}",
    )
    return ledger_pb2.NewEntry(step=step, body=ledger_pb2.EntryBody(assistant_message=message))
