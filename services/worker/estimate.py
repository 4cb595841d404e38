"""An upper bound of a request's input in tokens, without asking the provider.

Unknown text counts as one token for three bytes of its JSON: providers' tokens are longer for prose, code and most
languages. Once the provider has counted a prefix of the conversation, its own number is taken for that prefix, so the
slack does not grow with the history. Each message is measured once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.domain.conversation import Message

BYTES_PER_TOKEN: Final = 3
TOKENS_PER_REQUEST: Final = 32
TOKENS_PER_MESSAGE: Final = 8
TOKENS_FOR_TOOLS: Final = 512
"""The provider's own words about tools, sent along with the first definition."""

Counted = tuple[int, int]
"""How many messages a request had, and the tokens of all of it."""


class InputEstimate:
    """The bound for one task's conversation. Messages are not changed; the newest may be taken back."""

    def __init__(self, system: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self._fixed = TOKENS_PER_REQUEST + text_tokens(system) + sum(json_tokens(tool) for tool in tools)
        self._fixed += TOKENS_FOR_TOOLS if tools else 0
        self._measured: list[Message] = []
        self._sums: list[int] = [0]

    def upper_bound(
        self, messages: Sequence[Message], to_come: Iterable[Message] = (), counted: Counted | None = None
    ) -> int:
        """Tokens of a request with `messages` and then `to_come`, which are not in the ledger yet."""
        self._measure(messages)
        known, tokens = counted if counted is not None and counted[0] <= len(messages) else (0, self._fixed)
        return tokens + self._sums[-1] - self._sums[known] + sum(map(_message_tokens, to_come))

    def _measure(self, messages: Sequence[Message]) -> None:
        while self._measured and not self._is_part_of(messages):
            self._measured.pop()
            self._sums.pop()
        for message in messages[len(self._measured) :]:
            self._measured.append(message)
            self._sums.append(self._sums[-1] + _message_tokens(message))

    def _is_part_of(self, messages: Sequence[Message]) -> bool:
        count = len(self._measured)
        return count <= len(messages) and messages[count - 1] is self._measured[-1]


def with_margin(counted_tokens: int) -> int:
    """What a prompt takes at most that the provider has counted beforehand: it calls its own count an estimate."""
    return counted_tokens + counted_tokens // 50 + 16


def json_tokens(value: Any) -> int:
    """An upper bound of the tokens of a JSON value."""
    return text_tokens(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def text_tokens(text: str) -> int:
    """An upper bound of the tokens of a text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _message_tokens(message: Message) -> int:
    return json_tokens(message) + TOKENS_PER_MESSAGE
