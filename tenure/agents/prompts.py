"""Makes the beginning of an agent's run from a task: its prompt, and the value that its tools share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from tenure.agents.functions import InputMismatch

FromInput = Callable[[Any], Any]
"""Makes a value from the task's input, in each execution. May be a coroutine function."""


def prompt_of(agent: str, goal: str, given: Any) -> str:
    """Returns the task's goal; without one, its input. Raises InputMismatch for a task without both."""
    prompt = goal if goal.strip() else given
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if prompt is None or isinstance(prompt, str):
        raise InputMismatch(f"the task has no goal for the agent {agent}: submit one")
    return json.dumps(prompt, ensure_ascii=False)


async def made_from(make: FromInput, given: Any) -> Any:
    """Returns the value for the input."""
    made = make(given)
    return await made if inspect.isawaitable(made) else made
