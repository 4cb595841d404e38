"""Gives one reader a call of this process: its state, the text so far, the pieces as they arrive, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from services.models.rules import GenerationRow, ModelCallState
from services.models.runs import GenerationRun
from services.models.vendor_requests import body_parts, parts_of_end
from tenure.domain.budget import TokenUsage
from tenure.model_providers.vendor_calls import VendorCall
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.task import usage_to_wire

GATHERED_SECONDS: Final = 0.05
"""After a piece, the text of this time is gathered for the next one."""
MAX_PIECE_CHARACTERS: Final = 65_536
MAX_BUNDLE_BYTES: Final = 1024 * 1024

_OUTPUT: Final = frozenset({"text", "vendor_part"})
_KINDS: Final = {
    ModelCallState.ACCEPTED: pb.GenerationState.KIND_ACCEPTED,
    ModelCallState.SENT: pb.GenerationState.KIND_SENT,
    ModelCallState.FINISHED: pb.GenerationState.KIND_FINISHED,
}


def state_part(call: GenerationRun | GenerationRow, *, joined: bool) -> pb.GenerateResponse:
    """Returns the first part: the state in which the caller found the call."""
    is_over = isinstance(call, GenerationRun) and call.over.is_set()
    state = pb.GenerationState(
        kind=_KINDS[ModelCallState.FINISHED if is_over else call.state], joined=joined, begun_epoch=call.begun_epoch
    )
    if call.sent_at is not None:
        moment = Timestamp()
        moment.FromDatetime(call.sent_at)
        state.send_time.CopyFrom(moment)
    return pb.GenerateResponse(state=state)


class RunReader:
    """One reader of one call. `epoch`: of the owner that reads."""

    def __init__(self, run: GenerationRun, epoch: int) -> None:
        self._run, self._epoch = run, epoch
        self._is_waiting = False
        self._offsets: dict[int, int] = {}
        self._sent_bytes = 0
        self._has_head = False
        self._usage = TokenUsage()
        self._news = asyncio.Event()

    async def messages(self, *, joined: bool) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yields all parts. Raises the error of a call that ends elsewhere."""
        run = self._run
        ready = [state_part(run, joined=joined)]
        self._is_waiting = run.state is ModelCallState.ACCEPTED
        try:
            while True:
                self._news.clear()
                run.readers.add(self._news)
                is_over = run.over.is_set()
                ready += self._new_parts(is_over=is_over)
                # usage alone must not delay the first text
                has_text = any(part.WhichOneof("part") in _OUTPUT for part in ready)
                if is_over and run.end is not None:
                    ready += parts_of_end(run.end, self._sent_bytes)
                for message in self._packed(ready):
                    yield message
                if is_over:
                    break
                ready = []
                await self._wait(gathers=has_text)
            if run.error is not None:
                raise run.error
            assert run.end is not None, "a call that is over has an end or an error"
            run.received_under.add(self._epoch)  # the reader took it: else this line is not reached
        finally:
            run.readers.discard(self._news)

    def _packed(self, parts: list[pb.GenerateResponse]) -> list[pb.GenerateResponse]:
        """Returns the messages for parts that are ready: a message costs as much as many parts in it."""
        fits = len(parts) > 1 and sum(part.ByteSize() for part in parts) <= MAX_BUNDLE_BYTES
        return [pb.GenerateResponse(bundle=pb.GenerationBundle(parts=parts))] if fits else parts

    async def _wait(self, *, gathers: bool) -> None:
        """Waits for something new. `gathers`: not sooner than GATHERED_SECONDS, unless the call is over."""
        if gathers:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHERED_SECONDS):
                    await self._run.over.wait()
        await self._news.wait()

    def _new_parts(self, *, is_over: bool) -> Iterator[pb.GenerateResponse]:
        """Yields that the call was sent, new text, and new usage, unless the end follows, which has the whole usage."""
        run = self._run
        if self._is_waiting and run.state is ModelCallState.SENT:
            self._is_waiting = False
            yield state_part(run, joined=False)
        for block in sorted(run.blocks):
            text = run.text(block)
            while (offset := self._offsets.get(block, 0)) < len(text):
                piece = text[offset : offset + MAX_PIECE_CHARACTERS]
                self._offsets[block] = offset + len(piece)
                yield pb.GenerateResponse(text=pb.GeneratedText(block=block, offset=offset, text=piece))
        if isinstance(run.call, VendorCall):
            yield from self._new_body(run.call)
        if not is_over and (usage := run.call.usage) != self._usage:
            self._usage = usage
            yield pb.GenerateResponse(usage=usage_to_wire(usage))

    def _new_body(self, call: VendorCall) -> Iterator[pb.GenerateResponse]:
        """Yields that the response has begun, and the new part of its body."""
        if call.content_type and not self._has_head:
            self._has_head = True
            head = pb.VendorPart(content_type=call.content_type, provider_request_id=call.request_id)
            yield pb.GenerateResponse(vendor_part=head)
        start, self._sent_bytes = self._sent_bytes, max(self._sent_bytes, len(call.body))  # an ended call has no body
        yield from body_parts(call.content_type, call.request_id, call.body, start)
