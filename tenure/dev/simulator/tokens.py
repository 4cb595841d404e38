"""Counting tokens, and what of them the prompt cache holds. Simple on purpose: a bill must be easy to recompute.

A request is a list of parts: each tool, each system block, each content block. A text costs one token for every four
bytes of UTF-8, rounded up; any other part costs as much as its JSON. Parts up to a block marked `cache_control` form a
prefix. The longest prefix seen before is *read*; the parts from there to the last mark are *created*; the rest is plain
input. The three never overlap.
Unlike the provider's, the cache has no smallest prefix and no expiry; it keeps the last 10,000 prefixes.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BYTES_PER_TOKEN = 4
MAX_PREFIXES = 10_000
# One encoder for all parts: json.dumps with options of its own would build one per call.
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class InputTokens:
    """What a request costs before its answer."""

    plain: int
    cache_creation: int = 0
    cache_read: int = 0

    @property
    def total(self) -> int:
        return self.plain + self.cache_creation + self.cache_read


class _Part(NamedTuple):
    text: bytes
    marked: bool


def count_text(text: str) -> int:
    return tokens_of_bytes(len(text.encode()))


def tokens_of_bytes(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def count_request(body: Mapping[str, Any]) -> int:
    """All input tokens of a valid request, cached or not. Time is linear in the request."""
    return sum(tokens_of_bytes(len(part.text)) for part in _parts(body))


def prompt_hash(body: Mapping[str, Any]) -> str:
    """Of all that the model reads."""
    read = {name: body.get(name) for name in ("model", "tools", "system", "messages")}
    return hashlib.blake2b(_ENCODE(read).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class PromptCache:
    """The prefixes seen so far."""

    def __init__(self) -> None:
        self._prefixes: OrderedDict[bytes, None] = OrderedDict()

    def clear(self) -> None:
        self._prefixes.clear()

    def price(self, body: Mapping[str, Any]) -> InputTokens:
        """The input tokens of a valid request, and remember its marked prefixes."""
        parts = _parts(body)
        if not any(part.marked for part in parts):
            return InputTokens(sum(tokens_of_bytes(len(part.text)) for part in parts))
        running = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16)
        total = read = marked_total = 0
        marks: list[bytes] = []
        for part in parts:
            total += tokens_of_bytes(len(part.text))
            running.update(len(part.text).to_bytes(8) + part.text)
            prefix = running.digest()
            if prefix in self._prefixes:
                self._prefixes.move_to_end(prefix)
                read = total
            if part.marked:
                marked_total = total
                marks.append(prefix)
        self._remember(marks)
        read = min(read, marked_total)
        return InputTokens(total - marked_total, marked_total - read, read)

    def _remember(self, prefixes: list[bytes]) -> None:
        for prefix in prefixes:
            self._prefixes[prefix] = None
        while len(self._prefixes) > MAX_PREFIXES:
            self._prefixes.popitem(last=False)


def _parts(body: Mapping[str, Any]) -> list[_Part]:
    everything = list(_unmarked_parts(body))
    if body.get("cache_control") and everything:  # the request's own mark stands for one on its last block
        everything[-1] = _Part(everything[-1].text, marked=True)
    return everything


def _unmarked_parts(body: Mapping[str, Any]) -> Iterator[_Part]:
    for tool in body.get("tools") or ():
        yield _part(tool)
    yield from _content_parts(body.get("system") or ())
    for message in body["messages"]:
        yield from _content_parts(message["content"])


def _content_parts(content: Any) -> Iterator[_Part]:
    if isinstance(content, str):
        yield _Part(content.encode(), marked=False)
        return
    for block in content:
        yield _part(block)


def _part(block: Mapping[str, Any]) -> _Part:
    marked = bool(block.get("cache_control"))
    if block.get("type") == "text":
        return _Part(str(block["text"]).encode(), marked)
    bare = {key: value for key, value in block.items() if key != "cache_control"} if marked else block
    return _Part(_ENCODE(bare).encode(), marked)
