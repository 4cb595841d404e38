"""What a control function is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tenure.domain.tools import Outcome

STEP_TIMEOUT_SECONDS: Final = 600.0


class Work(Protocol):
    """One task's work. Steps and calls follow one another: a second one begun meanwhile is a RuntimeError.

    All of them raise CancelledError when the task is to end, its worker drains or has lost it: let it pass.
    """

    @property
    def task_id(self) -> str:
        """The task."""

    @property
    def key(self) -> str:
        """The name of the step or call begun last, everywhere and for ever: an idempotency key for its effects."""

    async def step(
        self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> Any:
        """What `run(*args)` came to, as JSON gives it back; recorded before this returns, and answered from the record
        ever after. A function that is no coroutine runs in a thread, which nobody can stop.

        `run` is made again when its worker dies before the record: at least once. Raises StepFailed for what it raised.
        """

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """What the tool said. Written down, fenced and executed like an agent's call: its effect class holds.

        `wait_external`, `ask_user`, `request_approval` and `spawn_sub_agents` wait as they do for agents: the function
        is let go, and begun again with the answer. Raises ToolFailed when the call did not succeed.
        """

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        """The outcomes of these calls, made in parallel, whatever they are."""


Function = Callable[[Work, Any], Awaitable[Any]]
"""A coroutine function of the work and what the task was given. What it returns is the task's result, as JSON."""
