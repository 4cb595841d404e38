"""Which parts of a prompt the provider is asked to keep, so that the next request reads them at a tenth of the price.

Decided by the prompt alone: whoever takes the task over sends the very same. A mark covers all that is before it:

tools, system ─┤ mark    same for all tasks of an agent
history ───────┤ mark    where the request before this one ended: it is found whatever came since
newest message ┤ mark    where the next request will find this one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenure.domain.conversation import Message

LEAST_TOKENS: Final = 1024
"""The provider keeps no prefix that is shorter, whatever the model. The limit of marks, four, is never reached."""

_MARK: Final = {"type": "ephemeral"}
_MARKED_MESSAGES: Final = 2


class Prompt(NamedTuple):
    """What the model reads. `system` "": there is none."""

    system: str | list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    messages: Sequence[Message]


def marked(prompt: Prompt) -> Prompt:
    """The same prompt with its marks. Nothing given is changed, and what is not marked is not copied."""
    system, tools, messages = prompt
    if isinstance(system, str) and system:
        system = [{"type": "text", "text": system, "cache_control": _MARK}]
    elif tools:
        tools = [*tools[:-1], {**tools[-1], "cache_control": _MARK}]
    ends = [index for index, message in enumerate(messages) if message["role"] == "user"][-_MARKED_MESSAGES:]
    marked_messages = list(messages)
    for index in ends:
        marked_messages[index] = _with_mark(messages[index])
    return Prompt(system, tools, marked_messages)


def _with_mark(message: Message) -> Message:
    """A user's message: its last block is a text or a tool's result, both of which can be marked."""
    content: Any = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": _MARK}]}
