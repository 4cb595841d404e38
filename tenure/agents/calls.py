"""Gives the code of a tool the call that it runs for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tenure.control.own_tools import OwnToolContext

_CALL: ContextVar[OwnToolContext | None] = ContextVar("tenure.agents.tool_call", default=None)


def tool_call() -> OwnToolContext:
    """Returns the call that this tool runs for: `task_id`, `call_id`, `call_attempt`, `idempotency_key`, `epoch`.

    `idempotency_key` is the same in each attempt of the call: hand it to the system that the effect happens in.
    `emit(text)` shows progress to the watchers of the task. Raises RuntimeError outside of a recorded tool.
    """
    call = _CALL.get()
    if call is None:
        raise RuntimeError(
            "tool_call() works only in a recorded tool of a durable agent: this code runs outside of a task, or in a "
            "tool with effect=None"
        )
    return call


@contextmanager
def running_call(call: OwnToolContext) -> Iterator[None]:
    """Marks the code of a tool call."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)
