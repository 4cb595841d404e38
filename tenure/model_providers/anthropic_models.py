"""The provider Anthropic, through its library: the Messages API of Anthropic itself, of Amazon Bedrock or of Vertex AI.

Only this file knows the library `anthropic`. The worker retries and records each retry in the ledger: the library's own
two retries would be invisible there and on the bill.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import anthropic
import httpx2

from tenure.domain.conversation import Message
from tenure.domain.model_parameters import ANY_TOOL, AUTO, MIN_THINKING_TOKENS, NO_TOOL, Effort, ModelParameters
from tenure.domain.models import ATTEMPT_HEADER
from tenure.domain.retry import says_unpaid
from tenure.model_providers.chat_messages import without_chat_parts
from tenure.model_providers.client import (
    LibraryErrors,
    ModelCall,
    ModelCallFailed,
    ModelRequest,
    parameter_members,
    read_answer,
    refused,
    text_in,
)
from tenure.model_providers.endpoint import KnownEndpoint, OptionsOf, no_options
from tenure.model_providers.http import open_http_client, timeout_of
from tenure.model_providers.message_texts import TOOL_TEXTS, as_json
from tenure.model_providers.platforms import API, BEDROCK, VERTEX
from tenure.model_providers.stream import MalformedAnswer, shown
from tenure.model_providers.vendor_calls import Chunks, pass_on

# Prompt caching: the marked parts of a prompt are kept by the provider, and the next request reads them at a tenth of
# the price.

ID_HEADER: Final = "request-id"
_MARK: Final = {"type": "ephemeral"}
_MARKED_MESSAGES: Final = 2


class Prompt(NamedTuple):
    """The input of the model. `system` "" means no system prompt."""

    system: str | list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    messages: Sequence[Message]


def marked(prompt: Prompt) -> Prompt:
    """Returns the prompt with its cache marks. Does not change the argument, and copies only what it marks."""
    system, tools, messages = prompt
    if isinstance(system, str) and system:
        system = [{"type": "text", "text": system, "cache_control": _MARK}]
    elif tools:
        tools = [*tools[:-1], {**tools[-1], "cache_control": _MARK}]
    ends = [index for index, message in enumerate(messages) if message["role"] == "user"][-_MARKED_MESSAGES:]
    marked_messages = list(messages)
    for index in ends:
        marked_messages[index] = _with_mark(messages[index])
    return Prompt(system, tools, marked_messages)


def _with_mark(message: Message) -> Message:
    """Marks the last block of a user message, which is a text or a tool result: both may carry a mark."""
    content: Any = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": _MARK}]}


def written_messages(messages: Sequence[Message], request: ModelRequest) -> list[str]:
    """Returns the messages as JSON. Writes only those that are not the request's own: the marked ones."""
    own = dict(zip(map(id, request.messages), request.texts, strict=True)) if request.texts else {}
    return [own.get(id(message)) or as_json(message) for message in messages]


def written_tools(tools: Sequence[Mapping[str, Any]], request: ModelRequest) -> list[str]:
    """Returns the tools as JSON. Writes only one that is marked, and those that are new in this process."""
    pairs = zip(tools, request.tools, strict=True)
    return [TOOL_TEXTS.of(tool) if tool is own_tool else as_json(tool) for tool, own_tool in pairs]


# The parameters of a task.

_FIXED_THINKING: Final = re.compile(
    r"(.*[./])?claude-([123]|instant|(opus|sonnet|haiku)-4(-[0-5])?([-@]\d{8}.*)?\Z)", re.IGNORECASE
)
"""The models that think only for a number of tokens. All others decide themselves how much."""


def members_of(parameters: ModelParameters, request: ModelRequest) -> dict[str, Any]:
    """Returns the members of the body for the parameters. Raises ValueError for one that the provider lacks."""
    if parameters.seed is not None:
        raise ValueError("Anthropic does not have the parameter seed: leave it out")
    members = {name: value for name in ("temperature", "top_p") if (value := getattr(parameters, name)) is not None}
    if parameters.effort is Effort.NONE:
        members["thinking"] = {"type": "disabled"}
    elif parameters.effort is not None:
        level = Effort.LOW if parameters.effort is Effort.MINIMAL else parameters.effort
        members["output_config"] = {"effort": level.value.lower()}
        if not (_FIXED_THINKING.match(request.model) or parameters.forces_tool):
            members["thinking"] = {"type": "adaptive"}
    room = request.max_output_tokens - MIN_THINKING_TOKENS  # for the answer itself
    if parameters.thinking_tokens and room >= MIN_THINKING_TOKENS:
        members["thinking"] = {"type": "enabled", "budget_tokens": min(parameters.thinking_tokens, room)}
    if parameters.tool_choice:
        members["tool_choice"] = _tool_choice(parameters.tool_choice)
    return members | parameters.extra_body


def _tool_choice(choice: str) -> dict[str, str]:
    return {"type": choice} if choice in {AUTO, NO_TOOL, ANY_TOOL} else {"type": "tool", "name": choice}


_STATUS_OF_TYPE: Final = {
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "api_error": 500,
    "timeout_error": 504,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
}
_TOO_LONG: Final = re.compile(r"prompt is too long|exceed context limit", re.IGNORECASE)
"""The provider has no error type for it, only a text of an invalid request."""


class AnthropicProvider:
    """Anthropic's models.

    `silence_seconds`: the longest wait for the next bytes; 0: the default of its host. `prompt_caching`: marks the
    parts of a prompt to be kept. `options_of`: what the operator states of a model.
    """

    errors = LibraryErrors(anthropic.APIStatusError, anthropic.APITimeoutError, anthropic.APIConnectionError)

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None,
        silence_seconds: float = 0.0,
        prompt_caching: bool = True,
        counts_tokens: bool = True,
        platform: str = API,
        region: str = "",
        project: str = "",
        options_of: OptionsOf = no_options,
    ) -> None:
        """`region`, `project`: those of the platform; empty: those of its own environment.

        Raises ValueError or the library's error if the platform's own environment lacks a region or credentials.
        """
        self._prompt_caching = prompt_caching
        self._platform = platform
        self.counts_tokens = counts_tokens and platform != BEDROCK  # which has no such method
        self.secret, self.logs_in = api_key, platform != API
        host = urlsplit(base_url or "").hostname or ""
        self.endpoint = KnownEndpoint(options_of, host=host, is_pinged=True, silence_seconds=silence_seconds)
        http_client = open_http_client()
        common: dict[str, Any] = {
            "base_url": base_url, "max_retries": 0, "timeout": http_client.timeout, "http_client": http_client,
        }  # fmt: skip
        self._client: Any
        if platform == BEDROCK:
            self._client = anthropic.AsyncAnthropicBedrock(aws_region=region or None, **common)
        elif platform == VERTEX:
            common |= {name: value for name, value in (("region", region), ("project_id", project)) if value}
            self._client = anthropic.AsyncAnthropicVertex(**common)
        else:
            self._client = anthropic.AsyncAnthropic(api_key=api_key, **common)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def send(self, request: ModelRequest, call: ModelCall) -> None:
        """Sends one request and gives the bytes of the answer to `call`."""
        options = self.endpoint.options_of(request.model)
        readable = _events_of_bedrock if self._platform == BEDROCK else _unchanged
        if request.vendor is not None:
            await pass_on(
                self._client,
                request,
                call,
                options,
                stream_class=anthropic.AsyncStream,
                id_header=ID_HEADER,
                readable=readable,
            )
            return
        # `messages.create` would copy and write the whole conversation anew for each call, and trace the call itself
        response: httpx2.Response = await self._client.post(
            "/v1/messages",
            cast_to=httpx2.Response,
            options={
                "headers": {**options.extra_headers, ATTEMPT_HEADER: request.attempt},
                "timeout": timeout_of(request.silence_seconds),
            },
            stream=True,
            stream_cls=anthropic.AsyncStream,
            **self.payload_of(request),
        )
        async with aclosing(response):
            await read_answer(call, response.headers, ID_HEADER, readable(response.aiter_bytes()))

    def payload_of(self, request: ModelRequest) -> dict[str, Any]:
        """Returns the body for the library: written, or as an object where the library changes it for a platform."""
        prompt = Prompt(request.system, request.tools, without_chat_parts(request.messages))
        system, tools, messages = marked(prompt) if self._prompt_caching and request.is_repeated_soon else prompt
        head = {"model": request.model, "max_tokens": request.max_output_tokens, "stream": True}
        head |= {"system": system} if system else {}
        head |= self.endpoint.options_of(request.model).extra_body
        head |= parameter_members(lambda parameters: members_of(parameters, request), request)
        if self._platform != API:
            return {"body": {**head, **({"tools": tools} if tools else {}), "messages": messages}}
        written = f',"tools":[{",".join(written_tools(tools, request))}]' if tools else ""
        written += f',"messages":[{",".join(written_messages(messages, request))}]'
        return {"content": f"{as_json(head)[:-1]}{written}}}".encode()}

    async def count(self, request: ModelRequest) -> object:
        """Returns the provider's count of the request's input in tokens, unchecked."""
        counted = await self._client.messages.count_tokens(
            model=request.model,
            messages=cast("Any", without_chat_parts(request.messages)),
            system=request.system or anthropic.omit,
            tools=cast("Any", request.tools) or anthropic.omit,
        )
        return getattr(counted, "input_tokens", None)

    def refusal(self, status: int, body: object, message: str, retry_after_seconds: float | None) -> ModelCallFailed:
        """Classifies a refusal. A status below 400 is that of a stream: the type of the error stands for a status."""
        error = body.get("error") if isinstance(body, dict) else None
        kind, own_message = (text_in(error, "type"), text_in(error, "message")) if isinstance(error, dict) else ("", "")
        status = status if status >= 400 else _STATUS_OF_TYPE.get(kind, 500)
        message = own_message or message
        if says_unpaid(status, "", message):
            status = 402
        is_too_long = status == 400 and _TOO_LONG.search(message) is not None
        return refused(status, message, retry_after_seconds, is_too_long=is_too_long)


def _unchanged(chunks: Chunks) -> Chunks:
    return chunks


async def _events_of_bedrock(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the events in Bedrock's binary frames as server-sent events. Raises MalformedAnswer."""
    from anthropic.lib.bedrock._stream_decoder import AWSEventStreamDecoder
    from botocore.eventstream import ParserError
    from botocore.exceptions import BotoCoreError, EventStreamError

    try:
        async for event in AWSEventStreamDecoder().aiter_bytes(chunks):
            lines = "".join(f"data: {line}\n" for line in event.data.splitlines())
            yield f"event: {event.event}\n{lines}\n".encode()
    except (ParserError, BotoCoreError, EventStreamError, ValueError, KeyError) as error:
        raise MalformedAnswer(f"a frame of the stream cannot be read: {shown(repr(error))}") from error
