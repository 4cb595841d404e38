"""Live text that waits for its reader, within bounds: the oldest text is dropped first, and offsets show the gap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tenure.v1 import live_pb2

MAX_PENDING_CHARACTERS: Final = 256 * 1024
"""The limit of text for one slow reader."""
MAX_PENDING_BLOCKS: Final = 256
"""The limit of blocks with pending text: a hostile worker may begin a block with each piece."""


@dataclass(slots=True)
class _Block:
    """The text of one block of an answer from the offset of its first piece on. Watchers share pieces: none changes."""

    first: live_pb2.Delta
    texts: list[str]
    characters: int

    @property
    def end(self) -> int:
        return self.first.offset + self.characters

    def delta(self) -> live_pb2.Delta:
        """Returns the whole text as one piece."""
        if len(self.texts) == 1:
            return self.first
        joined = live_pb2.Delta()
        joined.CopyFrom(self.first)
        joined.text = "".join(self.texts)
        return joined


class PendingText:
    """Joins pieces that follow each other in a block. Iterating yields the pieces, oldest first, and keeps them."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int, int, int], _Block] = OrderedDict()
        self._characters = 0

    def __iter__(self) -> Iterator[live_pb2.Delta]:
        return (block.delta() for block in self._blocks.values())

    def add(self, delta: live_pb2.Delta) -> None:
        """Appends the piece to the text of its block. The caller must not change the piece any more."""
        key, size = (delta.epoch, delta.step, delta.attempt_number, delta.block), len(delta.text)
        block = self._blocks.get(key)
        if block is not None and block.end == delta.offset and block.characters + size <= MAX_PENDING_CHARACTERS:
            block.texts.append(delta.text)
            block.characters += size
        else:
            self._characters -= 0 if block is None else block.characters
            self._blocks[key] = _Block(delta, [delta.text], size)
        self._characters += size
        while len(self._blocks) > 1 and (
            self._characters > MAX_PENDING_CHARACTERS or len(self._blocks) > MAX_PENDING_BLOCKS
        ):
            _, dropped = self._blocks.popitem(last=False)
            self._characters -= dropped.characters

    def discard(self, epoch: int, step: int) -> None:
        """Drops the text up to this step, and of lower epochs."""
        for key in [key for key in self._blocks if key[0] < epoch or key[1] <= step]:
            self._characters -= self._blocks.pop(key).characters

    def take(self) -> list[live_pb2.Delta]:
        """Returns and removes all text, oldest first."""
        taken = list(self)
        self.clear()
        return taken

    def clear(self) -> None:
        """Removes all text."""
        self._blocks.clear()
        self._characters = 0
