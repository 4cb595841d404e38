"""Reading the answer to Open: a history of any length arrives, in as many streams as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire import opened
from tenure.wire.opened import OpenStream

LENGTH = 10


class Service:
    """Answers Open with pages of one entry. `breaks`: a stream breaks off after as many pages, or raises the error."""

    def __init__(self, *breaks: int | Exception, kind: type[Stream] | None = None) -> None:
        self.breaks, self.kind = list(breaks), kind or Stream
        self.streams: list[Stream] = []

    def start(self, after: int) -> Stream:
        end = self.breaks.pop(0) if self.breaks else LENGTH + 1
        self.streams.append(self.kind(after, end))
        return self.streams[-1]


class Stream:
    def __init__(self, after: int, end: int | Exception) -> None:
        self.after, self.end = after, end
        self.has_header = self.is_cancelled = False

    async def read(self) -> object:
        if isinstance(self.end, Exception):
            raise self.end
        if not self.has_header:
            self.has_header = True
            return pb.OpenResponse(header=pb.OpenHeader(task=task_pb2.Task(sequence=LENGTH), next_commit_number=3))
        if self.end == 0:
            raise Unavailable("the stream broke")
        if self.after == LENGTH:
            return grpc.aio.EOF
        self.after, self.end = self.after + 1, self.end - 1
        return pb.OpenResponse(page=pb.EntryPage(entries=[ledger_pb2.Entry(sequence=self.after)]))

    def cancel(self) -> None:
        self.is_cancelled = True


class Taken(list[int]):
    def take(self, page: Sequence[ledger_pb2.Entry]) -> None:
        self.extend(entry.sequence for entry in page)


async def read(service: Service, taken: Taken, long_opens: asyncio.Semaphore | None = None) -> pb.OpenHeader:
    return await OpenStream(service.start, taken.take, long_opens or asyncio.Semaphore(1)).read()


async def test_a_broken_stream_resumes_after_its_last_page() -> None:
    service, taken = Service(2, 5), Taken()
    header = await read(service, taken)
    assert (header.next_commit_number, taken) == (3, list(range(1, LENGTH + 1)))
    assert len(service.streams) == 3
    assert all(stream.is_cancelled for stream in service.streams)


async def test_a_stream_without_a_new_page_is_an_error() -> None:
    service, taken = Service(4, 0), Taken()
    stream = OpenStream(service.start, taken.take, asyncio.Semaphore(1))
    with pytest.raises(Unavailable):
        await stream.read()
    await stream.read()
    assert taken == list(range(1, LENGTH + 1))


async def test_a_refusal_is_raised_at_once() -> None:
    service = Service(4, StaleEpoch(presented=1, current=2))
    with pytest.raises(StaleEpoch):
        await read(service, Taken())
    assert len(service.streams) == 2


async def test_a_silent_stream_is_given_up_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "PAGE_SECONDS", 0.05)

    class Silent(Stream):
        async def read(self) -> object:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    service = Service(kind=Silent)
    with pytest.raises(Unavailable) as refused:
        await read(service, Taken())
    assert (refused.value.reason, service.streams[0].is_cancelled) == ("TIMEOUT", True)


async def test_concurrent_long_histories_are_bounded() -> None:
    gate, long_opens = asyncio.Semaphore(1), asyncio.Semaphore(1)
    await gate.acquire()
    first, second = Taken(), Taken()

    class Held(Stream):
        async def read(self) -> object:
            if self.after == LENGTH // 2:
                async with gate:
                    return await super().read()
            return await super().read()

    readings = [asyncio.create_task(read(Service(kind=Held), first, long_opens))]
    while len(first) < LENGTH // 2:
        await asyncio.sleep(0)
    readings.append(asyncio.create_task(read(Service(), second, long_opens)))
    while len(second) < 1:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(second) == 1  # its first page, which tells that more follow
    gate.release()
    await asyncio.gather(*readings)
    assert len(first) == len(second) == LENGTH
