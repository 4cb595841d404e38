"""Cleaning up that has to be done to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def uncancellable(work: Coroutine[Any, Any, _Result]) -> _Result:
    """For what takes a bounded time: a cancellation does not cut it short, it goes on afterwards."""
    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return doing.result()
