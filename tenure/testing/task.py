"""A task of a test: the handle of the public client, with what a test asks besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tenure.domain.budget import TokenUsage
from tenure.domain.states import TERMINAL, TaskState
from tenure.sdk.events import (
    AssistantMessageEvent,
    AttemptLostEvent,
    Event,
    ModelAttemptEvent,
    ModelFailureEvent,
    ToolIntentEvent,
    ToolOutcomeEvent,
    TransitionEvent,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.domain.task import InputFile
    from tenure.sdk.sync_client import SyncTask
    from tenure.sdk.task_info import TaskInfo, TaskWait

T = TypeVar("T")
WAIT_SECONDS: Final = 60.0
"""How long a test waits for a task, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskModelCall:
    """A model call in a task's ledger. `ending`: ANSWERED, FAILED, LOST (with its worker) or OPEN.

    `text`: the answer, or the message of the failure. `usage`: what it was billed.
    """

    step: int
    attempt_number: int
    model: str
    ending: str = "OPEN"
    text: str = ""
    usage: TokenUsage = TokenUsage()


class TaskHandle(Generic[T]):
    """A task of a test. Every call but `id` and `story` lets the held tasks continue (see `Tenure.go`).

    `handle`: the public client's handle on the same task.
    """

    def __init__(self, handle: SyncTask[T], go: Callable[[], None]) -> None:
        self.handle, self._go = handle, go

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.handle.state}>"

    @property
    def id(self) -> str:
        """The task's id, a UUID."""
        return self.handle.id

    @property
    def info(self) -> TaskInfo:
        """The task as it is now."""
        self._go()
        return self.handle.refresh()

    @property
    def state(self) -> TaskState:
        """The state now."""
        return self.info.state

    @property
    def current_wait(self) -> TaskWait | None:
        """The wait for an answer now; None: the task does not wait for one."""
        return self.info.wait

    @property
    def model_calls(self) -> list[TaskModelCall]:
        """The task's model calls in the order in which they began, with failed and lost ones."""
        return model_calls_of(self.entries())

    def wait(self, *, timeout: float = WAIT_SECONDS) -> TaskInfo:
        """Waits until the task has ended, in any terminal state, and returns it.

        Raises TimeoutError, which says what the task did.
        """
        self._go()
        try:
            return self.handle.wait(timeout=timeout)
        except TimeoutError:
            raise TimeoutError(f"the task did not end within {timeout:g} s\n{self.story()}") from None

    def result(self, *, timeout: float = WAIT_SECONDS) -> TaskResult[T]:
        """Waits until the task has succeeded, and returns its result.

        Raises TaskEnded (TaskFailed, …) as the client, and TimeoutError, which says what the task did.
        """
        self.wait(timeout=timeout)
        return TaskResult(self.handle.result(timeout=timeout), self.handle.info)

    def wait_until(self, *states: TaskState | str, timeout: float = WAIT_SECONDS) -> TaskInfo:
        """Waits until the task is in one of these states, or was, and returns it. Raises TimeoutError.

        Raises AssertionError when the task ends in another state.
        """
        self._go()
        wanted = {TaskState(state.upper()) for state in states}
        try:
            return self.handle._calls.run(lambda: _until(self.handle, wanted, timeout))  # noqa: SLF001  one client
        except TimeoutError:
            names = " or ".join(sorted(wanted))
            raise TimeoutError(f"the task did not become {names} within {timeout:g} s\n{self.story()}") from None

    def entries(self) -> list[Event]:
        """Returns the entries of the ledger so far, the oldest first."""
        self._go()
        return list(self.handle.entries())

    def events(self) -> Iterator[Event]:
        """Yields the events of the task until it ends, as `SyncTask.events`."""
        self._go()
        return self.handle.events()

    def approve(self, wait: TaskWait | None = None, **options: Any) -> TaskInfo:
        """Approves what the task waits for; None: the current wait. Otherwise as `SyncTask.approve`."""
        self._go()
        return self.handle.approve(wait or self._wait(), **options)

    def deny(self, wait: TaskWait | None = None, *, reason: str = "", calls: Iterable[str] | None = None) -> TaskInfo:
        """Denies what the task waits for; None: the current wait. Otherwise as `SyncTask.deny`."""
        self._go()
        return self.handle.deny(wait or self._wait(), reason=reason, calls=calls)

    def answer(self, answer: str, wait: TaskWait | None = None) -> TaskInfo:
        """Answers what the task waits for; None: the current wait. Otherwise as `SyncTask.answer`."""
        self._go()
        return self.handle.answer(wait or self._wait(), answer)

    def send(self, text: str, *, files: Iterable[InputFile | Path] = ()) -> TaskInfo:
        """Sends a message to the agent, as `SyncTask.send`. The task may read it at its next model call."""
        self._go()
        return self.handle.send(text, files=files)

    def cancel(self, *, reason: str = "") -> TaskInfo:
        """Requests the cancel of the task."""
        self._go()
        return self.handle.cancel(reason=reason)

    def explain(self) -> tuple[str, ...]:
        """Returns lines for people: why the task is in its state, and what would change that."""
        self._go()
        return self.handle.explain()

    def story(self) -> str:
        """Returns what the task did, a line for each entry, and why it is in its state: for messages of failures."""
        lines = [f"task {self.id}:", *(f"  {line}" for line in story_of(self.handle.entries()))]
        return "\n".join([*lines, *(f"  {line}" for line in self.handle.explain())])

    def _wait(self) -> TaskWait:
        wait = self.current_wait
        if wait is None:
            raise AssertionError(f"the task does not wait for an answer\n{self.story()}")
        return wait


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[T]):
    """The result of a task that succeeded. `value`: in the type that was given to the submit."""

    value: T
    info: TaskInfo

    @property
    def text(self) -> str:
        """The agent's last text; of a function: what it returned, as JSON."""
        return self.info.result


async def _until(handle: SyncTask[Any], wanted: set[TaskState], timeout: float) -> TaskInfo:
    import asyncio

    task = handle._task  # noqa: SLF001  the asynchronous handle below
    async with asyncio.timeout(timeout):
        events = task.events(live=False)
        try:
            async for event in events:
                if not isinstance(event, TransitionEvent):
                    continue
                if event.state in wanted:
                    return await task.refresh()
                if event.state in TERMINAL:
                    raise AssertionError(f"the task ended as {event.state} ({event.reason}): {event.message}")
        finally:
            await events.aclose()
    raise AssertionError("the events of a task end with a terminal state")


def model_calls_of(entries: Iterable[Event]) -> list[TaskModelCall]:
    """Returns the model calls in a ledger."""
    calls: dict[tuple[int, int], TaskModelCall] = {}
    models: dict[tuple[int, int], str] = {}

    def settle(entry: AssistantMessageEvent | ModelFailureEvent | AttemptLostEvent, ending: str, text: str) -> None:
        key = (entry.step, entry.attempt_number)
        calls[key] = TaskModelCall(
            step=entry.step,
            attempt_number=entry.attempt_number,
            model=models.get(key, ""),
            ending=ending,
            text=text,
            usage=entry.usage,
        )

    for entry in entries:
        match entry:
            case ModelAttemptEvent(step=step, attempt_number=number, model=model):
                models[step, number] = model
                calls[step, number] = TaskModelCall(step=step, attempt_number=number, model=model)
            case AssistantMessageEvent(text=text):
                settle(entry, "ANSWERED", text)
            case ModelFailureEvent(message=message):
                settle(entry, "FAILED", message)
            case AttemptLostEvent():
                settle(entry, "LOST", "")
    return list(calls.values())


def story_of(entries: Iterable[Event]) -> Iterator[str]:
    """Yields a line for each entry."""
    for entry in entries:
        yield f"{entry.sequence:>4} {entry.kind}{_detail(entry)}"


def _detail(entry: Event) -> str:
    match entry:
        case TransitionEvent():
            return f" {entry.state} {entry.reason} {entry.message}".rstrip()
        case ModelAttemptEvent():
            return f" step {entry.step}, attempt {entry.attempt_number}, {entry.model}"
        case AssistantMessageEvent():
            return f" {entry.text[:60]!r}"
        case ModelFailureEvent():
            return f" {entry.error_class}: {entry.message[:100]}"
        case ToolIntentEvent():
            return f" {entry.call_id} {entry.tool}{_shortened(entry.arguments)}"
        case ToolOutcomeEvent():
            return f" {entry.call_id} {entry.status}: {entry.content[:60]!r}"
        case _:
            return f" step {entry.step}" if entry.step else ""


def _shortened(arguments: object) -> str:
    text = " ".join(f"{name}={value!r}" for name, value in arguments.items()) if isinstance(arguments, Mapping) else ""
    return f" {text[:80]}" if text else ""
