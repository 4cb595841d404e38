"""The event loop of all SyncClients of a process: one thread that runs it, and calls into it from other threads.

The synchronous client is a facade on the asynchronous one, so there is one implementation of retries, resumed streams
and certificates that change, and both clients behave alike. The loop has a thread of its own: a SyncClient works in a
notebook, whose main thread runs a loop already, and in the threads of a web server. All SyncClients share one loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.channels import UsedBeforeFork, refuse_after_fork

T = TypeVar("T")


_END: Final = object()


class LoopThread:
    """An event loop in a daemon thread. It stops before the interpreter does: later calls would wait for ever."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.process_id = os.getpid()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="tenure-client", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Cancels what still runs, and ends the thread."""
        if self._is_stopped or self.process_id != os.getpid():
            return
        self._is_stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, in which it cannot wait for the loop."""
        return threading.current_thread() is self._thread

    def start(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Runs `work` in the loop and returns its future."""
        if self._is_stopped:
            raise Unavailable("the interpreter ends", reason="CLIENT_CLOSED")

        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_shared: Final[list[LoopThread]] = []
_lock: Final = threading.RLock()
"""It may be taken twice: the garbage collector may close an iteration anywhere."""
if hasattr(os, "register_at_fork"):  # so that no thread holds the lock in a child
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _shared_thread() -> LoopThread:
    """Returns the loop thread of this process, under the lock."""
    if not _shared or _shared[0].process_id != os.getpid():
        _shared[:] = [LoopThread()]
    return _shared[0]


class LoopCalls:
    """The calls of one SyncClient. `end` ends those that still run; their threads get Unavailable (CLIENT_CLOSED)."""

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._has_ended = False

    def run(self, work: Callable[[], Awaitable[T]], *, begun: bool = False) -> T:
        """Returns what `work` returns in the loop. An exception in the waiting thread, as by Ctrl-C, cancels it.

        `begun`: `work` continues a call that began before; it does not run after `end`.
        Raises UsedBeforeFork in a child of a process that had already called Tenure, and RuntimeError in the loop's own
        thread.
        """
        refuse_after_fork()
        with _lock:  # so that `end` finds each call that it does not prevent
            if begun and self._has_ended:
                raise _closed()
            thread = _shared_thread()
            if thread.is_current:
                raise RuntimeError("a SyncClient cannot be used in its own event loop, for example in api_key")
            future = thread.start(work)
            self._running.add(future)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with _lock:
                self._running.discard(future)

    def iterate(self, make: Callable[[], AsyncGenerator[T]]) -> Iterator[T]:
        """Yields what an asynchronous generator yields in the loop, and closes it at the end."""
        generator = make()
        lock = asyncio.Lock()  # a cancelled item is still made in the loop when its thread already knows of the end

        async def next_item() -> object:
            async with lock:
                return await anext(generator, _END)

        async def close() -> None:
            async with lock:
                await generator.aclose()

        try:
            item = self.run(next_item)
            while item is not _END:
                yield cast("T", item)
                item = self.run(next_item, begun=True)
        finally:
            # The client was closed meanwhile, and with it the generator; or it belongs to the parent of this process.
            with suppress(Unavailable, UsedBeforeFork):
                self._finish(close)

    def _finish(self, close: Callable[[], Awaitable[None]]) -> None:
        """Runs `close`, and waits for its end, except where the garbage collector ends an iteration in the loop."""
        refuse_after_fork()
        with _lock:
            thread = _shared_thread()
            if thread.is_current:
                thread.start(close)
                return
        self.run(close)

    def end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Cancels the calls that still run, ends the iterations and runs `close`.

        In a child of a process that had already called Tenure it does nothing: the connection is the parent's.
        """
        with suppress(UsedBeforeFork):
            refuse_after_fork()
            with _lock:
                self._has_ended = True
                running = list(self._running)
            for future in running:
                future.cancel()
            self.run(close)


def _closed() -> Unavailable:
    return Unavailable("the client was closed during the call", reason="CLIENT_CLOSED")


class SyncStubs:
    """The gRPC stubs for synchronous code: `raw.tasks.GetTask(request)` returns the response, a stream its messages.

    The stubs are `tasks`, `admin`, `leases`, `schedules`, `tenants`, `webhooks`, `api_keys`, `approvals`, `agents` and
    `audit`.
    """

    def __init__(self, calls: LoopCalls, client: Callable[[], Awaitable[Any]]) -> None:
        self._calls, self._client = calls, client

    def __getattr__(self, stub: str) -> Any:
        return _SyncStub(self._calls, self._client, stub)


class _SyncStub:
    """One stub. Its methods have gRPC's arguments."""

    def __init__(self, calls: LoopCalls, client: Callable[[], Awaitable[Any]], stub: str) -> None:
        self._calls, self._client, self._stub = calls, client, stub

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*request: Any, **options: Any) -> Any:
            async def begin() -> Any:
                begun = getattr(getattr(await self._client(), self._stub), method)(*request, **options)
                return (None, await begun) if asyncio.iscoroutine(begun) else (begun, None)

            stream, response = self._calls.run(begin)
            return response if stream is None else self._calls.iterate(lambda: _messages(stream))

        return call


async def _messages(stream: Any) -> AsyncGenerator[Any]:
    try:
        async for message in stream:
            yield message
    finally:
        stream.cancel()
