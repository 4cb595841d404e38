"""Conversations of which a summary stands for the beginning: where in its scenario such a conversation is.

Turns are counted by the assistant's messages, which a summary takes away. So a summary by the simulator says how many
turns it stands for; to know that of a conversation that comes as one text, turns say `[turn {{turn}}]` in their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WANTED = re.compile(r"\bsummari[sz]e the conversation\b", re.IGNORECASE)
_TURN = re.compile(r"\[turn (\d{1,9})\]")
_SO_FAR = re.compile(r"\[(\d{1,9}) turns so far\]")


def is_summary_wanted(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for nothing but a summary: one message, and no tools to go on with."""
    return len(body["messages"]) == 1 and not body.get("tools") and bool(_WANTED.search(_text(body["messages"][0])))


def summary_text(words: str, messages: Sequence[Any]) -> str:
    """`words`, and how many turns they stand for."""
    text = _text(messages[0])
    turns = [*(int(turn) + 1 for turn in _TURN.findall(text)), *map(int, _SO_FAR.findall(text))]
    return f"{words} [{max(turns, default=0)} turns so far]"


def turn_of(messages: Sequence[Any]) -> int:
    """Which turn comes next, counted from 0."""
    told = _SO_FAR.findall(_text(messages[0]))
    return sum(1 for message in messages if message["role"] == "assistant") + (int(told[-1]) if told else 0)


def _text(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block.get("type") == "text")
