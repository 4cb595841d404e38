"""Sending one answer: at its pace, with its fault, and billing what was produced until the end, whatever the end is."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.dev.simulator.api_errors import DEFAULT_WORDS, error_value
from tenure.dev.simulator.scenario import FaultKind
from tenure.dev.simulator.stream_events import StreamEvent, delta_count, error_event, message_value, stream_events

if TYPE_CHECKING:
    from tenure.dev.simulator.call_log import Call, CallLog
    from tenure.dev.simulator.hostile import HostileAnswer
    from tenure.dev.simulator.http_server import Reply
    from tenure.dev.simulator.model_reply import ModelReply
    from tenure.dev.simulator.scenario import Fault
    from tenure.dev.simulator.tokens import InputTokens

DRIP_PIECES = 16


@dataclass(frozen=True)
class Delivery:
    """An answer ready to be sent. `latency_ms` is from the request to the answer's end."""

    reply: ModelReply
    tokens: InputTokens
    deltas: int | None
    latency_ms: int
    fault: Fault | None

    def limit(self, kind: FaultKind) -> int | None:
        """The fault's value if it is of this kind."""
        return self.fault.value if self.fault is not None and self.fault.kind is kind else None


async def deliver(delivery: Delivery, call: Call, log: CallLog, http: Reply) -> None:
    """Send the answer and finish the call. Cancelled (the client is gone), the call keeps what was produced so far."""
    call.status, call.stop_reason = 200, delivery.reply.stop_reason
    call.bill_input(delivery.tokens)
    if call.stream:
        await _Stream(delivery, call, log, http).play()
    else:
        await _send_whole(delivery, call, log, http)


async def deliver_hostile(answer: HostileAnswer, call: Call, log: CallLog, http: Reply) -> None:
    """Send it as it is, whatever it is. The call's line in the log names what was changed."""
    call.status, call.fault, call.error = answer.status, "hostile", ", ".join(answer.changes)
    call.ending = "broken" if answer.is_cut else "complete"
    log.finish(call)
    headers = {"content-type": "text/event-stream", "request-id": call.request_id, **answer.headers}
    http.begin(answer.status, headers)
    http.write(answer.body)
    await http.drain()
    if answer.is_cut:
        http.cut()
    else:
        http.end()


async def _send_whole(delivery: Delivery, call: Call, log: CallLog, http: Reply) -> None:
    await _think(delivery, call)
    if delivery.limit(FaultKind.BROKEN_STREAM) is not None:
        call.ending = "broken"
        log.finish(call)
        http.cut()
        return
    body = json.dumps(message_value(delivery.reply, delivery.tokens)).encode()
    headers = {"content-type": "application/json", "request-id": call.request_id}
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


async def _think(delivery: Delivery, call: Call) -> None:
    """Take the answer's time. Abandoned meanwhile, the call is billed for the share of the output that was due."""
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


def _complete(call: Call, log: CallLog) -> None:
    call.ending, call.answered = "complete", True
    log.finish(call)


class _Stream:
    """One answer as server-sent events. Without a pace, events are gathered and sent in one piece."""

    def __init__(self, delivery: Delivery, call: Call, log: CallLog, http: Reply) -> None:
        self._delivery = delivery
        self._call = call
        self._log = log
        self._http = http
        self._sent_deltas = 0
        self._produced_bytes = 0
        self._gathered: list[bytes] = []

    async def play(self) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._http.begin(200, {**headers, "request-id": self._call.request_id})
        reply, delivery = self._delivery.reply, self._delivery
        self._call.output_tokens = 1
        pause_seconds = self._pause_seconds()
        for event in stream_events(reply, delivery.tokens, delivery.deltas):
            if (event.is_delta or event.is_end) and self._must_fail(at_end=event.is_end):
                return
            if event.is_delta and pause_seconds:
                await self._flush()
                await asyncio.sleep(pause_seconds)
            self._gather(event)
        self._call.output_tokens = reply.output_tokens
        _complete(self._call, self._log)
        self._write()
        self._http.end()
        await self._http.drain()

    def _pause_seconds(self) -> float:
        drip_ms = self._delivery.limit(FaultKind.DRIP)
        if drip_ms is not None:
            return drip_ms / 1000
        return self._delivery.latency_ms / 1000 / max(1, delta_count(self._delivery.reply, self._delivery.deltas))

    def _gather(self, event: StreamEvent) -> None:
        self._gathered.append(event.data)
        if event.is_delta:
            self._sent_deltas += 1
            self._produced_bytes += event.produced_bytes
            self._call.output_tokens = self._delivery.reply.tokens_after(self._produced_bytes)

    def _must_fail(self, *, at_end: bool = False) -> bool:
        """Break off if the fault says so: after its number of deltas, or before the end if there are fewer."""
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
        words = (self._delivery.fault and self._delivery.fault.message) or DEFAULT_WORDS[529]
        self._gathered.append(error_event(error_value(529, words, self._call.request_id)))
        self._write()
        self._http.end()
        return True

    def _write(self) -> None:
        self._http.write(b"".join(self._gathered))
        self._gathered.clear()

    async def _flush(self) -> None:
        self._write()
        await self._http.drain()
