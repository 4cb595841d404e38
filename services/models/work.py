"""The data of a model call: its key, its request to the provider, and the token that began it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.models.admission import LimitedCall, Permit
from services.models.rules import Attempt
from services.models.vendor_requests import digest_of, media_bytes, read_vendor_request
from tenure.domain.conversation import IMAGE_BYTES
from tenure.domain.errors import InvalidRequest
from tenure.domain.fencing import Claims
from tenure.domain.images import images_in
from tenure.domain.stops import Subject
from tenure.domain.tool_arguments import storable_json
from tenure.model_providers.client import ModelCall, ModelRequest
from tenure.model_providers.message_texts import MAX_KEPT_CHARACTERS
from tenure.model_providers.vendor_calls import VendorCall
from tenure.v1 import model_service_pb2 as pb
from tenure.v1 import token_pb2, tool_pb2
from tenure.wire.common import PRIORITIES, seconds
from tenure.wire.task import parameters_to_domain

FIRST_STEP: Final = 1
MAX_TOOLS_KEPT: Final = 1024


class ModelCallKey(NamedTuple):
    """One model call."""

    task_id: UUID
    attempt: Attempt


@dataclass(slots=True, eq=False)
class CallWork:
    """The data that a call needs to begin. `subject`: what stops select. `permit`: the one that it has already.

    `digest`: of the request of a vendor's library; empty for a prompt.
    """

    request: ModelRequest
    token: token_pb2.FencingToken
    limited: LimitedCall
    subject: Subject
    permit: Permit | None = None
    digest: bytes = b""

    def new_call(self, on_text: Callable[[int, str], None], on_usage: Callable[[], None]) -> ModelCall:
        """Returns the call that is to be made."""
        return (ModelCall if self.request.vendor is None else VendorCall)(on_text, on_usage)

    def forget_prompt(self) -> None:
        """Drops what was sent, once the call has ended."""
        self.request = replace(self.request, messages=(), texts=(), tools=(), system="", vendor=None)


def read_work(request: pb.GenerateRequest, key: ModelCallKey, claims: Claims) -> CallWork:
    """Reads what to send. Raises InvalidRequest for a prompt that no provider could be sent."""
    name = f"{key.task_id}/{key.attempt.step}/{key.attempt.number}"
    if request.HasField("vendor_request"):
        return _read_vendor_work(request, key, claims, name)
    model_request = read_prompt(
        request.prompt,
        name,
        request.max_output_tokens,
        seconds(request.timeout) if request.HasField("timeout") else 0.0,
        request.input_tokens,
    )
    limited = LimitedCall(
        str(key.task_id),
        claims.tenant,
        request.prompt.model,
        PRIORITIES.to_domain(request.priority),
        request.prompt.ByteSize(),
        request.max_output_tokens,
        is_new=key.attempt.step <= FIRST_STEP,
        image_bytes=sum(
            max(0, len(source.get("data") or "") - IMAGE_BYTES) for source in images_in(model_request.messages)
        ),
    )
    return CallWork(model_request, request.token, limited, _subject_of(claims))


def _subject_of(claims: Claims) -> Subject:
    return Subject(claims.tenant, claims.agent, claims.queue)


def _read_vendor_work(request: pb.GenerateRequest, key: ModelCallKey, claims: Claims, name: str) -> CallWork:
    sent = request.vendor_request
    timeout_seconds = seconds(request.timeout) if request.HasField("timeout") else 0.0
    model_request = read_vendor_request(
        sent, name, max_output_tokens=request.max_output_tokens, timeout_seconds=timeout_seconds
    )
    assert model_request.vendor is not None, "it was read as one"
    limited = LimitedCall(
        str(key.task_id),
        claims.tenant,
        model_request.model,
        PRIORITIES.to_domain(request.priority),
        len(sent.body),
        request.max_output_tokens,
        is_new=key.attempt.step <= FIRST_STEP,
        image_bytes=media_bytes(model_request.vendor.members),
    )
    return CallWork(model_request, request.token, limited, _subject_of(claims), digest=digest_of(sent))


def read_prompt(
    prompt: pb.Prompt,
    attempt: str = "",
    max_output_tokens: int = 0,
    timeout_seconds: float = 0.0,
    input_tokens: int = 0,
) -> ModelRequest:
    """Reads a prompt. Raises InvalidRequest."""
    return ModelRequest(
        model=prompt.model,
        messages=[_message(index, text) for index, text in enumerate(prompt.messages_json)],
        texts=tuple(prompt.messages_json),
        max_output_tokens=max_output_tokens,
        system=prompt.system,
        tools=[_tool(index, tool) for index, tool in enumerate(prompt.tools)],
        attempt=attempt,
        timeout_seconds=timeout_seconds,
        is_repeated_soon=prompt.is_repeated_soon,
        input_tokens=input_tokens,
        parameters=parameters_to_domain(prompt.parameters),
    )


def _message(index: int, text: str) -> dict[str, Any]:
    field = f"prompt.messages_json[{index}]"
    message = _json_object(field, text)
    content = message.get("content")
    has_blocks = isinstance(content, list) and bool(content) and all(isinstance(block, dict) for block in content)
    if not isinstance(message.get("role"), str) or not (isinstance(content, str) or has_blocks):
        violation = "must have a role, and a content that is a string or a list of at least one object"
        raise InvalidRequest(violations=[(field, violation)])
    return message


def _tool(index: int, tool: tool_pb2.ToolDefinition) -> dict[str, Any]:
    is_kept = len(tool.description) + len(tool.input_schema_json) <= MAX_KEPT_CHARACTERS
    read = _read_tool if is_kept else _read_tool.__wrapped__
    return read(index, tool.name, tool.description, tool.input_schema_json)


@lru_cache(maxsize=MAX_TOOLS_KEPT)
def _read_tool(index: int, name: str, description: str, input_schema_json: str) -> dict[str, Any]:
    """Returns a tool as the providers take it. Callers share it and must not change it: all calls send the same few."""
    input_schema = _json_object(f"prompt.tools[{index}].input_schema_json", input_schema_json)
    return {"name": name, "description": description, "input_schema": input_schema}


def _json_object(field: str, text: str) -> dict[str, Any]:
    try:
        value = storable_json(text)
    except ValueError as error:
        raise InvalidRequest(violations=[(field, f"must be JSON: {str(error)[:200]}")]) from error
    if not isinstance(value, dict):
        raise InvalidRequest(violations=[(field, "must be a JSON object")])
    return value
