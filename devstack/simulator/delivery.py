"""Composes and sends one answer, with its latency and its fault, and bills the output produced until the end."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from devstack.simulator.http_server import DEFAULT_WORDS, error_value, request_ids
from devstack.simulator.scenario import FaultKind
from devstack.simulator.templates import fill
from devstack.simulator.tokens import tokens_of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from devstack.simulator.call_log import CallLog, SimulatedCall
    from devstack.simulator.http_server import Reply
    from devstack.simulator.scenario import Fault, Turn
    from devstack.simulator.tokens import InputTokens


# Composing an answer from a turn: content blocks with new ids, cut at max_tokens, and their tokens.


@dataclass(frozen=True)
class ReplyBlock:
    """A text block, or a tool_use block whose `text` is the JSON of its arguments. `whole`: it was not cut."""

    text: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    whole: bool = True

    def opening(self) -> dict[str, Any]:
        """Returns the block for content_block_start, without its content."""
        if self.tool_name is None:
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": self.tool_use_id, "name": self.tool_name, "input": {}}

    def value(self) -> dict[str, Any]:
        """Returns the block for a whole message. The input is empty if the arguments were cut."""
        if self.tool_name is None:
            return {"type": "text", "text": self.text}
        return {**self.opening(), "input": json.loads(self.text) if self.whole else {}}

    def delta(self, piece: str) -> dict[str, Any]:
        if self.tool_name is None:
            return {"type": "text_delta", "text": piece}
        return {"type": "input_json_delta", "partial_json": piece}


@dataclass(frozen=True)
class ModelReply:
    """One complete answer, before any fault."""

    message_id: str
    model: str
    blocks: tuple[ReplyBlock, ...]
    stop_reason: str
    output_tokens: int

    @property
    def size_bytes(self) -> int:
        return sum(len(block.text.encode()) for block in self.blocks)

    @property
    def stop_details(self) -> dict[str, Any] | None:
        if self.stop_reason != "refusal":
            return None
        return {"type": "refusal", "category": None, "explanation": "The simulated model declines this request."}

    def tokens_after(self, produced_bytes: int) -> int:
        """Returns the billed output tokens after so many bytes of the answer: in proportion, at least 1."""
        size = self.size_bytes
        if produced_bytes >= size:
            return self.output_tokens
        return max(1, -(-self.output_tokens * produced_bytes // size))


def compose(turn: Turn, body: Mapping[str, Any], window_left: int | None = None) -> ModelReply:
    """Returns the answer of `turn` to a valid request, with new tool_use ids.

    `window_left`: the tokens left in the context window; None: no window.
    """

    def filled(value: Any) -> Any:
        return value if turn.is_literal else fill(value, body["messages"])

    blocks = [ReplyBlock(text)] if (text := filled(turn.text)) else []
    calls = () if (body.get("tool_choice") or {}).get("type") == "none" else turn.calls
    for call in calls:
        arguments = json.dumps(filled(call.arguments), ensure_ascii=False)
        blocks.append(ReplyBlock(arguments, call.name, f"toolu_{secrets.token_hex(12)}"))
    stop_reason = turn.stop_reason or ("tool_use" if calls else "end_turn")
    reply = ModelReply(f"msg_{secrets.token_hex(12)}", body["model"], tuple(blocks), stop_reason, 1)
    tokens = turn.output_tokens or max(1, tokens_of_bytes(reply.size_bytes))
    if window_left is not None and window_left < body["max_tokens"]:
        return _within(reply, tokens, window_left, "model_context_window_exceeded")
    return _within(reply, tokens, body["max_tokens"], "max_tokens")


def _within(reply: ModelReply, tokens: int, max_tokens: int, stop_reason: str) -> ModelReply:
    if tokens <= max_tokens:
        return ModelReply(reply.message_id, reply.model, reply.blocks, reply.stop_reason, tokens)
    left = reply.size_bytes * max_tokens // tokens
    kept: list[ReplyBlock] = []
    for block in reply.blocks:
        if left <= 0:
            break
        encoded = block.text.encode()
        text = encoded[:left].decode(errors="ignore")  # never cuts a character in two
        kept.append(ReplyBlock(text, block.tool_name, block.tool_use_id, whole=len(encoded) <= left))
        left -= len(encoded)
    return ModelReply(reply.message_id, reply.model, tuple(kept), stop_reason, max_tokens)


# An answer as server-sent events, in the provider's order.

DELTA_CHARACTERS = 80


class StreamEvent(NamedTuple):
    """One event. `produced_bytes`: the bytes of the answer in a delta. `is_end`: the event ends the answer."""

    data: bytes
    produced_bytes: int = 0
    is_delta: bool = False
    is_end: bool = False


def message_value(reply: ModelReply, input_tokens: InputTokens) -> dict[str, Any]:
    """Returns the answer as one JSON object."""
    return {
        "id": reply.message_id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [block.value() for block in reply.blocks],
        "stop_reason": reply.stop_reason,
        "stop_sequence": None,
        "stop_details": reply.stop_details,
        "usage": usage_value(input_tokens, reply.output_tokens),
    }


def usage_value(tokens: InputTokens, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens.plain,
        "cache_creation_input_tokens": tokens.cache_creation,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": output_tokens,
    }


def stream_events(reply: ModelReply, tokens: InputTokens, deltas: int | None) -> Iterator[StreamEvent]:
    """Yields all events of an answer. `deltas`: their approximate number; None: one per 80 characters."""
    opened = {**message_value(reply, tokens), "content": [], "stop_reason": None, "stop_details": None}
    yield _event("message_start", message={**opened, "usage": usage_value(tokens, 1)})
    for index, block in enumerate(reply.blocks):
        yield _event("content_block_start", index=index, content_block=block.opening())
        if index == 0:
            yield _event("ping")
        for piece in pieces_of(block, piece_length(reply, deltas)):
            data = _event("content_block_delta", index=index, delta=block.delta(piece)).data
            yield StreamEvent(data, len(piece.encode()), is_delta=True)
        yield _event("content_block_stop", index=index)
    ending = {"stop_reason": reply.stop_reason, "stop_sequence": None, "stop_details": reply.stop_details}
    message_delta = _event("message_delta", delta=ending, usage=usage_value(tokens, reply.output_tokens))
    yield message_delta._replace(is_end=True)
    yield _event("message_stop")


def error_event(value: dict[str, object]) -> bytes:
    """Returns the event that a provider sends when it fails within a stream."""
    return f"event: error\ndata: {json.dumps(value)}\n\n".encode()


def delta_count(reply: ModelReply, deltas: int | None) -> int:
    length = piece_length(reply, deltas)
    return sum(-(-len(block.text) // length) for block in reply.blocks)


def piece_length(reply: ModelReply, deltas: int | None) -> int:
    if deltas is None:
        return DELTA_CHARACTERS
    return max(1, -(-sum(len(block.text) for block in reply.blocks) // deltas))


def pieces_of(block: ReplyBlock, length: int) -> Iterator[str]:
    for start in range(0, len(block.text), length):
        yield block.text[start : start + length]


def _event(name: str, **fields: Any) -> StreamEvent:
    return StreamEvent(f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode())


class Dialect(NamedTuple):
    """The format of an API's answers and errors.

    `stream_events(reply, tokens, deltas)`: the events of a streamed answer. `message_value(reply, tokens)`: a whole
    answer. `error_value(status, message, request_id)`: an error. `error_event(value)`: an error within a stream.
    """

    stream_events: Callable[[ModelReply, InputTokens, int | None], Iterator[StreamEvent]]
    message_value: Callable[[ModelReply, InputTokens], dict[str, Any]]
    error_value: Callable[[int, str, str], dict[str, object]]
    error_event: Callable[[dict[str, object]], bytes]


MESSAGES = Dialect(stream_events, message_value, error_value, error_event)

DRIP_PIECES = 16


@dataclass(frozen=True)
class ReplyDelivery:
    """An answer that is ready to be sent. `latency_ms`: from the request to the end of the answer.

    `first_token_ms`: from the request to the first delta of a stream; None: the pause between two deltas. `headers`:
    further ones of the response.
    """

    reply: ModelReply
    tokens: InputTokens
    deltas: int | None
    latency_ms: int
    fault: Fault | None
    dialect: Dialect
    first_token_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def limit(self, kind: FaultKind) -> int | None:
        """Returns the fault's value if the fault has this kind, or None."""
        return self.fault.value if self.fault is not None and self.fault.kind is kind else None


async def deliver(delivery: ReplyDelivery, call: SimulatedCall, log: CallLog, http: Reply) -> None:
    """Sends the answer and finishes the call.

    If cancelled, because the client is gone, the call bills the part sent.
    """
    call.status, call.stop_reason = 200, delivery.reply.stop_reason
    call.bill_input(delivery.tokens)
    if call.stream:
        await _Stream(delivery, call, log, http).play()
    else:
        await _send_whole(delivery, call, log, http)


@dataclass(slots=True)
class RawAnswer:
    """A response that is sent unchanged, such as one that breaks the protocol.

    `changes`: what differs from a valid one, for the log. `is_cut`: the connection ends after `body`.
    """

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    changes: list[str] = field(default_factory=list)


async def deliver_raw(answer: RawAnswer, call: SimulatedCall, log: CallLog, http: Reply) -> None:
    """Sends a response unchanged. The call's line in the log names its changes."""
    call.status, call.fault, call.error = answer.status, "hostile", ", ".join(answer.changes)
    call.ending = "broken" if answer.is_cut else "complete"
    log.finish(call)
    headers = {"content-type": "text/event-stream", **request_ids(call.request_id), **answer.headers}
    http.begin(answer.status, headers)
    http.write(answer.body)
    await http.drain()
    if answer.is_cut:
        http.cut()
    else:
        http.end()


async def _send_whole(delivery: ReplyDelivery, call: SimulatedCall, log: CallLog, http: Reply) -> None:
    await _think(delivery, call)
    if delivery.limit(FaultKind.BROKEN_STREAM) is not None:
        call.ending = "broken"
        log.finish(call)
        http.cut()
        return
    body = json.dumps(delivery.dialect.message_value(delivery.reply, delivery.tokens)).encode()
    headers = {"content-type": "application/json", **request_ids(call.request_id), **delivery.headers}
    drip_ms = delivery.limit(FaultKind.DRIP)
    if drip_ms is None:
        _complete(call, log)
        http.send(200, body, headers)
        await http.drain()
        return
    http.begin(200, headers, length=len(body))
    step = -(-len(body) // DRIP_PIECES)
    for start in range(0, len(body), step):
        await asyncio.sleep(drip_ms / 1000)
        if start + step >= len(body):
            _complete(call, log)
        http.write(body[start : start + step])
    http.end()


async def _think(delivery: ReplyDelivery, call: SimulatedCall) -> None:
    """Waits for the latency. If the client disconnects meanwhile, bills the share of the output that was due."""
    call.output_tokens = delivery.reply.output_tokens
    if not delivery.latency_ms:
        return
    begun_at = time.monotonic()
    try:
        await asyncio.sleep(delivery.latency_ms / 1000)
    except asyncio.CancelledError:
        share = min(1.0, (time.monotonic() - begun_at) * 1000 / delivery.latency_ms)
        call.output_tokens = delivery.reply.tokens_after(int(share * delivery.reply.size_bytes))
        raise


def _complete(call: SimulatedCall, log: CallLog) -> None:
    call.ending, call.answered = "complete", True
    log.finish(call)


class _Stream:
    """Sends one answer as server-sent events. Without a latency it sends all events in one write."""

    def __init__(self, delivery: ReplyDelivery, call: SimulatedCall, log: CallLog, http: Reply) -> None:
        self._delivery = delivery
        self._call = call
        self._log = log
        self._http = http
        self._sent_deltas = 0
        self._produced_bytes = 0
        self._gathered: list[bytes] = []

    async def play(self) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._http.begin(200, {**headers, **request_ids(self._call.request_id), **self._delivery.headers})
        reply, delivery = self._delivery.reply, self._delivery
        self._call.output_tokens = 1
        first_seconds, pause_seconds = self._pauses()
        for event in delivery.dialect.stream_events(reply, delivery.tokens, delivery.deltas):
            if (event.is_delta or event.is_end) and self._must_fail(at_end=event.is_end):
                return
            if event.is_delta and (pause := pause_seconds if self._sent_deltas else first_seconds):
                await self._flush()
                await asyncio.sleep(pause)
            self._gather(event)
        self._call.output_tokens = reply.output_tokens
        _complete(self._call, self._log)
        self._write()
        self._http.end()
        await self._http.drain()

    def _pauses(self) -> tuple[float, float]:
        """Returns the seconds before the first delta, and before each further one."""
        delivery = self._delivery
        drip_ms = delivery.limit(FaultKind.DRIP)
        if drip_ms is not None:
            return drip_ms / 1000, drip_ms / 1000
        deltas, seconds = delta_count(delivery.reply, delivery.deltas), delivery.latency_ms / 1000
        if delivery.first_token_ms is None:
            return seconds / max(1, deltas), seconds / max(1, deltas)
        first = min(delivery.first_token_ms / 1000, seconds)
        return first, (seconds - first) / max(1, deltas - 1)

    def _gather(self, event: StreamEvent) -> None:
        self._gathered.append(event.data)
        if event.is_delta:
            self._sent_deltas += 1
            self._produced_bytes += event.produced_bytes
            self._call.output_tokens = self._delivery.reply.tokens_after(self._produced_bytes)

    def _must_fail(self, *, at_end: bool = False) -> bool:
        """Breaks off if the fault demands it: after its number of deltas, or before the end if there are fewer.

        Returns whether it did.
        """
        broken = self._delivery.limit(FaultKind.BROKEN_STREAM)
        overloaded = self._delivery.limit(FaultKind.OVERLOADED)
        after = broken if broken is not None else overloaded
        if after is None or (self._sent_deltas < after and not at_end):
            return False
        self._call.ending = "broken"
        self._log.finish(self._call)
        if broken is not None:
            self._write()
            self._http.cut()
            return True
        message = (self._delivery.fault and self._delivery.fault.message) or DEFAULT_WORDS[529]
        dialect = self._delivery.dialect
        self._gathered.append(dialect.error_event(dialect.error_value(529, message, self._call.request_id)))
        self._write()
        self._http.end()
        return True

    def _write(self) -> None:
        self._http.write(b"".join(self._gathered))
        self._gathered.clear()

    async def _flush(self) -> None:
        self._write()
        await self._http.drain()
