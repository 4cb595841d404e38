"""Defines Work, the interface through which a control function runs steps, calls models and calls tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tenure.control.model_calls import ModelCallRequest, RunModelCall
from tenure.control.own_tools import OwnTool
from tenure.domain.entries import UserMessage
from tenure.domain.images import SubmittedFile
from tenure.domain.tools import Outcome

STEP_TIMEOUT_SECONDS: Final = 600.0
MAX_CALLS: Final = 64
"""The most tool calls of one step."""


class LookUp(str):
    """The name of a step that changes nothing. A replay with more of them than the record has the last result again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call that an earlier execution of the function made."""

    tool: str
    arguments_json: str


class Work(Protocol):
    """The steps, model calls and tool calls of one task. Only one may run at a time: a second raises RuntimeError.

    All methods raise CancelledError when the task ends, or its worker drains or has lost the claim. Do not catch it.
    """

    @property
    def task_id(self) -> str:
        """The id of the task."""

    @property
    def goal(self) -> str:
        """The goal of the task; may be empty."""

    @property
    def approve_tools(self) -> Collection[str]:
        """The tools whose calls wait for a person, as the submit says. Calls by `Work` wait without further ado."""

    @property
    def replay_model(self) -> str:
        """The model that a replay of this task's code names for its model calls; "" if it names none, and elsewhere."""

    @property
    def key(self) -> str:
        """The idempotency key of the last started step or call: globally unique, and the same in every repeat."""

    async def step(
        self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> Any:
        """Runs `run(*args)` and returns its result after a round trip through JSON.

        The result is recorded before this returns; a later execution of the function gets the recorded result. A `run`
        that is not a coroutine function runs in a thread, which cannot be stopped. Raises ResultLost if a recorded
        result was too large for the ledger, and is gone from the workspace.

        `run` runs at least once: again when its worker dies before the record. Raises StepFailed for an error in `run`.
        """

    async def gather(
        self, *steps: tuple[str, *tuple[Any, ...]], timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> list[Any]:
        """Runs up to 64 steps in parallel and returns their results in order.

        Each step is a tuple: its name, what it runs, and the arguments, as in `step`. Each has a `key` of its own. The
        results are recorded in the order of the steps, so a step may run again because one before it was not recorded.
        Raises StepFailed for the first step that failed, when all have ended.
        """

    async def call_model(self, name: str, request: ModelCallRequest, run: RunModelCall) -> Any:
        """Makes a model call under the task's budget and returns the result of its answer, after JSON.

        The tokens are reserved first; a denied reservation ends the task, or lets it wait, as an agent's does. Then
        `run` makes the call. Its usage, text and result are recorded before this returns; a later execution of the
        function gets the recorded result, without a reservation and without a call.

        `run` runs again, as the next attempt of the same call, when its worker dies before the record, and after an
        error that is retryable, as often as for agents. Raises StepFailed when no attempt is left, and for other
        errors.
        """

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Calls a tool and returns the content of its outcome. Raises ToolFailed when the call did not succeed.

        The call is recorded, fenced and executed like an agent's call, by its effect class. `wait_external`,
        `ask_user`, `request_approval` and `spawn_sub_agents` wait as they do for agents: the function is stopped, and
        started again with the answer.
        """

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        """Makes tool calls in parallel and returns their outcomes, successful or not, in the same order."""

    async def call_own_tools(self, calls: Sequence[tuple[OwnTool, Mapping[str, Any]]]) -> list[Outcome]:
        """Makes calls of own tools in parallel and returns their outcomes, successful or not, in the same order.

        Each call has an intent and a call record like the call of any other tool; the worker runs the coroutine. A call
        whose worker is lost runs again in the next owner with the same idempotency key, or is in doubt if its tool is
        UNSAFE.
        """

    async def recorded_calls(self) -> Sequence[RecordedCall]:
        """Returns the tool calls of the next step, if an earlier execution of the function made calls there.

        For libraries that make calls in parallel, and must make the same ones in the same step again.
        """

    @property
    def files(self) -> Sequence[SubmittedFile]:
        """The files that came with the submit."""

    async def read_file(self, file: SubmittedFile) -> bytes:
        """Returns the content of a file of the submit or of a message, the same in each execution.

        Raises ResultLost if the file is gone from the workspace, or another one now.
        """

    async def image_for(self, model: str, file: SubmittedFile) -> bytes | None:
        """Returns the content of an image; None: the model does not see images. Raises ResultLost."""

    async def new_messages(self) -> Sequence[UserMessage]:
        """Returns the messages that users have sent since the last look, which a later execution gets there again.

        Only agents get messages: the ledger refuses those to functions. A task does not succeed before its agent has
        read each message: the function begins again then.
        """


Function = Callable[[Work, Any], Awaitable[Any]]
"""A coroutine function that takes the work and the task's input. Its return value, as JSON, is the task's result."""
