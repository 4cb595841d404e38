"""The loop `replay`: an agent whose tool calls are answered from the record of another task, and never executed.

It drives a task as the loop `messages` does, with another model for example; control/replay.py drives a run of code as
the loop `control` does. Nothing happens outside: no call reaches the tool service, and no wait begins, so no person is
asked and no sub-agent is spawned. The answers of people, events and sub-agents are recorded outcomes of calls. Messages
of people are recorded too, each with the step that read it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import DecodeError

from services.worker.task_loop import TaskLoop
from services.worker.tools_client import CallLimits, OwnCall, ToolsClient
from tenure.domain.entries import Entry, ToolIntent, ToolsDefined, Transition, UserMessage
from tenure.domain.fold import ResumePoint
from tenure.domain.in_doubt import Resolution
from tenure.domain.next_action import ExecuteTools, next_action
from tenure.domain.outputs import FileDigest
from tenure.domain.progress import CallKey, call_key
from tenure.domain.replay import RecordedRun, messages_due
from tenure.domain.replay_of_code import RecordedCode
from tenure.domain.texts import MAX_PART_BYTES
from tenure.domain.tools import Outcome
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import token_pb2
from tenure.wire.ledger import entries_to_domain


def load_record(path: Path) -> list[Entry]:
    """Reads the file of a ListEntriesResponse. Raises ConfigurationError."""
    try:
        listed = tasks_pb.ListTaskEntriesResponse.FromString(path.read_bytes())
        return entries_to_domain(listed.entries)
    except (OSError, DecodeError, ValueError) as error:
        raise ConfigurationError([f"TENURE_WORKER_RECORDED_CALLS_FILE: {path}: {error}"]) from error


class RecordedTools(ToolsClient):
    """Answers the calls of one task from the record.

    Only fences, and files of the submit, reach the tool service. `folder`: has the images of the recorded tools and
    messages, and the large results. `code`: what else the record of a run of code answers.
    """

    def __init__(self, channel: TenureChannel, record: Sequence[Entry], folder: Path) -> None:
        super().__init__(channel)
        self.code = RecordedCode(record)
        self._run, self._folder = RecordedRun(record), folder
        self._made: dict[CallKey, list[str]] = defaultdict(list)

    def check_has_code(self, functions: Collection[str]) -> None:
        """Raises ConfigurationError if the worker does not have the code of the recorded run, or has needless code."""
        wanted = "" if self.code.control is None else self.code.control.function
        known, problem = ", ".join(sorted(functions)) or "none", ""
        if wanted and wanted not in functions:
            problem = (
                f"the recorded run is one of {wanted}, and this worker has no agent and no function of this name; it "
                f"has {known}: replay it with the program or the modules that have {wanted}"
            )
        if functions and not wanted:
            problem = f"the recorded run is one of an agent without code: replay it in a worker without {known}"
        if problem:
            raise ConfigurationError([problem])

    async def list_tools(self, token: token_pb2.FencingToken) -> ToolsDefined:  # noqa: ARG002  the recorded ones
        """Returns the tools that the recorded run had."""
        return self._run.tools

    async def digest_files(self, token: token_pb2.FencingToken, paths: Sequence[str]) -> dict[str, FileDigest]:  # noqa: ARG002
        """Returns none: a replay writes no files."""
        return {}

    async def read_content(self, token: token_pb2.FencingToken, path: str, offset: int) -> bytes:
        """Returns a part of an image of the recorded run, or of kept content of the replay's own task."""
        try:
            return await asyncio.to_thread(_part, self._folder / Path(path).name, offset)
        except FileNotFoundError:
            return await super().read_content(token, path, offset)

    async def execute(
        self,
        token: token_pb2.FencingToken,  # noqa: ARG002
        intent: ToolIntent,
        on_event: Callable[[], None],
        limits: CallLimits,  # noqa: ARG002  nothing is executed
        resolution: Resolution | None,  # noqa: ARG002
        own: OwnCall | None = None,
        *,
        needs_approval: bool = False,  # noqa: ARG002
    ) -> Outcome:
        """Returns the recorded outcome, or an error for the model to read."""
        on_event()
        return self._run.outcome(intent, self._repeat(intent), is_own=own is not None)

    def messages_due(self, point: ResumePoint) -> list[UserMessage]:
        """Returns the recorded messages that the agent is to read next, and that are not in the replay's ledger yet."""
        return messages_due(self._run, point, next_action(point))

    def _repeat(self, intent: ToolIntent) -> int:
        """Returns how often the task made the same call before this one."""
        made = self._made[call_key(intent)]
        if intent.call_id not in made:
            made.append(intent.call_id)
        return made.index(intent.call_id)


def _part(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(MAX_PART_BYTES)


class ReplayLoop(TaskLoop):
    """The loop of an agent, with calls that would begin a wait answered like all others."""

    async def _carry_out_next_action(self) -> Transition | None:
        """Carries out the next action, after the messages that the recorded run read in its next step."""
        tools = self._dependencies.tools
        assert isinstance(tools, RecordedTools), "a worker offers this loop with a record only"
        if due := tools.messages_due(self._point):
            self._pending += [(self._point.step, message) for message in due]
            await self._flush()
        return await super()._carry_out_next_action()

    async def _execute_calls(self, move: ExecuteTools) -> Transition | None:
        return await super()._execute_calls(unasked(move))


def unasked(move: ExecuteTools) -> ExecuteTools:
    """Returns the calls of a move without those that would begin a wait: the record has the answers to them, too."""
    return replace(move, intents=(*move.intents, *move.asks), asks=())
