"""The text of the model call in flight, for whoever watches it. Never stored: the ledger has the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_CHARACTERS_PER_DELTA: Final = 65_536


class TextPiece(NamedTuple):
    """A part of one block's text; `offset` in characters."""

    step: int
    attempt_number: int
    block: int
    offset: int
    text: str


@dataclass(slots=True)
class LiveCursor:
    """Where one reader is: how much it has of each block of which call."""

    call: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


class LiveText:
    """Keeps the newest call's text only, so it is bounded by one answer however many watch, and however slowly."""

    def __init__(self) -> None:
        self._call = 0
        self._step = self._attempt_number = 0
        self._blocks: dict[int, list[str]] = {}
        self._finished = True
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """No more text will come."""
        return self._closed

    def begin(self, step: int, attempt_number: int) -> None:
        """A model call begins; the text of the one before is gone."""
        self._call += 1
        self._step, self._attempt_number = step, attempt_number
        self._blocks = {}
        self._finished = False

    def append(self, block: int, text: str) -> None:
        """The next piece of a block."""
        self._blocks.setdefault(block, []).append(text)
        self._tell()

    def finish(self) -> None:
        """The answer is whole: who comes now reads it in the ledger."""
        self._finished = True

    def close(self) -> None:
        """The claim is over."""
        self._closed = True
        self._tell()

    def cursor(self) -> LiveCursor:
        """A new reader's place: at the beginning of an unfinished answer, else behind the finished one."""
        if not self._finished:
            return LiveCursor(self._call)
        return LiveCursor(self._call, {block: len(self._text(block)) for block in self._blocks})

    def since(self, cursor: LiveCursor) -> Iterator[TextPiece]:
        """What the reader has not had yet; moves its cursor along."""
        if cursor.call != self._call:
            cursor.call, cursor.offsets = self._call, {}
        for block in sorted(self._blocks):
            text = self._text(block)
            while (offset := cursor.offsets.get(block, 0)) < len(text):
                piece = text[offset : offset + MOST_CHARACTERS_PER_DELTA]
                cursor.offsets[block] = offset + len(piece)
                yield TextPiece(self._step, self._attempt_number, block, offset, piece)

    async def wait_changed(self, cursor: LiveCursor) -> None:
        """Waits until there is something for this reader, or the end."""
        while not self._closed and not self._has_more(cursor):
            self._changed.clear()
            await self._changed.wait()

    def _has_more(self, cursor: LiveCursor) -> bool:
        if cursor.call != self._call:
            return bool(self._blocks)
        return any(cursor.offsets.get(block, 0) < len(self._text(block)) for block in self._blocks)

    def _text(self, block: int) -> str:
        pieces = self._blocks[block]
        if len(pieces) > 1:  # joined when somebody reads, so that unwatched text costs an append
            pieces[:] = ["".join(pieces)]
        return pieces[0]

    def _tell(self) -> None:
        self._changed.set()
