"""POST /v1/responses: OpenAI's newer API, which the OpenAI Agents SDK uses by default.

A request becomes one of Chat Completions, and so goes through its checks; the answer is in the form of this API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from devstack.simulator.chat_endpoint import ChatEndpoint, chat_error, to_messages_body
from devstack.simulator.delivery import Dialect, ModelReply, ReplyBlock, StreamEvent, piece_length, pieces_of
from devstack.simulator.http_server import ApiError, HttpRequest
from devstack.simulator.messages_endpoint import REFUSED_KEY, parsed_body
from devstack.simulator.tokens import InputTokens

CUT: dict[str, str] = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}
"""The reasons for which an answer is incomplete."""
_TEXTS = {"input_text", "output_text", "text", "refusal"}


# Requests.


def to_chat_body(body: Any) -> dict[str, Any]:
    """Returns the request as one of Chat Completions. Raises ApiError for one that OpenAI would refuse."""
    if not isinstance(body, dict):
        raise ApiError(400, "expected an object")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ApiError(400, "Invalid type for 'input': expected a string or an array of items")
    if body.get("previous_response_id") or body.get("conversation"):
        raise ApiError(400, "the simulator keeps no responses: send the whole conversation as 'input'")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in items:
        _add(messages, item)
    return {
        "model": body.get("model"),
        "max_completion_tokens": body.get("max_output_tokens"),
        "messages": messages,
        "stream": body.get("stream") or False,
        "tools": [_tool(tool) for tool in body.get("tools") or () if tool.get("type") == "function"],
        "response_format": _response_format(body.get("text")),
    }


def _response_format(text: Any) -> dict[str, Any] | None:
    match text:
        case {"format": {"type": "json_schema", "schema": dict(schema)}}:
            return {"type": "json_schema", "json_schema": {"schema": schema}}
    return None


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Adds an item. The text and the calls of one answer are items of their own, and one message of a chat."""
    match item.get("type", "message"):
        case "message":
            role = {"developer": "system"}.get(item.get("role", ""), item.get("role", ""))
            message = {"role": role, "content": _content(item.get("content"))}
            if role == "assistant":
                _answer(messages)["content"] = "".join(part["text"] for part in message["content"] if "text" in part)
            else:
                messages.append(message if role != "system" else {**message, "content": _joined(message["content"])})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _answer(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _joined(_content(output))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        case "reasoning":
            return
        case other:
            raise ApiError(400, f"the simulator knows no item of the type {other!r}")


def _answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the message of the assistant that the item belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content or ():
        if part.get("type") in _TEXTS:
            parts.append({"type": "text", "text": part.get("text") or part.get("refusal") or ""})
        elif part.get("type") == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url") or ""}})
        else:
            raise ApiError(400, f"the simulator knows no content of the type {part.get('type')!r}")
    return parts


def _joined(parts: list[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if "text" in part)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: tool[name] for name in tool if name not in {"type", "strict"}}}


# Answers.


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: ModelReply, index: int, block: ReplyBlock) -> dict[str, Any]:
    """Returns an item of the answer, complete."""
    value: dict[str, Any]
    if block.tool_name is None:
        content = [_text_part(block.text)]
        value = {"id": f"{reply.message_id}_{index}", "type": "message", "role": "assistant", "content": content}
    else:
        value = {"id": f"fc_{block.tool_use_id}", "type": "function_call", "call_id": block.tool_use_id}
        value |= {"name": block.tool_name, "arguments": block.text}
    return {**value, "status": "completed" if block.whole else "incomplete"}


def _opening(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an item at its beginning."""
    emptied: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
    return {**item, **emptied, "status": "in_progress"}


def usage_value(tokens: InputTokens, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens.total,
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens.total + output_tokens,
    }


def response_value(reply: ModelReply, tokens: InputTokens) -> dict[str, Any]:
    """Returns a whole answer."""
    reason = CUT.get(reply.stop_reason)
    return {
        "id": reply.message_id.replace("msg_", "resp_"),
        "object": "response",
        "created_at": 0,
        "model": reply.model,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": [_item(reply, index, block) for index, block in enumerate(reply.blocks)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage_value(tokens, reply.output_tokens),
    }


def response_events(reply: ModelReply, tokens: InputTokens, deltas: int | None) -> Iterator[StreamEvent]:
    """Yields the events of an answer."""
    whole, numbers = response_value(reply, tokens), count()

    def event(kind: str, **fields: Any) -> bytes:
        value = {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}
        return f"event: response.{kind}\ndata: {json.dumps(value)}\n\n".encode()

    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield StreamEvent(event("created", response=begun))
    for index, block in enumerate(reply.blocks):
        item = whole["output"][index]
        at: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        yield StreamEvent(event("output_item.added", output_index=index, item=_opening(item)))
        if block.tool_name is None:
            at["content_index"] = 0
            yield StreamEvent(event("content_part.added", **at, part=_text_part("")))
        kind = "function_call_arguments" if block.tool_name is not None else "output_text"
        for piece in pieces_of(block, piece_length(reply, deltas)):
            logprobs: dict[str, Any] = {} if block.tool_name is not None else {"logprobs": []}
            data = event(f"{kind}.delta", **at, delta=piece, **logprobs)
            yield StreamEvent(data, len(piece.encode()), is_delta=True)
        if block.tool_name is None:
            yield StreamEvent(event("output_text.done", **at, text=block.text, logprobs=[]))
            yield StreamEvent(event("content_part.done", **at, part=_text_part(block.text)))
        else:
            yield StreamEvent(event("function_call_arguments.done", **at, name=block.tool_name, arguments=block.text))
        yield StreamEvent(event("output_item.done", output_index=index, item=item))
    yield StreamEvent(event(str(whole["status"]), response=whole), is_end=True)


def error_event(value: dict[str, Any]) -> bytes:
    error = value["error"]
    event = {"type": "error", "sequence_number": 0, "code": error["code"], "message": error["message"], "param": None}
    return f"event: error\ndata: {json.dumps(event)}\n\n".encode()


RESPONSES = Dialect(response_events, response_value, chat_error, error_event)


@dataclass
class ResponsesEndpoint(ChatEndpoint):
    """The endpoint, with the same scenarios, log, faults and prompt cache."""

    name: str = "responses"
    dialect: Dialect = RESPONSES

    def read(self, request: HttpRequest) -> Any:
        """Returns the body of a request as one of the Messages API. Raises ApiError."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not key or key == REFUSED_KEY:
            raise ApiError(401, "Incorrect API key provided")
        return to_messages_body(to_chat_body(parsed_body(request)))
