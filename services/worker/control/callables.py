"""Calls the functions of steps. Each plain function runs in a thread, so that it blocks no other task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Returns the result of `run(*arguments)`.

    Cancellation ends the wait; the thread goes on and its result is dropped.
    """
    if inspect.iscoroutinefunction(run):
        return await run(*arguments)
    result = await _in_thread(run, arguments)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Runs a function in a daemon thread of its own, so that a hanging step cannot hold up a drain."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(run, *arguments)
        except BaseException as raised:  # noqa: BLE001  handed to the waiting coroutine, whatever it is
            error = RuntimeError(f"{raised!r}") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"step {getattr(run, '__name__', '')}", daemon=True).start()
    return await ended
