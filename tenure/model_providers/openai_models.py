"""The provider OpenAI, through its library, and every server that speaks its Chat Completions API.

Among them are Azure OpenAI (its v1 endpoint), vLLM, Ollama and llama.cpp. Only this file knows the library `openai`. It
is imported only by workers with this provider, because the import takes a second.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import openai

from tenure.domain.models import ATTEMPT_HEADER
from tenure.domain.retry import UNPAID_CODES
from tenure.model_providers.chat_messages import chat_messages, chat_tools
from tenure.model_providers.chat_stream import ChatStream
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
from tenure.model_providers.dialects import dialect_of
from tenure.model_providers.endpoint import KnownEndpoint, OptionsOf, no_options
from tenure.model_providers.http import open_http_client, timeout_of
from tenure.model_providers.vendor_calls import pass_on

ID_HEADER: Final = "x-request-id"
_STATUS_OF_KIND: Final = {
    "insufficient_quota": 402,
    "billing_not_active": 402,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "requests": 429,
    "tokens": 429,
    "server_error": 500,
    "overloaded_error": 529,
    "server_overloaded": 529,
    "timeout": 504,
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
_FLAGGED: Final = "flagged_input"
"""The member by which OpenRouter says of a 403 that the prompt is refused, and not the key."""

_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG: Final = re.compile(
    r"maximum context length|context length exceeded|exceeds? the (available )?context|exceeds? the model's context"
    r"|context window|prompt is too long|input is too long|longer than the maximum model length",
    re.IGNORECASE,
)
"""The words of servers without a code for it."""


class OpenAIProvider:
    """Models behind the Chat Completions API.

    `base_url` None: OpenAI. `silence_seconds`: the longest wait for the next bytes; 0: the default of its host.
    `streams`: False for a server that cannot stream its answers: it sends nothing until the whole answer is there.
    `options_of`: what the operator states of a model.
    """

    errors = LibraryErrors(openai.APIStatusError, openai.APITimeoutError, openai.APIConnectionError)

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None,
        silence_seconds: float = 0.0,
        streams: bool = True,
        options_of: OptionsOf = no_options,
    ) -> None:
        self.counts_tokens = False  # this API cannot count
        self.secret, self.logs_in = api_key, False
        self._streaming = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
        self._streams = streams
        http_client = open_http_client()
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=http_client.timeout,
            http_client=http_client,
        )
        self._host = urlsplit(str(self._client.base_url)).hostname or ""
        self.endpoint = KnownEndpoint(options_of, host=self._host, silence_seconds=silence_seconds)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def send(self, request: ModelRequest, call: ModelCall) -> None:
        """Sends one request and gives the bytes of the answer to `call`."""
        options = self.endpoint.options_of(request.model)
        if request.vendor is not None:
            await pass_on(self._client, request, call, options, stream_class=openai.AsyncStream, id_header=ID_HEADER)
            return
        dialect = dialect_of(self._host, request.model, options.dialect)
        call.stream = ChatStream(fold=call.fold, keeps_thoughts=bool(dialect.thoughts), kept=dialect.kept)
        extra_body = {**options.extra_body, **parameter_members(dialect.members, request)}
        arguments: dict[str, Any] = {dialect.limit_name: request.max_output_tokens, **self._streaming}
        if request.tools:
            arguments["tools"] = chat_tools(request.tools)
        completions: Any = self._client.chat.completions  # takes plain JSON, which its types do not say
        async with completions.with_streaming_response.create(
            model=request.model,
            messages=chat_messages(request.system, request.messages, dialect),
            extra_headers={**options.extra_headers, ATTEMPT_HEADER: request.attempt},
            extra_body=extra_body or None,
            timeout=timeout_of(request.silence_seconds if self._streams else None),
            **arguments,
        ) as response:
            await read_answer(call, response.headers, ID_HEADER, response.iter_bytes())

    async def count(self, request: ModelRequest) -> object:
        """Returns None: this API cannot count."""
        del request
        return None

    def refusal(self, status: int, body: object, message: str, retry_after_seconds: float | None) -> ModelCallFailed:
        """Classifies a refusal. A status below 400 is that of a stream: the code of the error stands for a status."""
        error = _error_of(body)
        kinds = [text_in(error, "code"), text_in(error, "type")]
        code = error.get("code")
        if status < 400 and type(code) is int and 400 <= code <= 599:
            status = code
        if status < 400:
            status = next((_STATUS_OF_KIND[kind] for kind in kinds if kind in _STATUS_OF_KIND), 500)
        if status == 429 and not UNPAID_CODES.isdisjoint(kinds):
            status = 402
        metadata = error.get("metadata")
        if status == 403 and isinstance(metadata, dict) and _FLAGGED in metadata:
            status = 400
        message = text_in(error, "message") or message
        is_too_long = status in {400, 413, 422} and (
            not _TOO_LONG_CODES.isdisjoint(kinds) or _TOO_LONG.search(message) is not None
        )
        return refused(status, message, retry_after_seconds, is_too_long=is_too_long)


def _error_of(body: object) -> dict[str, Any]:
    """Returns the error object of a body. The library has already taken it out of {"error": …}; a stream has not.

    Google puts the body into a list.
    """
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": error}
