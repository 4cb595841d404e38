"""Keeps submits on disk while the gateway is away, and sends them when it is back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar, Unpack
from uuid import uuid4

from tenure.domain.errors import SOURCE_BUSY, PermissionDenied, TenureError, TryLater, Unauthenticated
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.runtime.security.tls import ClientTls
from tenure.sdk.client import Client
from tenure.sdk.errors import ServerFailed, api_errors
from tenure.sdk.loop_thread import LoopCalls
from tenure.sdk.spool_file import KeptSubmit, SpooledSubmit, SpoolFile, decoded_request
from tenure.sdk.submit_options import FunctionOptions, SubmitOptions, argument_of
from tenure.sdk.submit_request import function_request, submit_request
from tenure.v1 import task_service_pb2 as api

T = TypeVar("T")

MAX_SUBMITS: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
WAIT_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
"""How often a spool looks for submits that another process with the same file has kept."""
SENT_AT_ONCE: Final = 16
RETRY: Final = RetryPolicy(max_attempts=2**31, initial_seconds=0.5, factor=2.0, cap_seconds=60.0, jitter=Jitter.EQUAL)
_log: Final = logging.getLogger("tenure.spool")


class Spool:
    """Submits tasks, and keeps on disk what the gateway cannot take now.

        async with Client() as client, Spool(client, "tenure.spool") as spool:
            await spool.submit("Refund order 7", agent="support", request_id="refund-7")

    `path`: a file on a local disk, which processes may share. `wait_seconds`: how long a submit waits for the gateway.
    `max_submits`, `max_bytes`: what the file holds at most. A submit is sent with its request id until the gateway has
    answered, so it is one task. A process that ends leaves the file to the next one.

    Raises Unavailable (SPOOL_FAILED) for a file that cannot be used.
    """

    def __init__(
        self,
        client: Client,
        path: str | Path,
        *,
        wait_seconds: float = WAIT_SECONDS,
        max_submits: int = MAX_SUBMITS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._client, self._file = client, SpoolFile(Path(path))
        self._wait_seconds, self._max_submits, self._max_bytes = wait_seconds, max_submits, max_bytes
        self._kept = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._problem = ""

    async def __aenter__(self) -> Self:
        self._sending = asyncio.create_task(self._send_always(), name="tenure spool")
        return self

    async def __aexit__(self, *_: object) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    async def submit(
        self,
        goal: str,
        *,
        agent: str = "",
        input: Any = None,  # noqa: A002  the contract's word, and a keyword at the call
        **options: Unpack[SubmitOptions],
    ) -> str | SpooledSubmit:
        """Submits a goal as `Client.submit` does. Returns the id of the task, or the submit that the disk keeps.

        Raises the errors of `Client.submit` but Unavailable, LimitReached (SPOOL_FULL) and Unavailable (SPOOL_FAILED),
        and AlreadyExists (REQUEST_ID_REUSED) when the disk keeps another submit with the request id.
        """
        return await self._send_or_keep(submit_request(goal, _identified(options), agent=agent, input=input))

    async def submit_function(
        self,
        function: str,
        input: Any = None,  # noqa: A002  the contract's word, and a keyword at the call
        *,
        description: str = "",
        **options: Unpack[FunctionOptions],
    ) -> str | SpooledSubmit:
        """Submits a control function as `Client.submit_function` does. Returns and raises what `submit` does."""
        return await self._send_or_keep(function_request(function, input, description, _identified(options)))

    async def kept(self) -> list[SpooledSubmit]:
        """Returns the submits in the file, the oldest first, also those that the gateway refused."""
        return await asyncio.to_thread(self._file.listed)

    async def forget(self, request_id: str) -> None:
        """Deletes a submit from the file, for example one that the gateway refused."""
        await asyncio.to_thread(self._file.forget, request_id)

    async def _send_or_keep(self, request: api.SubmitTaskRequest) -> str | SpooledSubmit:
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await self._send(request)
        except (
            TimeoutError,
            TryLater,
            ServerFailed,
        ) as error:  # it may have arrived: then its request id finds the task
            _log.warning("the gateway is away, a submit is kept on disk: %s", str(error) or type(error).__name__)
        await asyncio.to_thread(self._file.keep, request, self._max_submits, self._max_bytes)
        self._kept.set()
        return SpooledSubmit(request.request_id)

    async def _send(self, request: api.SubmitTaskRequest) -> str:
        with api_errors("", argument_of):
            return (await self._client.raw.submit(request.spec.goal, request=request)).task_id

    async def _send_always(self) -> None:
        """Sends kept submits until cancelled. Whatever fails is logged and tried again."""
        while True:
            self._kept.clear()
            try:
                due = await asyncio.to_thread(self._file.due, SENT_AT_ONCE)
                for one in due:
                    await self._send_kept(one)
            except Exception as error:  # noqa: BLE001  as the docstring says
                self._note(error)
                due = []
            if not due:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._kept.wait()

    async def _send_kept(self, kept: KeptSubmit) -> None:
        request = decoded_request(kept.request)
        if request is None:
            await self._refuse(kept, "the spool's file is damaged: this row is not a submit")
            return
        try:
            await self._send(request)
        except Exception as error:  # noqa: BLE001  a key of the caller's own may raise anything
            if not _may_pass(error):
                await self._refuse(kept, str(error) or type(error).__name__)
                return
            if getattr(error, "reason", "") != SOURCE_BUSY:  # the other submits do not wait for it
                self._note(error)
            retry_after = getattr(error, "retry_after_seconds", None)
            seconds = RETRY.wait_seconds(kept.attempts + 1, random.random(), retry_after)
            await asyncio.to_thread(self._file.put_off, kept, seconds)
        else:
            self._problem = ""
            await asyncio.to_thread(self._file.sent, kept)

    async def _refuse(self, kept: KeptSubmit, refusal: str) -> None:
        _log.error("a kept submit is refused", extra={"request_id": kept.request_id, "error": refusal})
        await asyncio.to_thread(self._file.refuse, kept, refusal)

    def _note(self, error: Exception) -> None:
        """Logs why submits wait, once until it changes."""
        problem = str(error) or type(error).__name__
        if problem != self._problem:
            stack = None if isinstance(error, TenureError) else error
            _log.warning("kept submits wait: %s", problem, exc_info=stack)
        self._problem = problem


def _may_pass(error: Exception) -> bool:
    """Whether the gateway may take the same submit later: it is away, it refuses the key, or the source is busy."""
    if isinstance(error, TenureError) and error.reason != SOURCE_BUSY:
        return isinstance(error, Unauthenticated | PermissionDenied | TryLater | ServerFailed)
    return True


def _identified(options: Any) -> Any:
    return {**options, "request_id": options.get("request_id") or str(uuid4())}


class SyncSpool:
    """The same for synchronous code, from any thread. It has a client of its own, with the arguments of SyncClient.

    with SyncSpool("tenure.spool") as spool:
        spool.submit("Refund order 7", agent="support", request_id="refund-7")
    """

    def __init__(
        self,
        path: str | Path,
        address: str | None = None,
        *,
        api_key: str | Callable[[], str] | None = None,
        tenant: str | None = None,
        tls: ClientTls | bool | None = None,
        wait_seconds: float = WAIT_SECONDS,
        max_submits: int = MAX_SUBMITS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._client, self._calls = Client(address, api_key=api_key, tenant=tenant, tls=tls), LoopCalls()
        bounds = {"max_submits": max_submits, "max_bytes": max_bytes}
        self._spool = Spool(self._client, path, wait_seconds=wait_seconds, **bounds)

    def __enter__(self) -> Self:
        self._calls.run(self._spool.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops sending and closes the connection. The file keeps what is not sent."""

        async def close() -> None:
            try:
                await self._spool.__aexit__()
            finally:
                await self._client.close()

        self._calls.end(close)

    def submit(
        self,
        goal: str,
        *,
        agent: str = "",
        input: Any = None,  # noqa: A002  as in Spool
        **options: Unpack[SubmitOptions],
    ) -> str | SpooledSubmit:
        """Does the same as `Spool.submit`."""
        return self._calls.run(lambda: self._spool.submit(goal, agent=agent, input=input, **options))

    def submit_function(
        self,
        function: str,
        input: Any = None,  # noqa: A002  as in Spool
        *,
        description: str = "",
        **options: Unpack[FunctionOptions],
    ) -> str | SpooledSubmit:
        """Does the same as `Spool.submit_function`."""
        return self._calls.run(lambda: self._spool.submit_function(function, input, description=description, **options))

    def kept(self) -> list[SpooledSubmit]:
        """Does the same as `Spool.kept`."""
        return self._calls.run(self._spool.kept)

    def forget(self, request_id: str) -> None:
        """Does the same as `Spool.forget`."""
        self._calls.run(lambda: self._spool.forget(request_id))
