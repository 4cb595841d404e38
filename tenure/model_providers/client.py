"""Calls the model: the port to the model providers, and the client that gives each request to its provider.

A provider is one file: anthropic_models.py, openai_models.py. It sends a request through the library of its vendor,
gives the bytes of the answer to the call, and says what a refusal means. All else is here, the same for all providers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

import httpx2

from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import Message
from tenure.domain.entries import ContentBlock
from tenure.domain.model_parameters import NO_PARAMETERS, ModelParameters
from tenure.domain.models import LIMITS_REMEDY, vendor_of
from tenure.domain.retry import RETRYABLE, FailureClass, class_of_status
from tenure.domain.tool_arguments import escaped, strict_json
from tenure.domain.tool_schemas import refused_tools
from tenure.model_providers.endpoint import NO_LIMITS, KnownEndpoint, stated_limits
from tenure.model_providers.hidden_secrets import secrets_of, without_secrets
from tenure.model_providers.http import HTTP_ERRORS, made_no_connection
from tenure.model_providers.stream import (
    MAX_TOKENS,
    AnswerFold,
    ErrorEvent,
    Event,
    EventStream,
    ForeignAnswer,
    MalformedAnswer,
    StreamBroken,
    shown,
)
from tenure.model_providers.vendor_stream import VendorBody
from tenure.runtime.observability import metrics

_log: Final = logging.getLogger(__name__)

MIN_TOKENS: Final = 1024
"""The shortest prefix that a provider keeps for the next request, whatever the model."""

LONGEST_RETRY_AFTER_SECONDS: Final = 24 * 3600.0
"""The longest wait that the ledger accepts: no task lives longer."""


SILENT: Final = "the provider was silent for too long"
NO_PROVIDER: Final = (
    "this worker has no provider for the model {model}: set {vendor}_API_KEY or {vendor}_BASE_URL for the worker, "
    "or give the task a model of another provider"
)
REDIRECTED: Final = (
    "the endpoint answered {status} and points to {host}, where Tenure sends neither the prompt nor a header: set the "
    "endpoint's base URL to its final address"
)
FIRST_ERROR_STATUS: Final = 400
COUNT_TIMEOUT_SECONDS: Final = 5.0
AFTER_THE_ANSWER_SECONDS: Final = 1.0
"""The time to read the rest of a response after the answer is complete: only a connection read to its end is reused."""

MAX_FAILURE_CHARACTERS: Final = 2000
"""The limit of a provider's error text in the ledger."""
_MAX_ID_CHARACTERS: Final = 190
_MAX_REST_BYTES: Final = 1024 * 1024

_NOT_OFFERED: Final = frozenset({404, 405, 501})
_MAX_UNCOUNTED: Final = 1000
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml", "application/xml", "text/xml"})
_BILLED_EVENTS: Final = frozenset({"message_start", "content_block_delta", "message_delta"})


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model attempt. `attempt` is its name in the provider's logs. `timeout_seconds` 0: the client's own timeout.

    `texts`: the messages as JSON, if they are written already; none: they are not.

    `is_repeated_soon`: the next request will begin with the same prompt, so that caching it pays. `input_tokens`: an
    upper bound of the prompt; 0: unknown. `silence_seconds`: set by the client, the longest wait for the next bytes.

    `vendor`: what to send in place of the messages and all else, as the vendor's own library wrote it; see
    vendor_calls.py.
    """

    model: str
    messages: Sequence[Message]
    max_output_tokens: int
    system: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    attempt: str = ""
    timeout_seconds: float = 0.0
    is_repeated_soon: bool = False
    input_tokens: int = 0
    parameters: ModelParameters = NO_PARAMETERS
    silence_seconds: float | None = None
    texts: Sequence[str] = field(default=(), repr=False, compare=False)
    vendor: VendorBody | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model's answer in the form of the ledger.

    `usage_estimated`: the provider did not state the whole usage. `context_window_tokens`: of the model at its
    endpoint; 0: unknown.
    """

    content: tuple[ContentBlock, ...]
    stop_reason: str
    usage: TokenUsage
    model: str
    request_id: str
    latency_seconds: float
    usage_estimated: bool = False
    context_window_tokens: int = 0


class ModelCallFailed(Exception):  # noqa: N818  an outcome that the ledger records, not an error of this program
    """The call gave no answer.

    `retryable`: another attempt may succeed. `usage`: the known usage, which is billed. `was_answered`: the provider
    accepted the request and began a stream. `was_sent`: the request may have reached the provider. `refused_tools`: the
    tools whose definitions it refused.
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
        self.context_window_tokens = 0
        self.was_answered = False
        self.was_sent = True
        self.refused_tools: tuple[str, ...] = ()

    def blame(self, tools: Sequence[str]) -> None:
        """Names the tools whose definitions the provider refused."""
        self.error_class, self.refused_tools = FailureClass.TOOL_REFUSED, tuple(tools)
        message = f"the provider refuses the definition of {', '.join(tools)}: {self.message}"
        self.message = escaped(message, MAX_FAILURE_CHARACTERS)
        self.args = (f"{self.error_class}: {self.message}",)

    def append(self, text: str) -> None:
        """Adds a sentence to the message."""
        self.message = escaped(f"{self.message}: {text}", MAX_FAILURE_CHARACTERS)
        self.args = (f"{self.error_class}: {self.message}",)

    def hide(self, secrets: Mapping[str, str]) -> None:
        """Hides secrets in the message, which the task's owner reads: some proxies quote them."""
        self.message = without_secrets(self.message, secrets)
        self.args = (f"{self.error_class}: {self.message}",)


@dataclass(slots=True)
class ModelCall:
    """The observable state of a running call, readable at any moment.

    `was_taken`: the provider answered the request with a success status. `on_headers` takes the status and the headers
    of every response, also of a refusal, before anything else of it. `may_go_on`: whether a refused request may be sent
    again, asked just before.
    """

    on_text: Callable[[int, str], None]
    on_usage: Callable[[], None]
    on_headers: Callable[[int, Mapping[str, str]], None] = lambda _status, _headers: None
    may_go_on: Callable[[], bool] = lambda: True
    fold: AnswerFold = field(default_factory=AnswerFold)
    request_id: str = ""
    was_taken: bool = False
    stream: EventStream = field(default_factory=EventStream)

    @property
    def usage(self) -> TokenUsage:
        """The billed usage so far."""
        return self.fold.usage()

    @property
    def held_bytes(self) -> int:
        """The bytes of a response that is kept as it came."""
        return 0

    def forget_response(self) -> None:
        """Drops what has arrived, once the call is over. The usage stays."""
        self.stream = EventStream()

    def check_may_go_on(self) -> None:
        """Raises ModelCallFailed (INTERRUPTED) if the refused request may not be sent again."""
        if not self.may_go_on():
            message = "the provider refused the request, and a stop of an operator came before it was sent again"
            raise ModelCallFailed(FailureClass.INTERRUPTED, f"{message}: make the call after the stop")

    def observe(self, chunk: bytes) -> None:
        """Takes the next bytes of the stream. Stops at the end of the answer.

        Raises MalformedAnswer and ErrorEvent before that end.
        """
        self._take_events(self.stream.feed(chunk))

    def observe_end(self) -> None:
        """Takes the end of the stream. Raises MalformedAnswer."""
        self._take_events(self.stream.end())

    def _take_events(self, events: Iterator[Event]) -> None:
        for event in events:
            self._take_event(event)
            if self.fold.stopped:
                return

    def _take_event(self, event: Event) -> None:
        text = self.fold.take(event)
        if event["type"] in _BILLED_EVENTS:
            self.on_usage()
        if text:
            self.on_text(event["index"], text)


class LibraryErrors(NamedTuple):
    """The exceptions of a vendor's library: an error status, a timeout, no connection."""

    status: type[Exception]
    timeout: type[Exception]
    connection: type[Exception]


class ModelProvider(Protocol):
    """The port to one model provider.

    `counts_tokens`: whether the provider may be asked to count a prompt. `secret`: the key; "": it has none. `logs_in`:
    the library logs in at a platform before it sends a request. `endpoint`: what is known of the server.
    """

    endpoint: KnownEndpoint

    counts_tokens: bool
    errors: LibraryErrors
    secret: str
    logs_in: bool

    async def send(self, request: ModelRequest, call: ModelCall) -> None:
        """Sends one request and gives the bytes of the answer to `call`, see `read_answer`. Does not retry.

        Raises the library's errors, MalformedAnswer and ErrorEvent.
        """

    async def count(self, request: ModelRequest) -> object:
        """Returns the provider's count of the request's input in tokens, unchecked."""

    def refusal(self, status: int, body: object, message: str, retry_after_seconds: float | None) -> ModelCallFailed:
        """Classifies a refusal. `status` 0: the refusal came within a stream. `body`: any JSON value, or bytes.

        `message` is for a body without a message.
        """

    async def close(self) -> None:
        """Closes the connections."""


class ModelClient:
    """The client that all tasks share: a client for each call would cost ten times the processor time.

    `providers`: by the prefix of the model's name, see tenure/domain/models.py.
    """

    def __init__(self, providers: Mapping[str, ModelProvider], *, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._providers = dict(providers)
        self._uncounted: OrderedDict[str, None] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for provider in self._providers.values():
            await provider.close()

    async def answer(self, request: ModelRequest, call: ModelCall) -> ModelAnswer:
        """Sends one request and reads its answer to the end. Raises ModelCallFailed for every failure."""
        began = time.monotonic()
        silence_seconds: float | None = None
        timeout_seconds = request.timeout_seconds or self.timeout_seconds
        vendor, model = vendor_of(request.model)
        provider = self._providers.get(vendor)
        if provider is None:
            text = NO_PROVIDER.format(model=shown(request.model), vendor=vendor.upper())
            raise ModelCallFailed(FailureClass.NOT_FOUND, text)
        try:
            async with asyncio.timeout(timeout_seconds):
                silence_seconds = provider.endpoint.silence_seconds(model, timeout_seconds)
                await _send(provider, replace(request, model=model, silence_seconds=silence_seconds), call)
            content = call.fold.content()
        except Exception as error:
            _report_headers(error, provider, call)
            failure = _failure(error, provider, timeout_seconds, was_taken=call.was_taken)
            failure.hide(_secrets(provider, model))
            failure.context_window_tokens = provider.endpoint.limits(model).window_tokens
            if failure.error_class is FailureClass.SILENT and silence_seconds is not None:
                failure.append(provider.endpoint.met_silence(model, silence_seconds))
            if failure.error_class is FailureClass.INVALID_REQUEST and (
                tools := refused_tools(failure.message, [tool["name"] for tool in request.tools])
            ):
                failure.blame(tools)
            failure.usage = call.usage
            failure.request_id = _id(getattr(error, "request_id", None) or call.request_id)
            failure.was_answered = call.stream.size_bytes > 0
            failure.was_sent = failure.was_sent and not made_no_connection(error)
            raise failure from error
        return ModelAnswer(
            content=content,
            stop_reason=call.fold.stop_reason_of(content),
            usage=call.usage,
            model=call.fold.model,
            request_id=call.request_id,
            latency_seconds=time.monotonic() - began,
            usage_estimated=not call.fold.is_usage_stated(),
            context_window_tokens=provider.endpoint.limits(model).window_tokens,
        )

    async def count(self, request: ModelRequest) -> int | None:
        """Returns the provider's own count of a request's input in tokens, or None.

        An endpoint without this method is asked only once for each model: it may answer 404 for a model's name alone.
        A failure is not an error: the worker's own bound remains.
        """
        vendor, model = vendor_of(request.model)
        provider = self._providers.get(vendor)
        if provider is None or not provider.counts_tokens or request.model in self._uncounted:
            return None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
                tokens = _checked_count(await provider.count(replace(request, model=model)))
        except Exception as error:  # noqa: BLE001  the endpoint is foreign code, and the count is optional
            status = getattr(error, "status_code", 0)
            if status in _NOT_OFFERED:
                self._uncounted[request.model] = None
                if len(self._uncounted) > _MAX_UNCOUNTED:
                    self._uncounted.popitem(last=False)
            metrics.count("tenure_worker_token_counts_total", result=str(status or type(error).__name__))
            _log.warning(
                "the provider did not count a prompt",
                extra={
                    "why": without_secrets(
                        escaped(_error_text(error), MAX_FAILURE_CHARACTERS), _secrets(provider, model)
                    )
                },
            )
            return None
        metrics.count("tenure_worker_token_counts_total", result="COUNTED")
        return tokens


async def _send(provider: ModelProvider, request: ModelRequest, call: ModelCall) -> None:
    """Sends a request that fits the limits of its model, and once more if the refusal states a smaller limit.

    One that a vendor's library wrote is sent as it is.
    """
    request = provider.endpoint.fitted(request)
    try:
        await provider.send(request, call)
    except provider.errors.status as error:
        failure = _provider_failure(error, provider)
        if failure is None or call.was_taken or request.vendor is not None:
            raise
        smaller = provider.endpoint.learn(request, failure.status_code, failure.message)
        if smaller is None:
            raise
        _log.info("a model has a smaller limit", extra={"model": request.model, "why": failure.message})
        call.check_may_go_on()
        await provider.send(smaller, call)


def parameter_members(members: Callable[[ModelParameters], dict[str, Any]], request: ModelRequest) -> dict[str, Any]:
    """Returns the members of the body for the parameters of a request, without a choice among no tools.

    Raises ModelCallFailed for one that the provider lacks: nothing was sent.
    """
    parameters = request.parameters
    try:
        return members(parameters if request.tools else replace(parameters, tool_choice=""))
    except ValueError as error:
        failure = ModelCallFailed(FailureClass.INVALID_REQUEST, str(error))
        failure.was_sent = False
        raise failure from error


def _checked_count(tokens: object) -> int:
    if type(tokens) is not int or not 0 < tokens <= MAX_TOKENS:
        raise MalformedAnswer(f"the count of tokens must be from 1 to {MAX_TOKENS}; received {shown(tokens)}")
    return tokens


async def read_answer(
    call: ModelCall, headers: Mapping[str, str], id_header: str, chunks: AsyncIterator[bytes]
) -> None:
    """Gives a successful response to the call, up to the end of the answer. `id_header`: has the id of the request.

    Raises MalformedAnswer, ErrorEvent, and the errors of `chunks`.
    """
    call.was_taken = True
    call.request_id = _id(headers.get(id_header, ""))
    call.on_headers(200, headers)
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() in _PAGES:
        message = f"the endpoint answered {shown(content_type)}, which is a page and not an answer of a model"
        raise ForeignAnswer(f"{message}: is a proxy or a sign-in page in front of the provider?")
    async for chunk in chunks:
        call.observe(chunk)
        if call.fold.stopped:
            await _read_to_the_end(chunks)
            return
    call.observe_end()
    if not call.fold.stopped:
        raise StreamBroken(f"the stream ended after {call.stream.size_bytes} bytes, before the end of the answer")


async def _read_to_the_end(chunks: AsyncIterator[bytes]) -> None:
    """Reads the rest of the response. The answer is complete, so a failure here is not a failure of the call."""
    read_bytes = 0
    with suppress(TimeoutError, *HTTP_ERRORS):
        async with asyncio.timeout(AFTER_THE_ANSWER_SECONDS):
            async for chunk in chunks:
                read_bytes += len(chunk)
                if read_bytes > _MAX_REST_BYTES:
                    return


def _failure(error: Exception, provider: ModelProvider, timeout_seconds: float, *, was_taken: bool) -> ModelCallFailed:
    """Classifies a failure. A retry may help after the request was sent, unless the provider refused it."""
    match error:
        case ModelCallFailed():
            return error
        case TimeoutError():
            return ModelCallFailed(
                FailureClass.TIMEOUT, f"the model's answer was not complete within {timeout_seconds:g} s"
            )
        case httpx2.TimeoutException():
            return ModelCallFailed(FailureClass.SILENT, SILENT)
    if isinstance(error, ForeignAnswer):
        return ModelCallFailed(FailureClass.CONNECTION, _error_text(error))
    if isinstance(error, MalformedAnswer) and not isinstance(error, StreamBroken):
        return ModelCallFailed(FailureClass.UNUSABLE_ANSWER, _error_text(error))
    if isinstance(error, (StreamBroken, *HTTP_ERRORS)):
        return ModelCallFailed(FailureClass.BROKEN_STREAM, _error_text(error))
    if (failure := _provider_failure(error, provider)) is not None:
        return failure
    if was_taken:  # no known error reaches this line
        _log.error("unexpected error while reading an answer of the model", exc_info=error)
        return ModelCallFailed(FailureClass.BROKEN_STREAM, f"{type(error).__name__}: {_error_text(error)}")
    if provider.logs_in:  # the login failed: nothing was sent, and it may succeed later or at another endpoint
        failure = ModelCallFailed(FailureClass.CONNECTION, f"the login at the platform failed: {_error_text(error)}")
        failure.was_sent = False
        return failure
    # the library refused to send the request, so no retry will help
    return ModelCallFailed(FailureClass.INVALID_REQUEST, _error_text(error))


def _report_headers(error: Exception, provider: ModelProvider, call: ModelCall) -> None:
    """Gives the headers of a refusal to the call."""
    if isinstance(error, provider.errors.status):
        library_error: Any = error
        call.on_headers(library_error.status_code, library_error.response.headers)


def _provider_failure(error: Exception, provider: ModelProvider) -> ModelCallFailed | None:
    """Classifies an error of the provider or of its library. The body of a refusal may come from any proxy."""
    if isinstance(error, ErrorEvent):
        return provider.refusal(0, _json(error.data), str(error), None)
    if isinstance(error, provider.errors.status):
        library_error: Any = error
        if 300 <= library_error.status_code < FIRST_ERROR_STATUS:
            return _redirected(library_error.status_code, library_error.response.headers.get("location", ""))
        wait_seconds = _retry_after_seconds(library_error.response.headers)
        return provider.refusal(library_error.status_code, library_error.body, library_error.message, wait_seconds)
    if isinstance(error, provider.errors.timeout) and not made_no_connection(error):
        return ModelCallFailed(FailureClass.SILENT, SILENT)
    if isinstance(error, provider.errors.connection):
        return ModelCallFailed(FailureClass.CONNECTION, _error_text(error.__cause__ or error))
    return None


def _redirected(status: int, location: str) -> ModelCallFailed:
    """Returns the failure of a call whose endpoint points to another address. An operator corrects the settings."""
    try:
        host = urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    message = REDIRECTED.format(status=status, host=shown(host) if host else "another path")
    return ModelCallFailed(FailureClass.CONNECTION, message, status_code=status)


def _json(data: str) -> object:
    try:
        return strict_json(data)
    except (ValueError, RecursionError):
        return None


def refused(
    status: int, message: str, retry_after_seconds: float | None, *, is_too_long: bool = False
) -> ModelCallFailed:
    """Returns the failure of a request that the provider refused with this status, 400 or more."""
    failure = ModelCallFailed(
        FailureClass.PROMPT_TOO_LONG if is_too_long else class_of_status(status),
        message,
        status_code=status,
        retry_after_seconds=retry_after_seconds,
    )
    if stated_limits(message) != NO_LIMITS:
        failure.append(LIMITS_REMEDY)
    return failure


def text_in(holder: Mapping[str, Any], key: str) -> str:
    """Returns a text of a received object; "" for a missing one and for any other type."""
    value = holder.get(key)
    return value if isinstance(value, str) else ""


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


def _secrets(provider: ModelProvider, model: str) -> dict[str, str]:
    return secrets_of(provider.secret, provider.endpoint.options_of(model).extra_headers)


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
