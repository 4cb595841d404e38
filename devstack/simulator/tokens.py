"""Counts tokens and simulates the prompt cache. It is simple on purpose: a bill must be easy to recompute.

A request is a list of parts: each tool, each system block, each content block. A text costs one token for every four
bytes of UTF-8, rounded up; an image one for every 750 pixels; any other part costs as much as its JSON. The parts up to
a block with `cache_control` (a mark) form a prefix. The longest cached prefix is *read*; the parts from there to the
last mark are *created*; the rest is plain input. The three never overlap.

As at the provider, the cache keeps a prefix for five minutes after its last use, ignores marks on prefixes of less than
1,024 tokens, stores only marked prefixes, and searches at most 20 parts before each mark. It stores 10,000 prefixes.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from tenure.domain.images import images_in, read_header

BYTES_PER_TOKEN = 4
PIXELS_PER_TOKEN = 750
MAX_IMAGE_TOKENS = 1600
MAX_PREFIXES = 10_000
KEPT_SECONDS = 300.0
MIN_TOKENS = 1024
LOOKED_BACK = 20
# One encoder for all parts, because json.dumps with options builds a new one per call.
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class InputTokens:
    """The input tokens of a request, by price."""

    plain: int
    cache_creation: int = 0
    cache_read: int = 0

    @property
    def total(self) -> int:
        return self.plain + self.cache_creation + self.cache_read


class _Part(NamedTuple):
    """A part, of which `image_bytes` are images in base64, that cost `image_tokens`."""

    text: bytes
    marked: bool
    image_bytes: int = 0
    image_tokens: int = 0

    @property
    def tokens(self) -> int:
        return tokens_of_bytes(len(self.text) - self.image_bytes) + self.image_tokens


def tokens_of_bytes(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def count_request(body: Mapping[str, Any]) -> int:
    """Returns all input tokens of a valid request, cached or not. Time is linear in the size of the request."""
    return sum(part.tokens for part in _parts(body))


def prompt_hash(body: Mapping[str, Any]) -> str:
    """Returns a hash of all that the model reads."""
    read = {name: body.get(name) for name in ("model", "tools", "system", "messages")}
    return hashlib.blake2b(_ENCODE(read).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class PromptCache:
    """The cached prefixes. `least_tokens`: the size below which a prefix is not cached. `now`: monotonic seconds."""

    def __init__(self, least_tokens: int = MIN_TOKENS, now: Callable[[], float] = time.monotonic) -> None:
        self._least_tokens = least_tokens
        self._now = now
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def clear(self) -> None:
        self._ends.clear()

    def price(self, body: Mapping[str, Any], *, caches: bool = True) -> InputTokens:
        """Returns the input tokens of a valid request and caches its marked prefixes, unless the request is refused."""
        parts = _parts(body)
        totals = list(accumulate(part.tokens for part in parts))
        total = totals[-1] if totals else 0
        marks = [index for index, part in enumerate(parts) if part.marked and totals[index] >= self._least_tokens]
        if not marks:
            return InputTokens(total)
        prefixes = _prefixes(str(body.get("model")), parts)
        cached = self._find(prefixes, marks)
        read = 0 if cached is None else totals[cached]
        if caches:
            self._remember([prefixes[index] for index in marks])
        return InputTokens(total - totals[marks[-1]], totals[marks[-1]] - read, read)

    def _find(self, prefixes: Sequence[bytes], marks: Sequence[int]) -> int | None:
        """Returns the index of the last part of the longest cached prefix, or None. Renews its five minutes."""
        for mark in reversed(marks):
            for index in range(mark, max(-1, mark - LOOKED_BACK - 1), -1):
                if self._ends.get(prefixes[index], 0.0) > self._now():
                    self._remember([prefixes[index]])
                    return index
        return None

    def _remember(self, prefixes: Sequence[bytes]) -> None:
        for prefix in prefixes:
            self._ends[prefix] = self._now() + KEPT_SECONDS
            self._ends.move_to_end(prefix)
        while len(self._ends) > MAX_PREFIXES:
            self._ends.popitem(last=False)


def _prefixes(model: str, parts: Sequence[_Part]) -> list[bytes]:
    """Returns for each part the hash of the prefix that ends with it."""
    running = hashlib.blake2b(model.encode(), digest_size=16)
    digests = []
    for part in parts:
        running.update(len(part.text).to_bytes(8, "big") + part.text)
        digests.append(running.digest())
    return digests


def _parts(body: Mapping[str, Any]) -> list[_Part]:
    parts = list(_unmarked_parts(body))
    if body.get("cache_control") and parts:  # a mark of the request is a mark on its last block
        parts[-1] = parts[-1]._replace(marked=True)
    return parts


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
    images = [source["data"] for source in images_in([{"role": "user", "content": [block]}]) if "data" in source]
    return _Part(_ENCODE(bare).encode(), marked, sum(map(len, images)), sum(map(_image_tokens, images)))


def _image_tokens(data: str) -> int:
    header = read_header(b64decode(data))
    return min(MAX_IMAGE_TOKENS, -(-header.width * header.height // PIXELS_PER_TOKEN))
