"""Builds the messages that the model is sent, with the step of each message, and applies compactions to them.

A user message belongs to the step whose answer it follows. So a compaction through a step always removes whole turns:
no result loses its call, and no call loses its result.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tenure.domain.entries import ClearedResults, ContentBlock, Summary, ToolIntent
from tenure.domain.images import SubmittedFile, files_text, image_block
from tenure.domain.tools import Outcome

Message = dict[str, Any]
"""A provider's message: {"role": "user" | "assistant", "content": [blocks]}."""

_TOOL_USE_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")

IMAGE_BYTES: Final = 4 * 1600
"""The size of a text that costs as much as most images."""

SUMMARY_HEAD: Final = "The conversation so far had become too long. This summary stands for it:"


class ToolResult(NamedTuple):
    """A tool result in the conversation. `removed`: the text that replaces it; `call`: the tool and the call."""

    step: int
    block: ContentBlock
    removed: str
    call: str

    @property
    def saved_bytes(self) -> int:
        """The bytes that the removal of this result saves. An image counts with what it costs as text."""
        content = self.block["content"]
        images = 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)
        text = result_text(self.block)
        return len(text.encode("utf-8", "surrogatepass")) + images * IMAGE_BYTES - len(self.removed.encode())


@dataclass(slots=True)
class Conversation:
    """The conversation of a task, after all compactions so far.

    `results`: the tool results that are not cleared. `answered_step`: the step of the newest answer. `changes` counts
    compactions. `expected_tokens`: the estimate, made at the newest clearing of results, for the first
    `expected_messages` messages; 0: unknown. `files`: those of the submit, which belong to the goal.
    """

    goal: str = ""
    files: tuple[SubmittedFile, ...] = ()
    messages: list[Message] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    answered_step: int = 0
    changes: int = 0
    expected_tokens: int = 0
    expected_messages: int = 0
    _steps: list[int] = field(default_factory=list)
    _unread: list[ContentBlock] = field(default_factory=list)

    def add_user_message(self, results: Iterable[ToolResult], said: Iterable[ContentBlock]) -> None:
        """Adds one user message with the results, and with what was said, since the newest answer; or none if there
        is nothing.
        """
        results, said = list(results), list(said)
        content = [*(result.block for result in results), *said]
        if content:
            self._add(self.answered_step, {"role": "user", "content": content})
        self.results += results
        self._unread += said

    def add_answer(self, step: int, content: Iterable[ContentBlock], *, can_continue: bool) -> None:
        """Adds an answer. `can_continue` False: it is a dead end, so what it answers stays unread."""
        blocks = list(content)
        if blocks:  # an answer truncated in its first tool call has no blocks, and providers refuse empty messages
            self._add(step, {"role": "assistant", "content": blocks})
        self.answered_step = step
        if can_continue:
            self._unread.clear()

    def drop_answer(self) -> None:
        """Removes the newest message, which must be an answer."""
        self.messages.pop()
        self._steps.pop()
        self.answered_step = self._steps[-1] if self._steps else 0

    def clear_results(self, cleared: ClearedResults) -> None:
        """Replaces the results of the calls through a step by short texts."""
        for result in self.results:
            if result.step <= cleared.through_step:
                result.block["content"] = result.removed
        self.results = [result for result in self.results if result.step > cleared.through_step]
        self.changes += 1
        self.expected_tokens, self.expected_messages = cleared.input_tokens_after, len(self.messages)

    def summarise(self, summary: Summary) -> list[ContentBlock]:
        """Replaces all messages through the summary's step by the summary. Returns what was not read yet."""
        summary_text = f"{SUMMARY_HEAD}\n\n{summary.text}"
        head = {"role": "user", "content": [*said_content(self.goal, self.files), text_block(summary_text)]}
        kept = [
            (step, message)
            for step, message in zip(self._steps, self.messages, strict=True)
            if step > summary.through_step
        ]
        self.messages = [head, *(message for _, message in kept)]
        self._steps = [summary.through_step, *(step for step, _ in kept)]
        self.results = [result for result in self.results if result.step > summary.through_step]
        self.changes += 1
        self.expected_tokens = self.expected_messages = 0
        if summary.through_step < self.answered_step:
            return []
        unread, self._unread = self._unread, []
        return unread

    def through(self, step: int) -> list[Message]:
        """Returns the messages that a summary through this step replaces."""
        return [
            message for message_step, message in zip(self._steps, self.messages, strict=True) if message_step <= step
        ]

    def _add(self, step: int, message: Message) -> None:
        self.messages.append(message)
        self._steps.append(step)


def said_content(text: str, files: Sequence[SubmittedFile]) -> list[ContentBlock]:
    """Returns what the model reads of a goal or a message: the text, the names of its files, and its images."""
    names = [text_block(files_text(files))] if files else []
    return [text_block(text), *names, *(image_block(file.image) for file in files if file.image is not None)]


def result_text(block: ContentBlock) -> str:
    """Returns the text of a tool result."""
    content = block.get("content") or ""
    return content if isinstance(content, str) else text_of(content)


def text_block(text: str) -> ContentBlock:
    """Returns a text as a content block."""
    return {"type": "text", "text": text}


def result_of(intent: ToolIntent, outcome: Outcome) -> ToolResult:
    """Returns the tool result that the model reads of a call. Providers refuse the images of a failed call."""
    images = [] if outcome.is_error else [image_block(image) for image in outcome.images]
    block = {
        "type": "tool_result",
        "tool_use_id": intent.tool_use_id,
        "content": [text_block(outcome.text), *images] if images else outcome.text,
        "is_error": outcome.is_error,
    }
    whole = f" All of it is in the workspace's file {outcome.output_path}." if outcome.output_path else ""
    removed = f"[The result of this call was removed to make room.{whole}]"
    return ToolResult(int(intent.call_id.partition(".")[0]), block, removed, f"{intent.tool}, call {intent.call_id}")


def with_own_ids(content: Iterable[ContentBlock], messages: Iterable[Message], step: int) -> tuple[ContentBlock, ...]:
    """Returns the answer of a step to `messages`, in which each tool call has an id that is unique in the conversation.

    Some model providers repeat ids. A result would then belong to two calls, and other providers refuse such a
    conversation for ever.
    """
    taken = {block.get("id") for message in messages if message["role"] == "assistant" for block in message["content"]}
    blocks: list[ContentBlock] = []
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            own_id = block["id"]
            if own_id in taken or not _TOOL_USE_ID.match(own_id):
                own_id = next(candidate for candidate in _own_ids(step, index) if candidate not in taken)
                block = {**block, "id": own_id}  # noqa: PLW2901  the answer itself is not changed
            taken.add(own_id)
        blocks.append(block)
    return tuple(blocks)


def _own_ids(step: int, index: int) -> Iterator[str]:
    return (f"call_{step}_{index}{'_' * more}" for more in itertools.count())


def text_of(content: Iterable[dict[str, Any]]) -> str:
    """Returns the text in a message's blocks, joined by empty lines."""
    return "\n\n".join(block["text"] for block in content if block.get("type") == "text" and block.get("text"))
