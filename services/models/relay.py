"""Relays requests to the replica that makes the call, with the token of the caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

from services.models.rules import RelayCall
from tenure.domain.access import Role
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.security.process_security import Security
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceStub
from tenure.wire.model_service import MAX_MESSAGE_BYTES

RELAYED_KEY: Final = "x-tenure-model-runner"
"""The metadata key of a relayed request: the id of the runner that it is for."""

CANCEL_TIMEOUT_SECONDS: Final = 60.0
MAX_CHANNELS: Final = 64


@dataclass(slots=True)
class _UsedChannel:
    """A channel to one replica. `calls`: how many use it now."""

    channel: TenureChannel
    calls: int = 0


class Relay:
    """Channels to other replicas, opened when needed. It keeps MAX_CHANNELS, and more while calls use them."""

    def __init__(self, security: Security) -> None:
        self._tls = security.peer(Role.MODELS)
        self._channels: OrderedDict[str, _UsedChannel] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for used in self._channels.values():
            await used.channel.close()

    async def generate(self, to: RelayCall, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yields the parts of the other replica's answer. Raises its errors."""
        metrics.count("tenure_models_relayed_total", method="Generate")
        async with self._stub(to.address) as stub:
            call = stub.Generate(request, metadata=_addressed(to.runner_id))
            try:
                async for part in call:
                    yield part
            finally:
                call.cancel()  # nothing, if it has ended

    async def cancel(self, to: RelayCall, request: pb.CancelGenerationRequest) -> pb.CancelGenerationResponse:
        """Returns the other replica's answer. Raises its errors."""
        metrics.count("tenure_models_relayed_total", method="CancelGeneration")
        async with self._stub(to.address) as stub:
            response: pb.CancelGenerationResponse = await stub.CancelGeneration(
                request, timeout=CANCEL_TIMEOUT_SECONDS, metadata=_addressed(to.runner_id)
            )
        return response

    @asynccontextmanager
    async def _stub(self, address: str) -> AsyncIterator[Any]:
        used = self._channels.get(address)
        if used is None:
            channel = open_channel(address, tls=self._tls, max_message_bytes=MAX_MESSAGE_BYTES, peer="models")
            used = self._channels[address] = _UsedChannel(channel)
        self._channels.move_to_end(address)
        used.calls += 1
        try:
            yield ModelServiceStub(used.channel)
        finally:
            used.calls -= 1
            await self._close_unused()

    async def _close_unused(self) -> None:
        """Closes the channels beyond MAX_CHANNELS that no call uses, the least recently used first."""
        unused = [address for address, used in self._channels.items() if not used.calls]
        for address in unused[: max(0, len(self._channels) - MAX_CHANNELS)]:
            await self._channels.pop(address).channel.close()


def _addressed(runner_id: UUID) -> tuple[tuple[str, str], ...]:
    return ((RELAYED_KEY, str(runner_id)),)


def was_relayed(context: Any) -> bool:
    """Whether another replica sent this request here."""
    return any(key == RELAYED_KEY for key, _ in context.invocation_metadata() or ())
