"""References in the texts and arguments of a scenario, in double braces. They are replaced, never evaluated.

{{turn}}            the number of the turn, counted from 0
{{goal}}            the text of the first user message
{{last_user_text}}  the last user text
{{result.T.C}}      the text of the result of the C-th tool call of turn T, at most 2,000 characters
{{images}}          the images that the request has: type, size in pixels and digest of each
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tenure.domain.images import images_in, read_header

# Conversations that begin with a summary: which turn of the scenario they have reached.

_WANTED = re.compile(r"\bsummari[sz]e the conversation\b", re.IGNORECASE)
_TURN = re.compile(r"\[turn (\d{1,9})\]")
_SO_FAR = re.compile(r"\[(\d{1,9}) turns so far\]")


def is_summary_wanted(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a summary: it has one message and no tools."""
    return len(body["messages"]) == 1 and not body.get("tools") and bool(_WANTED.search(_text(body["messages"][0])))


def summary_text(summary: str, messages: Sequence[Any]) -> str:
    """Returns `summary` with the number of turns that it replaces."""
    text = _text(messages[0])
    turns = [*(int(turn) + 1 for turn in _TURN.findall(text)), *map(int, _SO_FAR.findall(text))]
    return f"{summary} [{max(turns, default=0)} turns so far]"


def turn_of(messages: Sequence[Any]) -> int:
    """Returns the number of the next turn, counted from 0."""
    turns = _SO_FAR.findall(_text(messages[0]))
    return sum(1 for message in messages if message["role"] == "assistant") + (int(turns[-1]) if turns else 0)


def _text(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block.get("type") == "text")


MAX_RESULT_CHARACTERS = 2000
_REFERENCE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_NAMES = re.compile(r"turn|goal|last_user_text|images|result\.\d+\.\d+")


def unknown_references(value: Any) -> list[str]:
    """Returns the unknown references in a text, or in the texts of an argument."""
    return [name for text in _texts(value) for name in _REFERENCE.findall(text) if not _NAMES.fullmatch(name)]


def fill(value: Any, messages: Sequence[Any]) -> Any:
    """Returns `value` with its references replaced by texts of `messages`, a valid conversation. Keeps numbers."""
    if isinstance(value, str):
        if "{{" not in value:
            return value
        return _REFERENCE.sub(lambda match: _resolve(match.group(1), messages), value)
    if isinstance(value, list):
        return [fill(item, messages) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, messages) for key, item in value.items()}
    return value


def text_of(content: Any) -> str:
    """Returns the text of the content of a message or a tool result, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block.get("type") == "text")


def _resolve(name: str, messages: Sequence[Any]) -> str:
    if name == "turn":
        return str(turn_of(messages))
    if name == "images":
        return "; ".join(map(_image, images_in(messages))) or "none"
    texts = (text for message in messages if message["role"] == "user" and (text := text_of(message["content"])))
    if name == "goal":
        return next(texts, "")
    if name == "last_user_text":
        return next((text for text in reversed(list(texts))), "")
    _, turn, call = name.split(".")
    return _result_text(messages, int(turn), int(call))


def _image(source: Mapping[str, Any]) -> str:
    if source["type"] != "base64":
        return str(source["url"])
    content = b64decode(source["data"])
    header = read_header(content)
    digest = hashlib.sha256(content).hexdigest()
    return f"{header.media_type} {header.width}x{header.height} sha256:{digest}"


def _result_text(messages: Sequence[Any], turn: int, call: int) -> str:
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if turn >= len(answers):
        return ""
    calls = [block["id"] for block in _blocks(messages[answers[turn]], "tool_use")]
    results = (block for message in messages[answers[turn] :] for block in _blocks(message, "tool_result"))
    wanted = calls[call] if call < len(calls) else None
    result: dict[str, Any] = next((block for block in results if block["tool_use_id"] == wanted), {})
    return text_of(result.get("content"))[:MAX_RESULT_CHARACTERS]


def _blocks(message: Any, kind: str) -> list[Any]:
    content = message["content"]
    return [] if isinstance(content, str) else [block for block in content if block.get("type") == kind]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
