"""Reads the answer to Open page by page. A history of any length arrives as long as pages arrive.

    opening = OpenStream(lambda after: stub.Open(request_after(after), timeout=OPEN_SECONDS), take, long_opens)
    header = await retrying(opening.read, TRIES)

Each try goes on after the last entry that was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc

from tenure.domain.errors import TryLater, Unavailable
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2

PAGE_SECONDS: Final = 15.0
"""How long a page may take. A page has less than 1 MiB, unless one entry alone is larger."""
OPEN_SECONDS: Final = 900.0
"""The deadline of one stream. A history that takes longer goes on with the next one."""
LONG_OPENS: Final = 4
"""How many histories of more than one page a process reads at once: more would only make each of them slower."""

Take = Callable[[Sequence[ledger_pb2.Entry]], None]


class OpenStream:
    """The history of one task. `take` gets each entry once, in order; `start` opens a stream after a sequence.

    `long_opens`: bounds the histories of more than one page that are read at once.
    """

    def __init__(self, start: Callable[[int], Any], take: Take, long_opens: asyncio.Semaphore) -> None:
        self._start, self._take, self._long_opens = start, take, long_opens
        self._after = 0

    async def read(self) -> pb.OpenHeader:
        """Opens the task and reads its history to the end. A stream that breaks off after a new page is opened again.

        Raises TryLater and PeerFailed when a stream breaks off without a new page; then call this again.
        """
        while True:
            before = self._after
            try:
                return await self._read_stream()
            except (TryLater, PeerFailed):
                if self._after == before:
                    raise

    async def _read_stream(self) -> pb.OpenHeader:
        stream = self._start(self._after)
        try:
            first = await _next_part(stream)
            if first is None or not first.HasField("header"):
                raise _cut_off()
            async with AsyncExitStack() as stack:
                is_first = True
                while (part := await _next_part(stream)) is not None:
                    if entries := part.page.entries:
                        self._take(entries)
                        self._after = entries[-1].sequence
                    if is_first and self._after < first.header.task.sequence:
                        await stack.enter_async_context(self._long_opens)
                    is_first = False
        finally:
            stream.cancel()
        if self._after != first.header.task.sequence:
            raise _cut_off()
        header: pb.OpenHeader = first.header
        return header


async def _next_part(stream: Any) -> pb.OpenResponse | None:
    """Returns the next part, or None at the end of the stream."""
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            part = await stream.read()
    except TimeoutError:
        message = f"the ledger sent no page of the history within {PAGE_SECONDS:g} s"
        raise Unavailable(message, reason="TIMEOUT") from None
    return None if part is grpc.aio.EOF else part


def _cut_off() -> Unavailable:
    return Unavailable("the answer to Open is incomplete: open the task again", reason="CUT_OFF")
