"""Is this a request that the provider would take? Refuses in its words, so that a test reads what users would."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tenure.dev.simulator.api_errors import ApiError
from tenure.dev.simulator.conversation import check_conversation

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGES = 100_000
MAX_CACHE_MARKS = 4
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
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


def check_create(body: Any) -> Mapping[str, Any]:
    """The body of POST /v1/messages, if it is valid. Raises ApiError 400. Time is linear in the request."""
    request = _check_common(body, CREATED_FIELDS)
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
    """The body of POST /v1/messages/count_tokens, if it is valid. Raises ApiError 400."""
    return _check_common(body, COUNTED_FIELDS)


def _check_common(body: Any, fields: frozenset[str]) -> Mapping[str, Any]:
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
    _check_tools(body.get("tools") or [], body.get("tool_choice"))
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


def _check_tools(tools: Any, choice: Any) -> None:
    if not isinstance(tools, list):
        raise refuse("tools: Input should be a valid list")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise refuse(f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if name in names:
            raise refuse("tools: Tool names must be unique.")
        names.add(name)
        schema = tool.get("input_schema")
        if tool.get("type") in {None, "custom"} and (not isinstance(schema, dict) or schema.get("type") != "object"):
            raise refuse(f"tools.{index}.custom.input_schema: Field required, with type 'object'")
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
