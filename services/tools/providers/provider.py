"""One provider: its connection, and its tools as it describes them, again whenever it was away."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Self

import grpc

from services.tools.providers.calling import Caller
from services.tools.providers.settings import ProviderSettings, TlsSettings
from services.tools.registry import Registry
from services.tools.source_facts import MOST_PROBLEMS
from services.tools.sources import offered
from tenure.domain.errors import TenureError
from tenure.domain.retry import RetryPolicy
from tenure.domain.tools import ToolSourceKind
from tenure.runtime.duties import rest, resting
from tenure.runtime.rpc_channel import TenureChannel, open_channel
from tenure.runtime.rpc_options import Keepalive
from tenure.runtime.status import PeerFailed
from tenure.v1 import tool_provider_service_pb2 as pb
from tenure.v1.tool_provider_service_pb2_grpc import ToolProviderServiceStub
from tenure.wire.tools import tool_to_domain

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=15.0)
DESCRIBE_SECONDS: Final = 10.0
LEAST_SECONDS: Final = 1.0
"""Between two questions, also where something on the way ends every connection at once."""

# Servers that were told nothing else end a connection that pings more often than every five minutes, or without a call.
KEEPALIVE: Final = Keepalive(interval_seconds=330.0, timeout_seconds=20.0, without_calls=False)


class Provider:
    """Keeps the registry's tools of one provider up to date; `watch` is a duty. While it is away they stay listed."""

    def __init__(self, name: str, settings: ProviderSettings, registry: Registry) -> None:
        self._name, self._settings, self._registry = name, settings, registry
        self._fact = registry.facts.add(name, ToolSourceKind.PROVIDER, settings.tenants, settings.secrets)
        self._open = AsyncExitStack()
        self._reached = asyncio.Event()
        self._described: pb.DescribeToolsResponse | None = None

    async def __aenter__(self) -> Self:
        self._registry.expect(self._name, self._settings.tenants)
        credentials = await asyncio.to_thread(_credentials, self._settings.tls)
        channel = open_channel(self._settings.address, credentials=credentials, keepalive=KEEPALIVE)
        self._channel: TenureChannel = await self._open.enter_async_context(channel)
        self._caller = await self._open.enter_async_context(Caller(self._name, self._settings, self._channel))
        self._stub: Any = ToolProviderServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def reached(self) -> None:
        """Returns when its tools are known, or it has had its time to answer: others need not wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.connect_seconds):
                await self._reached.wait()

    async def watch(self) -> None:
        """Ask again after every loss of the connection, and every now and then."""
        failures = 0
        while True:
            try:
                await self._describe()
            except (TenureError, PeerFailed) as error:
                failures += 1
                self._fact.lost(str(error))
                facts = {"provider": self._name, "failures": failures, "error": str(error)}
                _log.warning("a tool provider cannot be asked", extra=facts)
                await rest(AGAIN.wait_seconds(failures, random.random()))
                continue
            if failures:
                _log.info("a tool provider is back", extra={"provider": self._name})
            failures = 0
            self._fact.linked()
            await rest(LEAST_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.refresh_seconds):
                    with resting():  # a timer ends it
                        await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
                    self._fact.lost("the connection ended")

    async def _describe(self) -> None:
        request = pb.DescribeToolsRequest()
        described = await self._stub.DescribeTools(request, timeout=DESCRIBE_SECONDS, metadata=self._settings.metadata)
        if described != self._described:
            self._take(described)
            self._described = described
        self._reached.set()

    def _take(self, described: pb.DescribeToolsResponse) -> None:
        definitions, problems = offered(self._name, map(tool_to_domain, described.tools), self._settings.rules)
        tools = [self._caller.tool(own_name, definition) for own_name, definition in definitions.items()]
        refused = self._registry.put(self._name, tools, self._settings.tenants)
        problems += refused
        self._fact.took(len(tools) - len(refused), problems)
        for problem in problems[:MOST_PROBLEMS]:
            _log.warning("a tool of a provider", extra={"provider": self._name, "problem": problem})
        if (more := len(problems) - MOST_PROBLEMS) > 0:
            _log.warning("more tools of a provider have problems", extra={"provider": self._name, "count": more})
        _log.info("a tool provider has tools", extra={"provider": self._name, "tools": len(tools)})


def _credentials(tls: TlsSettings | None) -> grpc.ChannelCredentials | None:
    if tls is None:
        return None
    read = [None if file is None else file.read_bytes() for file in (tls.ca_file, tls.key_file, tls.cert_file)]
    return grpc.ssl_channel_credentials(*read)
