"""POST /v1/chat/completions: OpenAI's API in front of the engine that serves the Messages API.

A request becomes one of the Messages API after the checks that OpenAI's own servers make; the answer is written in
OpenAI's form. Prefixes are cached without marks, and nothing is billed for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devstack.simulator.delivery import Dialect, ModelReply, ReplyBlock, StreamEvent, piece_length, pieces_of
from devstack.simulator.http_server import ApiError, HttpRequest
from devstack.simulator.messages_endpoint import REFUSED_KEY, MessagesEndpoint, parsed_body
from devstack.simulator.scenario import Scenario
from devstack.simulator.templates import text_of
from devstack.simulator.tokens import InputTokens
from devstack.simulator.tool_checks import ToolCheck, openai_refusal

NO_USAGE = "sim-no-usage-"
"""The beginning of names of models that send no usage, as some servers do: `sim-no-usage-hello` plays `hello`."""
FINISH_REASONS = {"tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
SYSTEM_ROLES = frozenset({"system", "developer"})
TOO_LONG = "prompt is too long"
KINDS = {401: "invalid_request_error", 429: "rate_limit_error", 404: "invalid_request_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
DEFAULT_MAX_TOKENS = 4096


# Requests.


def to_messages_body(body: Any) -> dict[str, Any]:
    """Returns the request as one of the Messages API. Raises ApiError for a request that OpenAI would refuse."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise ApiError(400, "you must provide a model parameter")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "Invalid type for 'messages': expected an array of objects")
    _check_results(messages)
    instructions: list[str] = []
    converted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message.get("role") in SYSTEM_ROLES:
            instructions.append(text_of(_blocks(message, index)))
        else:
            converted.append(_message(message, index))
    request = {
        "model": body["model"],
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS,
        "messages": _merged(converted),
        "stream": body.get("stream", False),
    }
    if system := "\n\n".join(instructions):
        request["system"] = system
    if tools := [_tool(tool) for tool in body.get("tools") or ()]:
        request["tools"] = tools
    match body.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return request


def _check_results(messages: list[dict[str, Any]]) -> None:
    """Checks that the results of a message's calls follow it at once, and that each result has its call."""
    expected: set[str] = set()
    for index, message in enumerate([*messages, {"role": "end"}]):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in expected:
                raise ApiError(
                    400, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                )
            expected.discard(message["tool_call_id"])
            continue
        if expected:
            raise ApiError(
                400,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(expected)}",
            )
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise ApiError(400, f"Invalid type for 'messages[{index}].tool_calls': expected an array of objects")
        expected = {str(call.get("id")) for call in calls}
        if len(expected) != len(calls):
            raise ApiError(400, f"Duplicate value for 'tool_call_id' in messages[{index}]")


def _message(message: dict[str, Any], index: int) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    for name in message:
        if name not in {"role", "content", "tool_calls", "tool_call_id"}:
            raise ApiError(400, f"Unknown parameter: 'messages[{index}].{name}'.")
    if role == "tool":
        if isinstance(content, list) and any(part.get("type") == "image_url" for part in content):
            raise ApiError(
                400,
                f"Invalid 'messages[{index}]'. Image URLs are only allowed for messages with role 'user', but this "
                "message with role 'tool' contains an image URL.",
            )
        if not isinstance(content, str):
            raise ApiError(400, f"Invalid type for 'messages[{index}].content': expected a string")
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return {"role": "user", "content": [result]}
    if role not in {"user", "assistant"}:
        raise ApiError(
            400, f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', and 'tool'."
        )
    blocks = _blocks(message, index) + [_call(call) for call in message.get("tool_calls") or ()]
    if not blocks:
        raise ApiError(400, f"Invalid value for 'content' of messages[{index}]: expected a string, got null.")
    return {"role": role, "content": blocks}


def _blocks(message: dict[str, Any], index: int) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, list):
        return [_part(part, index) for part in content]
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _part(part: Any, index: int) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            kind, is_data, data = url.removeprefix("data:").partition(";base64,")
            source = {"type": "base64", "media_type": kind, "data": data} if is_data else {"type": "url", "url": url}
            return {"type": "image", "source": source}
    raise ApiError(400, f"Invalid value for 'messages[{index}].content': expected parts of type text or image_url")


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict):
        raise ApiError(400, "Invalid value for 'tool_calls': expected functions")
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError) as error:
        raise ApiError(400, f"Invalid 'arguments' of a tool call: {error}") from error
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        raise ApiError(400, "Invalid value for 'tools': expected functions")
    return {
        "name": function.get("name"),
        "description": function.get("description", ""),
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins neighbours of one role: a chat has one message for each result."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append(message)
    return merged


# Answers.


def _chunk(reply: ModelReply, choices: list[dict[str, Any]], **fields: Any) -> bytes:
    value = {"id": reply.message_id, "object": "chat.completion.chunk", "created": 0, "model": reply.model}
    return f"data: {json.dumps({**value, 'choices': choices, **fields})}\n\n".encode()


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "finish_reason": finish_reason}]


def _delta(block: ReplyBlock, index: int, piece: str) -> dict[str, Any]:
    if block.tool_name is None:
        return {"content": piece}
    return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def chat_events(reply: ModelReply, tokens: InputTokens, deltas: int | None) -> Iterator[StreamEvent]:
    """Yields the chunks of an answer, its usage, and the line that ends it."""
    yield StreamEvent(_chunk(reply, _choice({"role": "assistant", "content": ""})))
    calls = 0
    for block in reply.blocks:
        if block.tool_name is not None:
            function = {"name": block.tool_name, "arguments": ""}
            opening = {"index": calls, "id": block.tool_use_id, "type": "function", "function": function}
            yield StreamEvent(_chunk(reply, _choice({"tool_calls": [opening]})))
            calls += 1
        for piece in pieces_of(block, piece_length(reply, deltas)):
            data = _chunk(reply, _choice(_delta(block, calls - 1, piece)))
            yield StreamEvent(data, len(piece.encode()), is_delta=True)
    yield StreamEvent(_chunk(reply, _choice({}, FINISH_REASONS.get(reply.stop_reason, "stop"))), is_end=True)
    if not reply.model.startswith(NO_USAGE):
        yield StreamEvent(_chunk(reply, [], usage=usage_value(tokens, reply.output_tokens)))
    yield StreamEvent(b"data: [DONE]\n\n")


def usage_value(tokens: InputTokens, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.total,
        "completion_tokens": output_tokens,
        "total_tokens": tokens.total + output_tokens,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
    }


def chat_value(reply: ModelReply, tokens: InputTokens) -> dict[str, Any]:
    """Returns a whole answer."""
    text = "".join(block.text for block in reply.blocks if block.tool_name is None)
    calls = [
        {"id": block.tool_use_id, "type": "function", "function": {"name": block.tool_name, "arguments": block.text}}
        for block in reply.blocks
        if block.tool_name is not None
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
    finish_reason = FINISH_REASONS.get(reply.stop_reason, "stop")
    return {
        "id": reply.message_id,
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": usage_value(tokens, reply.output_tokens),
    }


def chat_error(status: int, message: str, _request_id: str) -> dict[str, object]:
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    kind = "overloaded_error" if status == 529 else kind
    code = "context_length_exceeded" if message.startswith(TOO_LONG) else CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def chat_error_event(value: dict[str, object]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


CHAT = Dialect(chat_events, chat_value, chat_error, chat_error_event)


@dataclass
class ChatEndpoint(MessagesEndpoint):
    """The endpoint, with the same scenarios, log, faults and prompt cache."""

    name: str = "chat"
    dialect: Dialect = CHAT
    check_tool: ToolCheck = openai_refusal

    def read(self, request: HttpRequest) -> Any:
        """Returns the body of a request as one of the Messages API. Raises ApiError."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not key or key == REFUSED_KEY:
            raise ApiError(401, "Incorrect API key provided")
        return to_messages_body(parsed_body(request))

    def find_scenario(self, body: Mapping[str, Any]) -> Scenario:
        """Returns the scenario that a request plays. Raises ApiError."""
        return super().find_scenario({**body, "model": body["model"].replace(NO_USAGE, "sim-")})

    def priced(self, body: Mapping[str, Any], *, caches: bool = True) -> InputTokens:
        """Returns the input tokens. The whole prompt is cached; what that writes costs what input costs."""
        tokens = self.cache.price({**body, "cache_control": {"type": "ephemeral"}}, caches=caches)
        return InputTokens(tokens.plain + tokens.cache_creation, 0, tokens.cache_read)
