"""Holds the conversation of a task: users' messages reach the agent at its next model call, or after its answer.

Only the agent that the task is for reads them, not those that its tools run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenure.agents.execution import Execution

History = TypeVar("History")


async def new_message(current: Execution) -> str:
    """Returns the messages of users since the last look as one message; "": there are none."""
    async with current.lock:
        return "\n\n".join(await current.work.new_messages())


async def answer_messages(
    current: Execution, prompt: str, run: Callable[[str, History | None], Awaitable[tuple[Any, History]]]
) -> Any:
    """Returns the agent's answer to the newest message. `run`: returns the answer to a prompt, and the history then.

    A message that comes after an answer begins another run, with the history so far. A fork has the messages of the
    other task, so its first runs are those of that task, from the record.
    """
    answer, history = await run(prompt, None)
    while message := await new_message(current):
        answer, history = await run(message, history)
    return answer
