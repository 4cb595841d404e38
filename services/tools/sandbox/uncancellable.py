"""Runs clean-up work that a cancellation must not interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def uncancellable(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Awaits `work` to its end and returns its result; raises a cancellation that arrived meanwhile only afterwards.

    Only for work of bounded duration.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
