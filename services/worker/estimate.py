"""An upper bound of a request's input in tokens, without asking the provider.

Unknown text counts as one token for three bytes of its JSON: providers' tokens are longer for prose, code and most
languages. Once the provider has counted a prefix of the conversation, its own number is taken for that prefix, so the
slack does not grow with the history. Each message is measured once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.domain.budget import TokenUsage
from tenure.domain.fold import Message

BYTES_PER_TOKEN: Final = 3
TOKENS_PER_REQUEST: Final = 32
TOKENS_PER_MESSAGE: Final = 8
TOKENS_FOR_TOOLS: Final = 512
"""The provider's own words about tools, sent along with the first definition."""


class InputEstimate:
    """The bound for one task's conversation, which only ever grows."""

    def __init__(self, system: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self._fixed = TOKENS_PER_REQUEST + text_tokens(system) + sum(json_tokens(tool) for tool in tools)
        self._fixed += TOKENS_FOR_TOOLS if tools else 0
        self._measured = 0
        self._message_tokens = 0

    def upper_bound(self, messages: Sequence[Message], to_come: Iterable[Message] = ()) -> int:
        """Tokens of a request with `messages` and then `to_come`, which are not in the ledger yet."""
        for message in messages[self._measured :]:
            self._message_tokens += json_tokens(message) + TOKENS_PER_MESSAGE
        self._measured = len(messages)
        return self._fixed + self._message_tokens + sum(json_tokens(one) + TOKENS_PER_MESSAGE for one in to_come)

    def learn(self, sent_messages: int, usage: TokenUsage) -> None:
        """The provider has counted a request of so many messages: its number stands for them, and for what is fixed."""
        counted = usage.total - usage.output_tokens
        if counted > 0 and sent_messages == self._measured:
            self._fixed, self._message_tokens = 0, counted


def json_tokens(value: Any) -> int:
    """An upper bound of the tokens of a JSON value."""
    return text_tokens(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def text_tokens(text: str) -> int:
    """An upper bound of the tokens of a text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
