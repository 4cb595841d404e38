"""A stream of events goes on when the gateway's own watch fails, and ends when the gateway drains."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.http.streams import EventWatch
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.status import DRAINING
from tenure.v1 import task_service_pb2 as api


class Call:
    """A request whose watches answer in turn: the sequences of entries, then an error."""

    def __init__(self, *watches: tuple[list[int], Unavailable | None]) -> None:
        self.stubs = SimpleNamespace(tasks=SimpleNamespace(WatchTask=None))
        self.watches, self.begun_after = list(watches), list[int]()

    async def many(self, _method: Any, request: api.WatchTaskRequest) -> AsyncGenerator[api.WatchTaskResponse]:
        self.begun_after.append(request.after_sequence)
        sequences, error = self.watches.pop(0)
        for sequence in sequences:
            message = api.WatchTaskResponse()
            message.entry.sequence = sequence
            message.entry.body.cancel_request.SetInParent()
            yield message
        if error is not None:
            raise error


async def test_a_failed_watch_goes_on_after_the_last_entry() -> None:
    call: Any = Call(([1, 2], Unavailable("Postgres does not answer")), ([3], None))
    watch = EventWatch(call, "task", 0, 0, live=False)
    assert [event async for event in watch.events() if event is not None]
    assert (watch.sequence, call.begun_after) == (3, [0, 2])


async def test_a_stream_of_a_draining_gateway_ends() -> None:
    call: Any = Call(([1], Unavailable("the gateway restarts", reason=DRAINING)), ([2], None))
    watch = EventWatch(call, "task", 0, 0, live=False)
    with pytest.raises(Unavailable):
        [event async for event in watch.events()]
    assert (watch.sequence, call.begun_after) == (1, [0])
