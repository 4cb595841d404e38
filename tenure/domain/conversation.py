"""What the model is sent: messages, each with the step it belongs to, and what compactions make of them.

A user message belongs to the step whose answer it follows, so that what is left out up to a step is always whole turns:
no result loses its call, and no call its result.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tenure.domain.entries import ClearedResults, ContentBlock, Summary, ToolIntent
from tenure.domain.tools import Outcome

Message = dict[str, Any]
"""A provider's message: {"role": "user" | "assistant", "content": [blocks]}."""

_TOOL_USE_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")

SUMMARY_HEAD: Final = "The conversation so far had become too long. This summary stands for it:"


class ToolResult(NamedTuple):
    """A tool's result in the conversation, with the step of its call, and what may come in its place."""

    step: int
    block: ContentBlock
    removed: str

    @property
    def saved_bytes(self) -> int:
        """What leaving it out saves."""
        return len(self.block["content"].encode("utf-8", "surrogatepass")) - len(self.removed.encode())


@dataclass(slots=True)
class Conversation:
    """`results`: those that are not cleared. `answered_step`: of the newest answer. `changes` counts compactions.

    `expected_tokens`: of the messages that there were at the newest clearing, by its estimate; 0: nobody knows.
    """

    goal: str = ""
    messages: list[Message] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    answered_step: int = 0
    changes: int = 0
    expected_tokens: int = 0
    expected_messages: int = 0
    _steps: list[int] = field(default_factory=list)
    _unread: list[str] = field(default_factory=list)

    def tell(self, results: Iterable[ToolResult], texts: Iterable[str]) -> None:
        """One user message with all that came since the newest answer; none when nothing came."""
        results, texts = list(results), list(texts)
        content = [*(result.block for result in results), *map(text_block, texts)]
        if content:
            self._add(self.answered_step, {"role": "user", "content": content})
        self.results += results
        self._unread += texts

    def answer(self, step: int, content: Iterable[ContentBlock], *, leads_on: bool) -> None:
        """An answer. `leads_on` False: nothing will follow from it, so that what it answers is still unread."""
        blocks = list(content)
        if blocks:  # an answer cut off in its first call has none, and providers refuse empty messages
            self._add(step, {"role": "assistant", "content": blocks})
        self.answered_step = step
        if leads_on:
            self._unread.clear()

    def drop_answer(self) -> None:
        """Takes the newest message, an answer, out again."""
        self.messages.pop()
        self._steps.pop()
        self.answered_step = self._steps[-1] if self._steps else 0

    def clear_results(self, cleared: ClearedResults) -> None:
        """Leaves out the results of the calls through a step."""
        for result in self.results:
            if result.step <= cleared.through_step:
                result.block["content"] = result.removed
        self.results = [result for result in self.results if result.step > cleared.through_step]
        self.changes += 1
        self.expected_tokens, self.expected_messages = cleared.input_tokens_after, len(self.messages)

    def summarise(self, summary: Summary) -> list[str]:
        """Puts the summary in the place of everything through its step. Gives back words that were not read yet."""
        head = {"role": "user", "content": [text_block(self.goal), text_block(f"{SUMMARY_HEAD}\n\n{summary.text}")]}
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
        """The messages that a summary through this step stands for."""
        return [message for of_step, message in zip(self._steps, self.messages, strict=True) if of_step <= step]

    def _add(self, step: int, message: Message) -> None:
        self.messages.append(message)
        self._steps.append(step)


def text_block(text: str) -> ContentBlock:
    """Words, as a content block."""
    return {"type": "text", "text": text}


def result_of(intent: ToolIntent, outcome: Outcome) -> ToolResult:
    """What the model reads of a call that ended."""
    block = {
        "type": "tool_result",
        "tool_use_id": intent.tool_use_id,
        "content": outcome.content,
        "is_error": outcome.is_error,
    }
    whole = f" All of it is in the workspace's file {outcome.output_path}." if outcome.output_path else ""
    removed = f"[The result of this call was removed to make room.{whole}]"
    return ToolResult(int(intent.call_id.partition(".")[0]), block, removed)


def with_own_ids(content: Iterable[ContentBlock], messages: Iterable[Message], step: int) -> tuple[ContentBlock, ...]:
    """The answer of a step to `messages`, each of its calls with an id that no other call of the conversation has.

    Some providers give ids twice. A result would belong to two calls, and others refuse such a conversation for ever.
    """
    taken = {block.get("id") for message in messages if message["role"] == "assistant" for block in message["content"]}
    blocks: list[ContentBlock] = []
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            own_id = block["id"]
            if own_id in taken or not _TOOL_USE_ID.match(own_id):
                own_id = next(one for one in _own_ids(step, index) if one not in taken)
                block = {**block, "id": own_id}  # noqa: PLW2901  the answer itself is not changed
            taken.add(own_id)
        blocks.append(block)
    return tuple(blocks)


def _own_ids(step: int, index: int) -> Iterator[str]:
    return (f"call_{step}_{index}{'_' * more}" for more in itertools.count())


def text_of(content: Iterable[dict[str, Any]]) -> str:
    """The words in a message's blocks."""
    return "\n\n".join(block["text"] for block in content if block.get("type") == "text" and block.get("text"))
