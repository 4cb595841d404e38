"""Calls the model: one client for the process, one request per model attempt.

Only this file knows the provider's library. The worker retries and records each retry in the ledger: the library's own
two retries would be invisible there and on the bill.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Self, cast

import anthropic
import httpx2

from services.worker.model_stream import (
    MAX_TOKENS,
    AnswerFold,
    ErrorEvent,
    Event,
    EventStream,
    MalformedAnswer,
    shown,
)
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import Message
from tenure.domain.entries import ContentBlock
from tenure.domain.retry import RETRYABLE, FailureClass, class_of_status
from tenure.domain.tool_arguments import escaped, strict_json
from tenure.runtime import metrics

# Prompt caching: the marked parts of a prompt are kept by the provider, and the next request reads them at a tenth of
# the price.

MIN_TOKENS: Final = 1024
"""The shortest prefix that the provider keeps, whatever the model. A prompt stays below the limit of four marks."""

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


_log: Final = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 4096
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
"""The provider has no error type for it, only this text."""

LONGEST_RETRY_AFTER_SECONDS: Final = 24 * 3600.0
"""The longest wait that the ledger accepts: no task lives longer."""


COUNT_TIMEOUT_SECONDS: Final = 5.0
AFTER_THE_ANSWER_SECONDS: Final = 1.0
"""The time to read the rest of a response after the answer is complete: only a connection read to its end is reused."""

MAX_FAILURE_CHARACTERS: Final = 2000
"""The limit of a provider's error text in the ledger."""
_MAX_ID_CHARACTERS: Final = 190
_MAX_REST_BYTES: Final = 1024 * 1024

_NOT_OFFERED: Final = frozenset({404, 405, 501})
_BILLED_EVENTS: Final = frozenset({"message_start", "content_block_delta", "message_delta"})


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model attempt. `attempt` is its name in the provider's logs. `timeout_seconds` 0: the client's own timeout.

    `is_repeated_soon`: the next request will begin with the same prompt, so that caching it pays.
    """

    model: str
    messages: Sequence[Message]
    max_output_tokens: int
    system: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    attempt: str = ""
    timeout_seconds: float = 0.0
    is_repeated_soon: bool = False


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model's answer in the form of the ledger."""

    content: tuple[ContentBlock, ...]
    stop_reason: str
    usage: TokenUsage
    model: str
    request_id: str
    latency_seconds: float


class ModelCallFailed(Exception):  # noqa: N818  an outcome that the ledger records, not an error of this program
    """The call gave no answer.

    `retryable`: another attempt may succeed. `usage`: the known usage, which is billed. `was_answered`: the provider
    accepted the request and began a stream.
    """

    def __init__(
        self,
        error_class: FailureClass,
        message: str,
        *,
        status_code: int = 0,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.message = escaped(message, MAX_FAILURE_CHARACTERS)
        super().__init__(f"{error_class}: {self.message}")
        self.error_class = error_class
        self.retryable = error_class in RETRYABLE
        self.status_code = status_code
        self.retry_after_seconds = retry_after_seconds
        self.usage = TokenUsage()
        self.request_id = ""
        self.was_answered = False


@dataclass(slots=True)
class ModelCall:
    """The observable state of a running call, readable at any moment.

    `was_taken`: the provider answered the request with a success status.
    """

    on_text: Callable[[int, str], None]
    on_usage: Callable[[], None]
    fold: AnswerFold = field(default_factory=AnswerFold)
    request_id: str = ""
    was_taken: bool = False
    stream: EventStream = field(default_factory=EventStream)

    @property
    def usage(self) -> TokenUsage:
        """The billed usage so far."""
        return self.fold.usage()

    def observe(self, chunk: bytes) -> None:
        """Takes the next bytes of the stream. Stops at the end of the answer.

        Raises MalformedAnswer and ErrorEvent before that end.
        """
        for event in self.stream.feed(chunk):
            self._take_event(event)
            if self.fold.stopped:
                return

    def _take_event(self, event: Event) -> None:
        text = self.fold.take(event)
        if event["type"] in _BILLED_EVENTS:
            self.on_usage()
        if text:
            self.on_text(event["index"], text)


class ModelClient:
    """The client that all tasks share: a client for each call would cost ten times the processor time."""

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None,
        timeout_seconds: float,
        silence_seconds: float,
        prompt_caching: bool = True,
        counts_tokens: bool = True,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._prompt_caching = prompt_caching
        self.counts_tokens = counts_tokens
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        timeout = anthropic.Timeout(silence_seconds, connect=5.0)
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=anthropic.DefaultAsyncHttpxClient(limits=limits, timeout=timeout),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def answer(self, request: ModelRequest, call: ModelCall) -> ModelAnswer:
        """Sends one request and reads its answer to the end. Raises ModelCallFailed for every failure."""
        began = time.monotonic()
        timeout_seconds = request.timeout_seconds or self.timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._stream(request, call)
            content = call.fold.content()
        except Exception as error:
            failure = _failure(error, timeout_seconds, was_taken=call.was_taken)
            failure.usage = call.usage
            failure.request_id = _id(getattr(error, "request_id", None) or call.request_id)
            failure.was_answered = call.stream.size_bytes > 0
            raise failure from error
        return ModelAnswer(
            content=content,
            stop_reason=call.fold.stop_reason or "end_turn",
            usage=call.usage,
            model=call.fold.model,
            request_id=call.request_id,
            latency_seconds=time.monotonic() - began,
        )

    async def count(self, request: ModelRequest) -> int | None:
        """Returns the provider's own count of a request's input in tokens, or None.

        An endpoint without this method is asked only once. A failure is not an error: the worker's own bound remains.
        """
        if not self.counts_tokens:
            return None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
                tokens = await self._count(request)
        except Exception as error:  # noqa: BLE001  the endpoint is foreign code, and the count is optional
            status = getattr(error, "status_code", 0)
            self.counts_tokens = status not in _NOT_OFFERED
            metrics.count("tenure_worker_token_counts_total", result=str(status or type(error).__name__))
            _log.warning(
                "the provider did not count a prompt",
                extra={"why": escaped(_error_text(error), MAX_FAILURE_CHARACTERS)},
            )
            return None
        metrics.count("tenure_worker_token_counts_total", result="COUNTED")
        return tokens

    async def _count(self, request: ModelRequest) -> int:
        counted = await self._client.messages.count_tokens(
            model=request.model,
            messages=cast("Any", request.messages),
            system=request.system or anthropic.omit,
            tools=cast("Any", request.tools) or anthropic.omit,
        )
        tokens: object = getattr(counted, "input_tokens", None)
        if type(tokens) is not int or not 0 < tokens <= MAX_TOKENS:
            raise MalformedAnswer(f"the count of tokens must be from 1 to {MAX_TOKENS}; received {shown(counted)}")
        return tokens

    async def _stream(self, request: ModelRequest, call: ModelCall) -> None:
        prompt = Prompt(request.system, request.tools, request.messages)
        system, tools, messages = marked(prompt) if self._prompt_caching and request.is_repeated_soon else prompt
        async with self._client.messages.with_streaming_response.create(
            model=request.model,
            max_tokens=request.max_output_tokens,
            messages=cast("Any", messages),  # the ledger keeps blocks as the provider's own plain JSON
            system=cast("Any", system) or anthropic.omit,
            tools=cast("Any", tools) or anthropic.omit,
            extra_headers={"x-tenure-attempt": request.attempt},
            stream=True,
        ) as response:
            call.was_taken = True
            call.request_id = _id(response.headers.get("request-id", ""))
            chunks = response.iter_bytes()
            async for chunk in chunks:
                call.observe(chunk)
                if call.fold.stopped:
                    await _read_to_the_end(chunks)
                    return
        raise MalformedAnswer(f"the stream ended after {call.stream.size_bytes} bytes, before the end of the answer")


async def _read_to_the_end(chunks: AsyncIterator[bytes]) -> None:
    """Reads the rest of the response. The answer is complete, so a failure here is not a failure of the call."""
    read_bytes = 0
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(AFTER_THE_ANSWER_SECONDS):
            async for chunk in chunks:
                read_bytes += len(chunk)
                if read_bytes > _MAX_REST_BYTES:
                    return


def _failure(error: Exception, timeout_seconds: float, *, was_taken: bool) -> ModelCallFailed:
    """Classifies a failure. A retry may help after the request was sent, unless the provider refused it."""
    match error:
        case anthropic.APIStatusError():
            return _refused(error)
        case TimeoutError():
            return ModelCallFailed(
                FailureClass.TIMEOUT, f"the model's answer was not complete within {timeout_seconds:g} s"
            )
        case anthropic.APITimeoutError() | httpx2.TimeoutException():
            return ModelCallFailed(FailureClass.TIMEOUT, "the provider was silent for too long")
        case anthropic.APIConnectionError():
            return ModelCallFailed(FailureClass.CONNECTION, _error_text(error.__cause__ or error))
        case ErrorEvent():
            return _refused_in_stream(error)
        case httpx2.HTTPError() | MalformedAnswer():
            return ModelCallFailed(FailureClass.BROKEN_STREAM, _error_text(error))
        case _ if was_taken:  # no known error reaches this line
            _log.error("unexpected error while reading an answer of the model", exc_info=error)
            return ModelCallFailed(FailureClass.BROKEN_STREAM, f"{type(error).__name__}: {_error_text(error)}")
        case _:  # the library refused to send the request, so no retry will help
            return ModelCallFailed(FailureClass.INVALID_REQUEST, _error_text(error))


def _refused(error: anthropic.APIStatusError) -> ModelCallFailed:
    """Classifies an error status. The body may come from any proxy on the way."""
    kind, message = _error_of(error.body)
    status = error.status_code if error.status_code >= 400 else _STATUS_OF_TYPE.get(kind, 500)
    return _refusal(status, message or error.message, _retry_after_seconds(error.response.headers))


def _refused_in_stream(error: ErrorEvent) -> ModelCallFailed:
    """Classifies an error event inside a stream that began with status 200: its type stands for a status."""
    try:
        body = strict_json(error.data)
    except (ValueError, RecursionError):
        body = None
    kind, message = _error_of(body)
    return _refusal(_STATUS_OF_TYPE.get(kind, 500), message or str(error), None)


def _error_of(body: object) -> tuple[str, str]:
    """Returns (type, message) of the provider's error object; "" for a missing part."""
    text = body.get("error") if isinstance(body, dict) else None
    if not isinstance(text, dict):
        return "", ""
    kind, message = text.get("type"), text.get("message")
    return kind if isinstance(kind, str) else "", message if isinstance(message, str) else ""


def _refusal(status: int, message: str, retry_after_seconds: float | None) -> ModelCallFailed:
    too_long = status == 400 and _TOO_LONG.search(message)
    return ModelCallFailed(
        FailureClass.PROMPT_TOO_LONG if too_long else class_of_status(status),
        message,
        status_code=status,
        retry_after_seconds=retry_after_seconds,
    )


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the wait that the provider asked for, as a number or a date. An unreadable value counts as none."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if text.replace(".", "", 1).isdecimal():
            return min(float(text) * scale, LONGEST_RETRY_AFTER_SECONDS)
    until, now = _date(headers.get("retry-after", "")), _date(headers.get("date", ""))
    if until is None:
        return None
    # by the provider's own clock, if it sends its date
    wait_seconds = (until - (now or datetime.now(UTC))).total_seconds()
    return min(max(wait_seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def _date(text: str) -> datetime | None:
    """Parses an HTTP date. A date without a zone is UTC, as all HTTP dates are."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _id(message: str) -> str:
    """Limits the provider's id of a request to printable characters and a maximum length."""
    return escaped(message, _MAX_ID_CHARACTERS)


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
