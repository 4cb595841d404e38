"""A client of server-sent events, by the algorithm of the HTML standard, which is what a browser's EventSource does.

async for event in EventSource(f"{url}/v1/tasks/{task_id}/events").events(): event.kind, event.data, event.id
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tenure.runtime.http.outbound_http import http_tls_context

AGAIN_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id`: the last id at that moment."""

    id: str
    kind: str
    data: Any


@dataclass(slots=True)
class EventParser:
    """Parses bytes as they come, cut anywhere. Text that no blank line completes is not an event."""

    last_id: str = ""
    comments: int = 0
    _line: bytearray = field(default_factory=bytearray)
    _id: str = ""
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, part: bytes) -> Iterator[ServerEvent]:
        for byte in part:
            if byte != ord("\n"):
                self._line.append(byte)
                continue
            line = self._line.decode()
            self._line.clear()
            if (event := self._take(line)) is not None:
                yield event

    def broken(self) -> None:
        """The connection ended: the unfinished event is dropped."""
        self._line.clear()
        self._data.clear()
        self._kind, self._id = "", self.last_id

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            self.last_id = self._id
            event = ServerEvent(self.last_id, self._kind, json.loads("\n".join(self._data))) if self._data else None
            self._kind, self._data = "", []
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                self.comments += 1
            case "id":
                self._id = value
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
        return None


class EventSource:
    """Connects again after each end of the connection, with the id of the last event; 204 is the end."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None, verify: Any = None) -> None:
        self.url, self._headers, self._verify = url, headers or {}, verify or http_tls_context()
        self.connections = 0
        self.parser = EventParser()

    async def events(self) -> AsyncGenerator[ServerEvent]:
        async with httpx2.AsyncClient(verify=self._verify, timeout=60, trust_env=False) as client:
            while True:
                self.connections += 1
                last_id = {"Last-Event-ID": self.parser.last_id} if self.parser.last_id else {}
                headers = {"Accept": "text/event-stream", **self._headers, **last_id}
                try:
                    async with client.stream("GET", self.url, headers=headers) as response:
                        if response.status_code == 204:
                            return
                        assert response.status_code == 200, (await response.aread()).decode()
                        assert response.headers["content-type"].startswith("text/event-stream")
                        async for part in response.aiter_raw():
                            for event in self.parser.feed(part):
                                yield event
                except httpx2.TransportError:
                    pass
                self.parser.broken()
                await asyncio.sleep(AGAIN_SECONDS)
