"""Refuses the requests that the provider would refuse, with the provider's messages.

Among others, each tool_use needs exactly one tool_result in the next message, and each tool_result needs its tool_use.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devstack.simulator.http_server import ApiError
from devstack.simulator.tool_checks import ToolCheck, anthropic_refusal
from tenure.domain.images import MAX_SHOWN, MAX_SIDE, MEDIA_TYPES, Header, NotAnImage, images_in, read_header

TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")
USER_ONLY = frozenset({"tool_result", "image", "document", "search_result", "container_upload"})
RESULT_PARTS = frozenset({"text", "image", "document", "search_result"})
ASSISTANT_ONLY = frozenset({"tool_use", "server_tool_use", "thinking", "redacted_thinking"})
SERVER_RESULTS = re.compile(r"(?:web_search|web_fetch|tool_search|(?:bash_|text_editor_)?code_execution)_tool_result")


@dataclass
class _Group:
    """Consecutive messages of one role, which the provider combines into one."""

    role: str
    index: int
    blocks: list[dict[str, Any]] = field(default_factory=list)


def check_conversation(messages: list[Any]) -> None:
    """Checks a conversation. Raises ApiError 400 for the first error."""
    groups: list[_Group] = []
    for index, message in enumerate(messages):
        role = _role(message, index)
        blocks = _blocks(message, index, last=index == len(messages) - 1)
        if role == "system":
            continue
        if not groups or groups[-1].role != role:
            groups.append(_Group(role, index))
        groups[-1].blocks += blocks
    if not groups or groups[0].role != "user":
        raise ApiError(400, 'messages: first message must use the "user" role')
    _check_pairing(groups)
    check_images(list(images_in(messages)))


MAX_IMAGE_BASE64 = 5 * 1024 * 1024
MAX_SIDE_OF_MANY = 2000


def check_images(sources: list[Mapping[str, Any]]) -> None:
    """Checks the images of a conversation: their types, their sizes, and whether they are what they claim to be."""
    side = MAX_SIDE if len(sources) <= MAX_SHOWN else MAX_SIDE_OF_MANY
    for index, source in enumerate(sources):
        place = f"messages: image {index}"
        if source.get("type") == "base64":
            header = _checked_image(source, place)
            if max(header.width, header.height) > side:
                message = f"{place}: At least one of the image dimensions exceed max allowed size: {side} pixels"
                raise ApiError(400, message)
        elif source.get("type") != "url" or not str(source.get("url")).startswith("https://"):
            raise ApiError(400, f"{place}.source: Input tag does not match any of the expected tags: 'base64', 'url'")


def _checked_image(source: Mapping[str, Any], place: str) -> Header:
    data, media_type = source.get("data"), source.get("media_type")
    if media_type not in MEDIA_TYPES:
        raise ApiError(400, f"{place}.source.base64.media_type: Input should be {' or '.join(MEDIA_TYPES)}")
    if not isinstance(data, str) or not data:
        raise ApiError(400, f"{place}.source.base64.data: Field required")
    if len(data) > MAX_IMAGE_BASE64:
        raise ApiError(400, f"{place}: image exceeds 5 MB maximum: {len(data)} bytes > {MAX_IMAGE_BASE64} bytes")
    try:
        content = b64decode(data, validate=True)
        header = read_header(content)
        _decode_png(content)
    except binascii.Error as error:
        raise ApiError(400, f"{place}.source.base64.data: invalid base64 data") from error
    except (NotAnImage, zlib.error) as error:
        raise ApiError(400, f"{place}: Could not process image ({error})") from error
    if header.media_type != media_type:
        raise ApiError(400, f"{place}: Image does not match the provided media type {media_type}")
    return header


def _decode_png(content: bytes) -> None:
    """Unpacks the beginning of a PNG's pixels, as a provider does. Raises zlib.error."""
    at = content.find(b"IDAT") if content.startswith(b"\x89PNG") else -1
    if at > 0:
        length = int.from_bytes(content[at - 4 : at])
        zlib.decompressobj().decompress(content[at + 4 : at + 4 + length], 4096)


def _role(message: Any, index: int) -> str:
    if not isinstance(message, dict):
        raise ApiError(400, f"messages.{index}: Input should be a valid dictionary")
    for name in message:
        if name not in {"role", "content"}:
            raise ApiError(400, f"messages.{index}.{name}: Extra inputs are not permitted")
    if message.get("role") not in {"user", "assistant", "system"}:
        raise ApiError(400, f"messages.{index}.role: Input should be 'user', 'assistant' or 'system'")
    return str(message["role"])


def _blocks(message: dict[str, Any], index: int, *, last: bool) -> list[dict[str, Any]]:
    content = message.get("content")
    if content is None:
        raise ApiError(400, f"messages.{index}.content: Field required")
    if not isinstance(content, str | list):
        raise ApiError(400, f"messages.{index}.content: Input should be a valid string or list")
    if not content and not (last and message["role"] == "assistant"):
        raise ApiError(
            400,
            f"messages.{index}: all messages must have non-empty content "
            "except for the optional final assistant message",
        )
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    for position, block in enumerate(content):
        _check_block(block, message["role"], f"messages.{index}.content.{position}")
    return content


def _check_block(block: Any, role: str, place: str) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise ApiError(400, f"{place}: Input should be a valid dictionary with a type")
    if kind == "text":
        _check_text(block, place)
    elif kind in USER_ONLY:
        if role != "user":
            raise ApiError(400, f"{place}: `{kind}` blocks can only be in `user` messages")
        if kind == "tool_result":
            _check_tool_result(block, place)
    elif kind in ASSISTANT_ONLY:
        if role != "assistant":
            raise ApiError(400, f"{place}: `{kind}` blocks can only be in `assistant` messages")
        if kind == "tool_use":
            _check_tool_use(block, place)
    elif not SERVER_RESULTS.fullmatch(kind):
        raise ApiError(400, f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _check_text(block: dict[str, Any], place: str) -> None:
    if not isinstance(block.get("text"), str):
        raise ApiError(400, f"{place}.text.text: Input should be a valid string")
    if not block["text"]:
        raise ApiError(400, "messages: text content blocks must be non-empty")
    if block["text"].isspace():
        raise ApiError(400, "messages: text content blocks must contain non-whitespace text")


def _check_tool_use(block: dict[str, Any], place: str) -> None:
    if not isinstance(block.get("id"), str) or not TOOL_USE_ID.fullmatch(block["id"]):
        raise ApiError(400, f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block.get("name"), str) or not 1 <= len(block["name"]) <= 200:
        raise ApiError(400, f"{place}.tool_use.name: String should have at least 1 and at most 200 characters")
    if not isinstance(block.get("input"), dict):
        raise ApiError(400, f"{place}.tool_use.input: Input should be a valid dictionary")


def _check_tool_result(block: dict[str, Any], place: str) -> None:
    if not isinstance(block.get("tool_use_id"), str):
        raise ApiError(400, f"{place}.tool_result.tool_use_id: Field required")
    if not isinstance(block.get("is_error", False), bool):
        raise ApiError(400, f"{place}.tool_result.is_error: Input should be a valid boolean")
    content = block.get("content", "")
    if not isinstance(content, str | list):
        raise ApiError(400, f"{place}.tool_result.content: Input should be a valid string or list")
    for position, part in enumerate(content if isinstance(content, list) else ()):
        inner = f"{place}.tool_result.content.{position}"
        if not isinstance(part, dict) or part.get("type") not in RESULT_PARTS:
            raise ApiError(400, f"{inner}: Input tag does not match any of the expected tags")
        if part["type"] == "text":
            _check_text(part, inner)
        elif block.get("is_error"):
            raise ApiError(400, f'{place}.tool_result: all content must be type "text" if "is_error" is true')


def _check_pairing(groups: list[_Group]) -> None:
    seen: set[str] = set()
    tool_use_ids: list[str] = []
    for group in groups:
        if group.role == "user":
            _check_results(group, tool_use_ids)
            tool_use_ids = []
            continue
        tool_use_ids = [block["id"] for block in group.blocks if block["type"] == "tool_use"]
        if len(set(tool_use_ids)) < len(tool_use_ids) or not seen.isdisjoint(tool_use_ids):
            raise ApiError(400, "messages: `tool_use` ids must be unique")
        seen.update(tool_use_ids)
    if tool_use_ids:
        raise _unanswered(groups[-1].index, tool_use_ids)


def _check_results(group: _Group, tool_use_ids: list[str]) -> None:
    results = [block["tool_use_id"] for block in group.blocks if block["type"] == "tool_result"]
    for identity in results:
        if identity not in tool_use_ids:
            raise ApiError(
                400,
                f"messages.{group.index}.content: unexpected `tool_use_id` found in `tool_result` blocks: {identity}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
            )
        if results.count(identity) > 1:
            raise ApiError(
                400,
                f"messages.{group.index}.content: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {identity}",
            )
    # The results must come first: if a text precedes them, the provider treats the calls as unanswered.
    leading = [block["type"] == "tool_result" for block in group.blocks[: len(results)]]
    missing = [identity for identity in tool_use_ids if identity not in results] or (
        [] if all(leading) else tool_use_ids
    )
    if missing:
        raise _unanswered(group.index - 1, missing)


def _unanswered(index: int, identities: list[str]) -> ApiError:
    return ApiError(
        400,
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(identities)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    )


# Requests. The messages are the provider's own, so that tests see the same messages as users.

MAX_MESSAGES = 100_000
MAX_CACHE_MARKS = 4
COUNTED_FIELDS = frozenset(
    [
        "cache_control",
        "context_management",
        "mcp_servers",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
        "user_profile_id",
        "workspace_id",
    ]
)
CREATED_FIELDS = COUNTED_FIELDS | frozenset(
    [
        "container",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "metadata",
        "service_tier",
        "stop_sequences",
        "stream",
        "temperature",
        "top_k",
        "top_p",
    ]
)


def refuse(message: str) -> ApiError:
    return ApiError(400, message)


def check_create(body: Any, check_tool: ToolCheck = anthropic_refusal) -> Mapping[str, Any]:
    """Returns the body of POST /v1/messages if it is valid. Raises ApiError 400. Time is linear in its size."""
    request = _check_common(body, CREATED_FIELDS, check_tool)
    max_tokens = request.get("max_tokens")
    if max_tokens is None:
        raise refuse("max_tokens: Field required")
    if not _is_count(max_tokens):
        raise refuse("max_tokens: Input should be an integer, greater than or equal to 0")
    if not isinstance(request.get("stream", False), bool):
        raise refuse("stream: Input should be a valid boolean")
    metadata = request.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(metadata.get("user_id") or "", str):
        raise refuse("metadata.user_id: Input should be a valid string")
    return request


def check_count(body: Any) -> Mapping[str, Any]:
    """Returns the body of POST /v1/messages/count_tokens if it is valid. Raises ApiError 400."""
    return _check_common(body, COUNTED_FIELDS, anthropic_refusal)


def _check_common(body: Any, fields: frozenset[str], check_tool: ToolCheck) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise refuse("Input should be a valid dictionary or object to extract fields from")
    for name in body:
        if name not in fields:
            raise refuse(f"{name}: Extra inputs are not permitted")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise refuse("model: Field required" if "model" not in body else "model: Input should be a valid string")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise refuse("messages: Field required" if messages is None else "messages: Input should be a valid list")
    if not messages:
        raise refuse("messages: at least one message is required")
    if len(messages) > MAX_MESSAGES:
        raise refuse(f"messages: at most {MAX_MESSAGES} messages are allowed")
    _check_system(body.get("system"))
    _check_tools(body.get("tools") or [], body.get("tool_choice"), check_tool)
    check_conversation(messages)
    _check_cache_marks(body)
    return body


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise refuse("system: Input should be a valid string or a list of text blocks")
    for index, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise refuse(f"system.{index}: Input should be a text block")
        if not block["text"]:
            raise refuse("system: text content blocks must be non-empty")


def _check_tools(tools: Any, choice: Any, check_tool: ToolCheck) -> None:
    if not isinstance(tools, list):
        raise refuse("tools: Input should be a valid list")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if refusal := check_tool(index, tool):
            raise refuse(refusal)
        if tool["name"] in names:
            raise refuse("tools: Tool names must be unique.")
        names.add(tool["name"])
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") not in names:
        raise refuse(f"Tool '{choice.get('name')}' not found in provided tools")
    if choice is not None and not tools:
        raise refuse("tool_choice: tool_choice may only be specified while providing tools")


def _check_cache_marks(body: Mapping[str, Any]) -> None:
    contents = [body.get("tools") or [], body.get("system") or [], *(entry["content"] for entry in body["messages"])]
    marks = sum(
        1 for content in contents if not isinstance(content, str) for block in content if block.get("cache_control")
    )
    if marks > MAX_CACHE_MARKS:
        raise refuse(f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. Found {marks}.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
