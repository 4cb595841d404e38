"""Makes the beginning of an agent's run from a task: its prompt, and the value that its tools share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from tenure.agents.functions import InputMismatch
from tenure.control.work import Work
from tenure.domain.images import with_files

FromInput = Callable[[Any], Any]
"""Makes a value from the task's input, in each execution. May be a coroutine function."""


def prompt_of(agent: str, work: Work, given: Any) -> str:
    """Returns the task's goal, or else its input, and the names of its files. Raises InputMismatch without both."""
    prompt = work.goal if work.goal.strip() else given
    if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
        raise InputMismatch(f"the task has no goal for the agent {agent}: submit one")
    return with_files(prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False), work.files)


async def made_from(make: FromInput, given: Any) -> Any:
    """Returns the value for the input."""
    made = make(given)
    return await made if inspect.isawaitable(made) else made
