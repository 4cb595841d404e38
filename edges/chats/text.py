"""The text of a turn for chat protocols, which can add text and not take it back.

Live text comes in pieces, and the entry of the answer then has the whole text. A part is what a reader sees of one
block of one model call: opened, added to, and closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tenure.sdk.events import AssistantMessageEvent, LiveTextEvent


@dataclass(frozen=True, slots=True)
class TextPart:
    """A change of a part. `text` None: it is closed, "": opened, else added."""

    part_id: str
    text: str | None


@dataclass(slots=True)
class _Open:
    part_id: str
    text: str
    has_gap: bool = False


class ChatText:
    """Turns live text and answers into parts. The ids depend on the ledger only, so that a replay has the same."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._replaced = 0

    @property
    def has_open(self) -> bool:
        """Whether a part is open."""
        return bool(self._open)

    def live(self, event: LiveTextEvent) -> Iterator[TextPart]:
        """Yields what a piece of live text changes. Call `replace` first if it replaces an unfinished answer."""
        part = self._open.get(event.block)
        if part is None:
            part = self._open[event.block] = _Open(self._id(event.step, event.block), "")
            yield TextPart(part.part_id, "")
        part.has_gap |= event.offset != len(part.text)
        if not part.has_gap:  # what follows a gap comes with the answer
            part.text += event.text
            yield TextPart(part.part_id, event.text)

    def replace(self) -> Iterator[TextPart]:
        """Closes the parts of an answer that was cut off: another one replaces it."""
        yield from self._close()
        self._replaced += 1

    def answer(self, event: AssistantMessageEvent) -> Iterator[TextPart]:
        """Yields what is missing of a whole answer, and closes its parts."""
        content: Any = event.content
        for number, block in enumerate(content if isinstance(content, list) else []):
            text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
            if not isinstance(text, str) or not text:
                continue
            part = self._open.pop(number, None)
            if part is not None and not text.startswith(part.text):  # it is of another try of the same call
                yield TextPart(part.part_id, None)
                self._replaced += 1
                part = None
            if part is None:
                part = _Open(self._id(event.step, number), "")
                yield TextPart(part.part_id, "")
            if rest := text[len(part.text) :]:
                yield TextPart(part.part_id, rest)
            yield TextPart(part.part_id, None)
        yield from self._close()

    def close(self) -> Iterator[TextPart]:
        """Closes what is open: no answer follows."""
        yield from self._close()

    def _close(self) -> Iterator[TextPart]:
        for part in self._open.values():
            yield TextPart(part.part_id, None)
        self._open.clear()

    def _id(self, step: int, block: int) -> str:
        return f"text-{step}-{block}" + (f"-{self._replaced}" if self._replaced else "")
