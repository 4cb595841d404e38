"""Writes the messages of a conversation and tools as JSON, each one once: to measure them, and to send them with each
call.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.domain.conversation import Message

MAX_TOOL_TEXTS: Final = 1024
MAX_KEPT_CHARACTERS: Final = 16 * 1024
"""The text of a tool that is longer is written anew for each call: those that are kept must not fill the memory."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def as_json(value: Any) -> str:
    """Returns the value as JSON without spaces, as the model providers receive it."""
    return _ENCODER.encode(value)


class ToolTexts:
    """The JSON of tools and of their schemas, which never change: each call sends them again. Keeps the newest ones."""

    def __init__(self, most: int = MAX_TOOL_TEXTS) -> None:
        self._texts: OrderedDict[int, tuple[Mapping[str, Any], str]] = OrderedDict()
        self._most = most

    def of(self, value: Mapping[str, Any]) -> str:
        """Returns the JSON of a value that does not change."""
        known = self._texts.get(id(value))  # the entry keeps the value, so no other one has its id
        if known is not None:
            return known[1]
        text = as_json(value)
        if len(text) > MAX_KEPT_CHARACTERS:
            return text
        self._texts[id(value)] = value, text
        if len(self._texts) > self._most:
            self._texts.popitem(last=False)
        return text


TOOL_TEXTS: Final = ToolTexts()
"""Those of this process: all tasks share the definitions of their tools."""


class MessageTexts:
    """The JSON of one conversation's messages. Messages never change; only the newest ones may be removed."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._texts: list[str] = []

    def of(self, messages: Sequence[Message]) -> list[str]:
        """Returns the JSON of each message. Writes only those that are new since the last call."""
        while self._messages and not self._is_part_of(messages):
            self._messages.pop()
            self._texts.pop()
        for message in messages[len(self._messages) :]:
            self._messages.append(message)
            self._texts.append(as_json(message))
        return list(self._texts)

    def _is_part_of(self, messages: Sequence[Message]) -> bool:
        count = len(self._messages)
        return count <= len(messages) and messages[count - 1] is self._messages[-1]
