"""Keeps the live text of the model call in flight for watchers. It is never stored: the ledger has the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_CHARACTERS_PER_DELTA: Final = 65_536


class TextPiece(NamedTuple):
    """A part of one block's text; `offset` in characters."""

    step: int
    attempt_number: int
    block: int
    offset: int
    text: str


@dataclass(slots=True)
class LiveCursor:
    """The position of one reader: the characters that it has of each block of a call, and whether it knows that the
    answer is complete.
    """

    call: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    complete: bool = False


class LiveText:
    """The text of the newest call only: bounded by one answer for any number of readers, however slow."""

    def __init__(self) -> None:
        self._call = 0
        self._step = self._attempt_number = 0
        self._blocks: dict[int, list[str]] = {}
        self._finished = True
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether the claim is over, so that no more text will come."""
        return self._closed

    def begin(self, step: int, attempt_number: int) -> None:
        """Begins a model call and drops the text of the call before."""
        self._call += 1
        self._step, self._attempt_number = step, attempt_number
        self._blocks = {}
        self._finished = False

    def append(self, block: int, text: str) -> None:
        """Appends the next piece of a block."""
        self._blocks.setdefault(block, []).append(text)
        self._wake_readers()

    def finish(self) -> None:
        """Marks the answer as complete: a new reader finds it in the ledger."""
        self._finished = True
        self._wake_readers()

    def close(self) -> None:
        """Ends the live text: the claim is over."""
        self._closed = True
        self._wake_readers()

    def cursor(self) -> LiveCursor:
        """Returns the cursor of a new reader: the start of an unfinished answer, or the end of a finished one."""
        if not self._finished:
            return LiveCursor(self._call)
        offsets = {block: len(self._text(block)) for block in self._blocks}
        return LiveCursor(self._call, offsets, complete=True)

    def since(self, cursor: LiveCursor) -> Iterator[TextPiece]:
        """Yields the text that the reader has not had yet, and moves its cursor."""
        if cursor.call != self._call:
            cursor.call, cursor.offsets, cursor.complete = self._call, {}, False
        for block in sorted(self._blocks):
            text = self._text(block)
            while (offset := cursor.offsets.get(block, 0)) < len(text):
                piece = text[offset : offset + MAX_CHARACTERS_PER_DELTA]
                cursor.offsets[block] = offset + len(piece)
                yield TextPiece(self._step, self._attempt_number, block, offset, piece)

    def take_completion(self, cursor: LiveCursor) -> bool:
        """Whether the answer that the reader has is complete and the reader does not know it yet."""
        is_new = self._is_over(cursor) and not cursor.complete
        cursor.complete = cursor.complete or is_new
        return is_new

    async def wait_changed(self, cursor: LiveCursor) -> None:
        """Waits until there is text for this reader, its answer is complete, or the claim is over."""
        while not self._closed and not self._has_more(cursor):
            self._changed.clear()
            await self._changed.wait()

    def _has_more(self, cursor: LiveCursor) -> bool:
        return self._has_text(cursor) or (self._is_over(cursor) and not cursor.complete)

    def _has_text(self, cursor: LiveCursor) -> bool:
        if cursor.call != self._call:
            return bool(self._blocks)
        return any(cursor.offsets.get(block, 0) < len(self._text(block)) for block in self._blocks)

    def _is_over(self, cursor: LiveCursor) -> bool:
        """Whether the reader has all of its answer, or a part of an answer before the newest call."""
        if cursor.call != self._call:
            return bool(cursor.offsets)
        return self._finished and not self._has_text(cursor)

    def _text(self, block: int) -> str:
        pieces = self._blocks[block]
        if len(pieces) > 1:  # joined by the reader, so that unwatched text costs only an append
            pieces[:] = ["".join(pieces)]
        return pieces[0]

    def _wake_readers(self) -> None:
        self._changed.set()
