"""Live text without repeats: a resumed stream sends the text of the call in flight again, from its beginning."""

from __future__ import annotations

from tenure.sdk.events import Event, LiveTextEvent
from tenure.sdk.from_wire import entry_event
from tenure.v1 import ledger_pb2, live_pb2
from tenure.v1 import task_service_pb2 as api


class LiveTextFilter:
    """Turns the deltas of one task into events: each character of a model call once, in order.

    A call is named by step and attempt. A worker under a higher epoch that joined the call sends its text from the
    beginning, so the same call goes on. Text of a lower epoch is dropped, and so is text of an older call than the
    newest and of a call whose answer is in the ledger.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._call = self._answered = (0, 0)
        self._block, self._length = 0, 0
        self._is_unfinished = False

    def public_event(self, message: api.WatchTaskResponse) -> Event | None:
        """Returns the event of a message of the stream; None for a heartbeat, and for text that was sent before."""
        match message.WhichOneof("event"):
            case "entry":
                self.entry(message.entry)
                return entry_event(message.entry)
            case "delta":
                return self.event(message.delta)
            case _:
                return None

    def entry(self, entry: ledger_pb2.Entry) -> None:
        """Notes an entry: the answer of the model completes the text."""
        if entry.body.WhichOneof("body") == "assistant_message":
            self._answered = (entry.step, entry.body.assistant_message.attempt_number)
            self._is_unfinished = False

    def event(self, delta: live_pb2.Delta) -> LiveTextEvent | None:
        """Returns the part of the delta that was not sent yet, or None if there is none."""
        call = (delta.step, delta.attempt_number)
        if delta.epoch < self._epoch or call < self._call or call <= self._answered:
            return None
        self._epoch = delta.epoch
        replaces = call > self._call and self._is_unfinished
        if call > self._call:
            self._call, self._block, self._length = call, 0, 0
        if delta.block < self._block:
            return None
        if delta.block > self._block:
            self._block, self._length = delta.block, 0
        known = self._length - delta.offset
        text = delta.text[max(0, known) :]
        if not text:
            return None
        offset = delta.offset + max(0, known)
        self._length, self._is_unfinished = offset + len(text), True
        return LiveTextEvent(
            kind="live_text",
            sequence=None,
            step=delta.step,
            text=text,
            block=delta.block,
            offset=offset,
            replaces=replaces,
            skipped=known < 0,
        )
