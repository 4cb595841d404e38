"""The loop `replay`: an agent whose tool calls are answered from the record of another task, and never executed.

It drives a task as the loop `messages` does, with another model for example. Nothing happens outside: no call reaches
the tool service, and no wait begins, so no person is asked and no sub-agent is spawned.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from services.worker.task_loop import TaskLoop
from services.worker.tools_client import CallLimits, OwnCall, ToolsClient
from tenure.domain.entries import Entry, ToolIntent, ToolOutcome, ToolsDefined, Transition
from tenure.domain.in_doubt import Resolution
from tenure.domain.outputs import FileDigest
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.turn import ExecuteTools
from tenure.runtime.rpc_client import TenureChannel
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.ledger import entries_to_domain

NOT_RECORDED: Final = (
    "[not recorded] This is a replay, and the recorded run did not make this call with these arguments. It was not "
    "executed."
)


class RecordedCalls:
    """The tools and the calls of a recorded run. A call is known by its tool and its arguments.

    Repeats of a call get the recorded outcomes in their order, and the last one again after them.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.tools = ToolsDefined(())
        self._outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        intents: dict[str, ToolIntent] = {}
        for entry in entries:
            match entry.body:
                case ToolsDefined():
                    self.tools = entry.body
                case ToolIntent():
                    intents[entry.body.call_id] = entry.body
                case ToolOutcome(call_id=call_id, outcome=outcome) if call_id in intents:
                    self._outcomes[_key(intents[call_id])].append(outcome)

    @classmethod
    def load(cls, path: Path) -> RecordedCalls:
        """Reads the file of a ListEntriesResponse. Raises ConfigurationError."""
        try:
            listed = pb.ListEntriesResponse.FromString(path.read_bytes())
            return cls(entries_to_domain(listed.entries))
        except (OSError, DecodeError, ValueError) as error:
            raise ConfigurationError([f"TENURE_WORKER_RECORDED_CALLS_FILE: {path}: {error}"]) from error

    def outcome(self, intent: ToolIntent, repeat: int) -> Outcome:
        """Returns the recorded outcome of the call. `repeat`: how often the same call was made before, from 0."""
        recorded = self._outcomes.get(_key(intent))
        if not recorded:
            return Outcome(OutcomeStatus.FAILED, NOT_RECORDED)
        outcome = recorded[min(repeat, len(recorded) - 1)]
        return replace(outcome, output=None, output_path="", call_attempt=0)  # no file is in the replay's workspace


def _key(intent: ToolIntent) -> tuple[str, str]:
    try:
        arguments = json.dumps(json.loads(intent.arguments_json or "{}"), sort_keys=True)
    except ValueError:
        arguments = intent.arguments_json
    return intent.tool, arguments


class RecordedTools(ToolsClient):
    """Answers the calls of one task from the record.

    Only fences reach the tool service, because the end of a task needs them.
    """

    def __init__(self, channel: TenureChannel, recorded: RecordedCalls) -> None:
        super().__init__(channel)
        self._recorded = recorded
        self._made: dict[tuple[str, str], list[str]] = defaultdict(list)

    async def list_tools(self, token: token_pb2.FencingToken) -> ToolsDefined:  # noqa: ARG002  the recorded ones
        """Returns the tools that the recorded run had."""
        return self._recorded.tools

    async def digest_files(self, token: token_pb2.FencingToken, paths: Sequence[str]) -> dict[str, FileDigest]:  # noqa: ARG002
        """Returns none: a replay writes no files."""
        return {}

    async def execute(
        self,
        token: token_pb2.FencingToken,  # noqa: ARG002
        intent: ToolIntent,
        on_event: Callable[[], None],
        limits: CallLimits,  # noqa: ARG002  nothing is executed
        resolution: Resolution | None,  # noqa: ARG002
        own: OwnCall | None = None,  # noqa: ARG002
    ) -> Outcome:
        """Returns the recorded outcome, or an error for the model to read."""
        on_event()
        made = self._made[_key(intent)]
        if intent.call_id not in made:
            made.append(intent.call_id)
        return self._recorded.outcome(intent, made.index(intent.call_id))


class ReplayLoop(TaskLoop):
    """The loop of an agent, with calls that would begin a wait answered like all others."""

    async def _execute_calls(self, move: ExecuteTools) -> Transition | None:
        return await super()._execute_calls(replace(move, intents=(*move.intents, *move.asks), asks=()))
