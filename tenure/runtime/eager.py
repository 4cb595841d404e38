"""Asyncio tasks that make their first step at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def begin_now(work: Coroutine[Any, Any, _Result], *, name: str) -> asyncio.Task[_Result]:
    """Returns a task that has made its first step: work that does not wait is done, at no turn of the event loop.

    Python 3.11 has no such tasks: there the first step is made in the next turn.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=asyncio.get_running_loop(), name=name, eager_start=True)
    return asyncio.create_task(work, name=name)
