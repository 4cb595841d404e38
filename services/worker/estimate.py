"""An upper bound of a request's input in tokens, without asking the provider.

Unknown text counts as one token for three bytes, which is more than prose and code take; and as no less than the pieces
that no tokenizer we know of joins: digits by twos, each sign, the first letters of a word, a character beyond ASCII.
That is what numbers, hashes, base64 and most scripts are made of. `python -m bench.input_estimate` measures by how much
it is too high. Once the provider has counted a prefix of the conversation, its own number is taken for that prefix, so
the slack does not grow with the history. Each message is measured once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.domain.conversation import Message

BYTES_PER_TOKEN: Final = 3
_PIECES: Final = re.compile(rb"[A-Za-z][a-z]{0,4}|[0-9]{1,2}|[!-/:-@\[-`{-~]")
_NO_WORDS: Final = re.compile(rb"[a-z]{16}")
_MORE_FOR_NO_WORD: Final = 6
"""So many letters in a row are rather a key than a word: tokens of two letters, not of five."""

_LEADS: Final = ((bytes(range(0xC2, 0xE0)), 1), (bytes(range(0xE0, 0xF0)), 2), (bytes(range(0xF0, 0xF5)), 4))
"""What begins a character of two, three or four bytes, and how many tokens it takes at most."""

TOKENS_PER_REQUEST: Final = 32
TOKENS_PER_MESSAGE: Final = 8
TOKENS_FOR_TOOLS: Final = 512
"""The provider's own words about tools, sent along with the first definition."""

Counted = tuple[int, int]
"""How many messages a request had, and the tokens of all of it."""


def with_margin(counted_tokens: int) -> int:
    """What a prompt takes at most that the provider has counted beforehand: it calls its own count an estimate."""
    return counted_tokens + counted_tokens // 50 + 16


def text_tokens(text: str) -> int:
    """An upper bound of the tokens of a text. Takes 60 µs for a KiB."""
    encoded = text.encode("utf-8", "surrogatepass")
    pieces = _PIECES.subn(b"", encoded)[1] + _MORE_FOR_NO_WORD * _NO_WORDS.subn(b"", encoded)[1]
    if not encoded.isascii():
        pieces += sum(tokens * (len(encoded) - len(encoded.translate(None, leads))) for leads, tokens in _LEADS)
    return max(pieces + pieces // 12, -(-len(encoded) // BYTES_PER_TOKEN))


def likely_tokens(text: str) -> int:
    """Rather too many for prose, code and the definitions of tools; too few for what is no language."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _definition_tokens(tool: Mapping[str, Any]) -> int:
    """Much structure, which tokenizers know well."""
    return likely_tokens(_as_json(tool))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class InputEstimate:
    """The bound for one task's conversation. Messages are not changed; the newest may be taken back.

    `measure` of a text in tokens: for what is only likely, `likely_tokens`.
    """

    def __init__(
        self, system: str, tools: Sequence[Mapping[str, Any]], measure: Callable[[str], int] = text_tokens
    ) -> None:
        self._measure_text = measure
        self._fixed = TOKENS_PER_REQUEST + measure(system) + sum(map(_definition_tokens, tools))
        self._fixed += TOKENS_FOR_TOOLS if tools else 0
        self._measured: list[Message] = []
        self._sums: list[int] = [0]

    def upper_bound(
        self, messages: Sequence[Message], to_come: Iterable[Message] = (), counted: Counted | None = None
    ) -> int:
        """Tokens of a request with `messages` and then `to_come`, which are not in the ledger yet."""
        self._measure(messages)
        known, tokens = counted if counted is not None and counted[0] <= len(messages) else (0, self._fixed)
        return tokens + self._sums[-1] - self._sums[known] + sum(map(self._message_tokens, to_come))

    def _measure(self, messages: Sequence[Message]) -> None:
        while self._measured and not self._is_part_of(messages):
            self._measured.pop()
            self._sums.pop()
        for message in messages[len(self._measured) :]:
            self._measured.append(message)
            self._sums.append(self._sums[-1] + self._message_tokens(message))

    def _message_tokens(self, message: Message) -> int:
        return self._measure_text(_as_json(message)) + TOKENS_PER_MESSAGE

    def _is_part_of(self, messages: Sequence[Message]) -> bool:
        count = len(self._measured)
        return count <= len(messages) and messages[count - 1] is self._measured[-1]
