"""The event loop of all SyncClients of a process: one thread that runs it, and calls into it from other threads.

The synchronous client is a facade on the asynchronous one, so there is one implementation of retries, resumed streams
and certificates that change, and both clients behave alike. The loop has a thread of its own: a SyncClient works in a
notebook, whose main thread runs a loop already, and in the threads of a web server. All SyncClients share one loop.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import select
import selectors
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.channels import suspend_channels

T = TypeVar("T")


_END: Final = object()


class LoopThread:
    """An event loop in a daemon thread. It stops before the interpreter does: later calls would wait for ever."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._process_id = os.getpid()
        self._is_stopped = False
        self._run()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Cancels what still runs, and ends the thread."""
        if self._is_stopped or self._process_id != os.getpid():
            return
        self._is_stopped = True
        self._halt(_cancel_others())

    def start(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Runs `work` in the loop and returns its future. Raises RuntimeError in the loop's own thread."""
        if self._is_stopped:
            raise Unavailable("the interpreter ends", reason="CLIENT_CLOSED")

        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return threading.current_thread() is self._thread

    def pause(self, disconnect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `disconnect` and ends the thread, so that the process can be forked. What runs waits for `resume`."""
        if not self._is_stopped:
            self._halt(disconnect())

    def resume(self) -> None:
        """Continues after a `pause`."""
        if not self._is_stopped:
            self._run()

    def abandon(self) -> None:
        """Closes the loop in the child of a fork. What runs continues only in the parent."""
        if hasattr(select, "epoll") and isinstance(self._selector, selectors.EpollSelector):
            with select.epoll() as own:  # both processes have one epoll instance, which must stay as it is
                os.dup2(own.fileno(), self._selector.fileno(), inheritable=False)
        _abandoned.extend(asyncio.all_tasks(self._loop))  # kept: their `finally` blocks are not for this process
        for task in _abandoned:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  as asyncio.gather does
        self._loop.close()

    def _run(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_forever, name="tenure-client", daemon=True)
        self._thread.start()

    def _halt(self, last: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(last, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_abandoned: Final[list[asyncio.Task[Any]]] = []


class LoopCalls:
    """The calls of one SyncClient. `close` ends those that still run; their threads get Unavailable (CLIENT_CLOSED)."""

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._has_ended = False
        _shared.calls.add(self)

    def run(self, work: Callable[[], Awaitable[T]], *, begun: bool = False) -> T:
        """Returns what `work` returns in the loop. An exception in the waiting thread, as by Ctrl-C, cancels it.

        `begun`: `work` continues a call that began before; it does not run after `end`.
        """
        if _shared.is_current():
            raise RuntimeError("a SyncClient cannot be used in its own event loop, for example in api_key")
        with _shared.lock:  # so that `end` finds each call that it does not prevent
            if begun and self._has_ended:
                raise _closed()
            future = _shared.thread().start(work)
            self._running.add(future)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with _shared.lock:
                self._running.discard(future)

    def iterate(self, make: Callable[[], AsyncGenerator[T]]) -> Iterator[T]:
        """Yields what an asynchronous generator yields in the loop, and closes it at the end."""
        generator, process_id = make(), os.getpid()
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
                if os.getpid() != process_id:
                    raise RuntimeError("this iteration began before this process was forked: begin another one")
                item = self.run(next_item, begun=True)
        finally:
            if os.getpid() == process_id:
                with suppress(Unavailable):  # the client was closed meanwhile, and with it the generator
                    self.run(close)

    def forget(self) -> None:
        """Forgets the calls that run only in the parent of this process."""
        self._running.clear()

    def end(self) -> None:
        """Cancels the calls that still run, and ends the iterations."""
        with _shared.lock:
            self._has_ended = True
            running = list(self._running)
        for future in running:
            future.cancel()


class _Shared:
    """The loop thread of this process, and what a fork does to it.

    gRPC does not work in a process that was forked while a thread ran in it. So nothing of it runs during a fork: its
    channels are closed and the loop stands still. Afterwards they open again in the parent, where calls that ran are
    repeated as after a lost connection, and in the child at its first call.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: WeakSet[LoopCalls] = WeakSet()
        self._thread: LoopThread | None = None
        self._refusal = ""
        self._has_threads = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def is_current(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return self._thread is not None and self._thread.is_current

    def thread(self) -> LoopThread:
        """Returns the loop thread, under the lock. Raises RuntimeError in a child in which gRPC cannot work."""
        if self._refusal:
            raise RuntimeError(self._refusal)
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def _before_fork(self) -> None:
        if self.is_current():
            return
        self.lock.acquire()
        if self._thread is None:
            return
        self._thread.pause(_disconnect)
        if _has_threads():
            gc.collect()  # a cycle may keep a call
            self._thread.resume()
            self._thread.pause(_disconnect)
        self._has_threads = _has_threads()

    def _after_in_parent(self) -> None:
        if self.is_current():
            return
        if self._thread is not None:
            self._thread.resume()
        self.lock.release()

    def _after_in_child(self) -> None:
        if self.is_current():
            self._refusal = _FORKED_INSIDE
            return
        if self._thread is not None:
            self._thread.abandon()
            self._refusal = _GRPC_RAN if self._has_threads else ""
        self._thread = None
        for calls in self.calls:
            calls.forget()
        self.lock.release()


async def _disconnect() -> None:
    give_up_at = time.monotonic() + _DISCONNECT_SECONDS
    while _has_threads() and time.monotonic() < give_up_at:
        await suspend_channels()  # again, when a call that ended was repeated meanwhile
        await asyncio.sleep(0.001)


def _has_threads() -> bool:
    """Whether a thread of gRPC waits for events: it ends with the last channel and the last call of grpc.aio."""
    return any("(_poll_wrapper)" in thread.name for thread in threading.enumerate())


_DISCONNECT_SECONDS: Final = 2.0
"""For calls to end, before a fork. Longer than a moment only when someone else uses grpc.aio in this process."""
_GRPC_RAN: Final = (
    "gRPC still ran in this process when it was forked, so it cannot run in the child: close each asyncio Client, and "
    "end each use of grpc.aio of your own, before the fork"
)
_FORKED_INSIDE: Final = "this process was forked in the event loop of SyncClients, for example in api_key: use exec"
_shared: Final = _Shared()


def _closed() -> Unavailable:
    return Unavailable("the client was closed during the call", reason="CLIENT_CLOSED")


class SyncStubs:
    """The gRPC stubs for synchronous code: `raw.tasks.GetTask(request)` returns the response, a stream its messages.

    The stubs are `tasks`, `admin`, `leases`, `schedules`, `tenants`, `webhooks`, `api_keys`, `approvals`, `agents` and
    `audit`.
    """

    def __init__(self, calls: LoopCalls, client: Callable[[], Any]) -> None:
        self._calls, self._client = calls, client

    def __getattr__(self, stub: str) -> Any:
        return _SyncStub(self._calls, lambda: getattr(self._client(), stub))


class _SyncStub:
    """One stub. Its methods have gRPC's arguments."""

    def __init__(self, calls: LoopCalls, stub: Callable[[], Any]) -> None:
        self._calls, self._stub = calls, stub

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*request: Any, **options: Any) -> Any:
            async def begin() -> Any:
                begun = getattr(self._stub(), method)(*request, **options)
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
