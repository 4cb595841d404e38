"""Parts of a tool's answer that are not text: kept in the workspace, and named in the text that the model reads.

An image that models can be shown is also shown.
"""

from __future__ import annotations

import asyncio
import mimetypes
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from services.tools.output import DIRECTORY, OutputStore
from services.tools.tool import CallContext, ToolAnswer, ToolFailure, past_return
from tenure.domain.images import Image, NotAnImage
from tenure.domain.tools import OutcomeStatus

Keep = Callable[[bytes, str], str]
"""Stores bytes in a file with the given suffix. Returns where they are, or why they were not stored."""

MAX_PARTS_KEPT: Final = 16
"""How many parts of one answer are kept. The text only mentions further parts."""

_PLAIN_SUFFIX_LENGTH: Final = 8
_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})


def part_text(what: str, content: bytes, mime_type: str, keep: Keep) -> str:
    """Keeps a part and returns the sentence about it."""
    return f"[{what}, {len(content)} bytes: {keep(content, _suffix(mime_type))}]"


def _suffix(mime_type: str) -> str:
    """Returns the file suffix for a MIME type. File names that the other side gives are not trusted."""
    guessed = mimetypes.guess_extension(mime_type.partition(";")[0].strip()) or ".bin"
    return guessed if len(guessed) <= _PLAIN_SUFFIX_LENGTH and guessed[1:].isalnum() else ".bin"


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """Keeps the parts of answers. `threads`: only for writing them."""

    output_store: OutputStore
    threads: Executor

    async def answer(
        self,
        context: CallContext,
        text: Callable[[Keep], str],
        status: OutcomeStatus = OutcomeStatus.SUCCEEDED,
        detail: str = "",
    ) -> ToolAnswer:
        """Returns the answer whose text this returns, after it has kept its parts.

        The effect has already happened, so a cancellation does not discard the answer: it only skips the parts that are
        not written yet.
        """
        keeping = _Keeping(self.output_store, context)

        def work() -> ToolAnswer:
            content = text(keeping.keep)
            return ToolAnswer(content, status, detail, images=tuple(keeping.images))

        writing = asyncio.get_running_loop().run_in_executor(self.threads, work)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            keeping.stopped.set()
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return await past_return(writing)


@dataclass(slots=True)
class _Keeping:
    """The parts of one answer."""

    output_store: OutputStore
    context: CallContext
    stopped: threading.Event = field(default_factory=threading.Event)
    images: list[Image] = field(default_factory=list)
    kept: int = 0

    def keep(self, content: bytes, suffix: str) -> str:
        """Writes a part to a file of the workspace. Returns where it is, or why it was not kept. Blocks."""
        if self.stopped.is_set():
            return "not kept (the call was stopped)"
        if self.kept == MAX_PARTS_KEPT:
            return f"not kept (only the first {MAX_PARTS_KEPT} parts are)"
        self.kept += 1
        # The name is unique to this run: a run that was declared dead cannot change a file that a later run names.
        name, why = f"{self.context.call_id}-{secrets.token_hex(3)}-{self.kept}{suffix}", ""
        path = f"{DIRECTORY}/{name}"
        try:
            try:
                image = self.output_store.keep_image(content, self.context.tenant, self.context.task_id, name)
                self.images.append(image)
                path = image.kept.path
            except NotAnImage as error:
                why = f"; not shown: {error}" if suffix in _IMAGES else ""
                self.output_store.keep(content, self.context.tenant, self.context.task_id, path)
        except (OSError, ToolFailure) as error:
            return f"not kept ({error})"
        return f"kept in the workspace's file {path}{why}"
