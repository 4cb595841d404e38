"""Relays requests to the replica that makes the call, with the token of the caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any, Final, Self
from uuid import UUID

from services.models.rules import RelayCall
from tenure.domain.access import Role
from tenure.runtime import metrics
from tenure.runtime.rpc_client import TenureChannel, open_channel
from tenure.runtime.security import Security
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceStub
from tenure.wire.model_service import MAX_MESSAGE_BYTES

RELAYED_KEY: Final = "x-tenure-model-runner"
"""The metadata key of a relayed request: the id of the runner that it is for."""

CANCEL_TIMEOUT_SECONDS: Final = 60.0
MAX_CHANNELS: Final = 64


class Relay:
    """Channels to other replicas, opened when needed."""

    def __init__(self, security: Security) -> None:
        self._tls = security.peer(Role.MODELS)
        self._channels: OrderedDict[str, TenureChannel] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def generate(self, to: RelayCall, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yields the parts of the other replica's answer. Raises its errors."""
        metrics.count("tenure_models_relayed_total", method="Generate")
        stub = await self._stub(to.address)
        call = stub.Generate(request, metadata=_addressed(to.runner_id))
        try:
            async for part in call:
                yield part
        finally:
            call.cancel()  # nothing, if it has ended

    async def cancel(self, to: RelayCall, request: pb.CancelGenerationRequest) -> pb.CancelGenerationResponse:
        """Returns the other replica's answer. Raises its errors."""
        metrics.count("tenure_models_relayed_total", method="CancelGeneration")
        stub = await self._stub(to.address)
        response: pb.CancelGenerationResponse = await stub.CancelGeneration(
            request, timeout=CANCEL_TIMEOUT_SECONDS, metadata=_addressed(to.runner_id)
        )
        return response

    async def _stub(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = open_channel(address, tls=self._tls, max_message_bytes=MAX_MESSAGE_BYTES, peer="models")
            self._channels[address] = channel
        self._channels.move_to_end(address)
        if len(self._channels) > MAX_CHANNELS:
            _, oldest = self._channels.popitem(last=False)
            await oldest.close()
        return ModelServiceStub(channel)


def _addressed(runner_id: UUID) -> tuple[tuple[str, str], ...]:
    return ((RELAYED_KEY, str(runner_id)),)


def was_relayed(context: Any) -> bool:
    """Whether another replica sent this request here."""
    return any(key == RELAYED_KEY for key, _ in context.invocation_metadata() or ())
