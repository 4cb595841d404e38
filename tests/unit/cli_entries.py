"""Entries as the ledger would give them, for tests of the lines that show them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tenure.domain.fencing import compose_epoch
from tenure.v1 import ledger_pb2, live_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration

FIRST, SECOND = compose_epoch(1, 42), compose_epoch(1, 97)


class Ledger:
    """Numbers entries as they are made."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def entry(self, step: int = 0, epoch: int = FIRST, actor: str = "worker-1", **body: Any) -> ledger_pb2.Entry:
        entry = ledger_pb2.Entry(
            sequence=next(self._numbers), epoch=epoch, step=step, actor=actor, body=ledger_pb2.EntryBody(**body)
        )
        entry.record_time.FromSeconds(1_800_000_000)
        return entry

    def move(self, to: str, before: str = "", **facts: Any) -> ledger_pb2.Entry:
        at = {name: facts.pop(name) for name in ("step", "epoch", "actor") if name in facts}
        transition = ledger_pb2.StateTransition(to_state=state(to), from_state=state(before or "UNSPECIFIED"), **facts)
        return self.entry(transition=transition, **at)

    def queued(self) -> ledger_pb2.Entry:
        return self.move("QUEUED", epoch=0)

    def opened(self, worker: str = "worker-1", epoch: int = FIRST) -> ledger_pb2.Entry:
        return self.move("RUNNING", "QUEUED", actor=worker, epoch=epoch, reason="OPENED")

    def lost(self) -> ledger_pb2.Entry:
        why = {"reason": "WORKER_LOST", "message": "the connection to worker-1 broke"}
        return self.move("QUEUED", "RUNNING", actor="coordinator/c", **why)

    def expired(self) -> ledger_pb2.Entry:
        entry = self.move("QUEUED", "RUNNING", actor="checkpoint", reason="LEASE_EXPIRED", message="it sent none")
        end = ledger_pb2.LeaseEnd(worker_id="worker-1", epoch=compose_epoch(2, 4), renewal_count=118)
        for second in (1, 2.5, 4):
            end.renewal_times.add().FromMilliseconds(int(1_800_000_000_000 + 1000 * second))
        end.loss_time.FromMilliseconds(1_800_000_009_400)
        entry.body.transition.lease_end.CopyFrom(end)
        return entry

    def attempt(self, step: int, number: int = 1) -> ledger_pb2.Entry:
        return self.entry(step, model_attempt=ledger_pb2.ModelAttempt(attempt_number=number, model="m"))

    def answer(self, step: int, text: str, stop_reason: str = "tool_use") -> ledger_pb2.Entry:
        message = ledger_pb2.AssistantMessage(
            attempt_number=1,
            content_json=json.dumps([{"type": "text", "text": text}]),
            stop_reason=stop_reason,
            usage=task_pb2.TokenUsage(input_tokens=2310, output_tokens=87),
            latency=duration(1.2),
        )
        return self.entry(step, assistant_message=message)

    def intent(self, call_id: str, tool: str, **arguments: Any) -> ledger_pb2.Entry:
        fact = ledger_pb2.ToolIntent(call_id=call_id, tool=tool, arguments_json=json.dumps(arguments))
        return self.entry(int(call_id.split(".", maxsplit=1)[0]), tool_intent=fact)

    def outcome(self, call_id: str, content: str = "", status: str = "SUCCEEDED", **facts: Any) -> ledger_pb2.Entry:
        outcome = tool_pb2.Outcome(status=status_of(status), content=content, duration=duration(0.25), **facts)
        fact = ledger_pb2.ToolOutcome(call_id=call_id, outcome=outcome)
        return self.entry(int(call_id.split(".", maxsplit=1)[0]), tool_outcome=fact)


def state(name: str) -> task_pb2.TaskState.ValueType:
    return task_pb2.TaskState.Value(f"TASK_STATE_{name}")


def status_of(name: str) -> tool_pb2.OutcomeStatus.ValueType:
    return tool_pb2.OutcomeStatus.Value(f"OUTCOME_STATUS_{name}")


def piece(
    text: str, offset: int, *, step: int = 1, attempt: int = 1, epoch: int = FIRST, block: int = 0
) -> live_pb2.Delta:
    return live_pb2.Delta(epoch=epoch, step=step, attempt_number=attempt, block=block, offset=offset, text=text)
