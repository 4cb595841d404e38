"""http_fetch in this process, with prepared names: a front that is public, and an inside that must not be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from edges.http_fetch.fetch import Fetcher, fetch_tools
from edges.http_fetch.settings import HttpFetchSettings
from services.tools.tool import CallContext, ToolAnswer, ToolFailure
from tenure.domain.outbound import Networks
from tenure.runtime.http.outbound_http import CheckedNetworkBackend
from tests.support.dialling import Dialler, knowing
from tests.support.http_stub import HttpStub, page
from tests.support.patience import CALL_SECONDS

PUBLIC = "93.184.216.34"
CONTEXT = CallContext("default", "task", "1.0", "task/1.0", 7, print)
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass
class World:
    """`front` stands for the one public address; whatever else is dialled leads `inside`."""

    front: HttpStub
    inside: HttpStub
    dialler: Dialler

    async def fetch(self, url: str, resolve: Resolve | None = None, **settings: Any) -> ToolAnswer:
        """What the tool says."""
        names: Mapping[str, Sequence[str]] = {"front.example": [PUBLIC], "other.example": [PUBLIC]}
        chosen = HttpFetchSettings(**{"allow": ["*", PUBLIC], "timeout_seconds": CALL_SECONDS, **settings})
        backend = CheckedNetworkBackend(
            Networks(chosen.allowed_networks), "http_fetch", resolve=resolve or knowing(names), dialer=self.dialler
        )
        with ThreadPoolExecutor(1) as threads:
            async with Fetcher.open(chosen, threads, backend) as fetcher:
                (tool,) = fetch_tools(fetcher)
                return await tool.run(CONTEXT, {"url": url})

    async def refused(self, url: str, resolve: Resolve | None = None, **settings: Any) -> ToolFailure:
        """What the tool says when it fails."""
        with pytest.raises(ToolFailure) as failed:
            await self.fetch(url, resolve, **settings)
        return failed.value


@asynccontextmanager
async def world(answer: Any = None, tls: Any = None) -> AsyncIterator[World]:
    """The front answers by `answer`, a page or what makes one of a request."""
    answering = answer if callable(answer) else lambda _: page("hello") if answer is None else answer
    async with HttpStub(answering, tls) as front, HttpStub(lambda _: page("a secret of the inside")) as inside:
        servers = {PUBLIC: ("127.0.0.1", front.port)}
        yield World(front, inside, Dialler(servers, otherwise=("127.0.0.1", inside.port)))
