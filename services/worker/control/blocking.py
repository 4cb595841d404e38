"""Plain functions as steps: in a thread each, so that they stop nobody else's work."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What `run(*arguments)` comes to. Cancelled, it stops waiting; a thread goes on, and its result is forgotten."""
    if inspect.iscoroutinefunction(run):
        return await run(*arguments)
    result = await _in_thread(run, arguments)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """A thread of its own that does not keep the process: a step that hangs must not hold up a drain."""
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
        except BaseException as raised:  # noqa: BLE001  handed over, whatever it is
            error = RuntimeError(f"{raised!r}") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"step {getattr(run, '__name__', '')}", daemon=True).start()
    return await ended
