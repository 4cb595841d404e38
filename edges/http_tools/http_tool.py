"""Runs HTTP tools: builds the request of a call, sends it, and reads the response.

The response decides the answer for the model, and whether the effect may have happened.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode

import httpcore2

from edges.http_tools.settings import PLACE, HttpToolSettings
from services.tools.answer_files import AnswerParts, part_text
from services.tools.registry import ToolRegistry
from services.tools.schemas import shortened
from services.tools.sending import (
    STALE_EPOCH,
    TELLING_SECONDS,
    AnswerLostError,
    AskedToWaitError,
    CallDelivery,
    NotSentError,
    SendAttempt,
    leaves_open,
    proves_no_effect,
    stale,
)
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailure
from tenure.domain.outbound import EVERYWHERE, Networks, Url, UrlRefused, parse_url
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolSourceKind
from tenure.domain.webhooks import retry_after_seconds
from tenure.runtime.http.outbound_http import FAILURES, AddressRefused, CheckedNetworkBackend, Outgoing
from tenure.runtime.process import Process
from tenure.runtime.release import VERSION
from tenure.runtime.request_context import TRACEPARENT_KEY, traceparent
from tenure.runtime.settings import ConfigurationError

# The request of a call: arguments in the URL, the query or the body; idempotency key and epoch in the headers.

_USER_AGENT: Final = f"tenure/{VERSION}"
_QUERY_METHODS: Final = frozenset(("GET", "DELETE"))
_MAX_URL_CHARACTERS: Final = 4096


class HttpToolRequest(NamedTuple):
    """One HTTP request."""

    method: str
    url: Url
    headers: list[tuple[str, str]]
    body: bytes | None


def request_of(settings: HttpToolSettings, context: CallContext, arguments: Arguments) -> HttpToolRequest:
    """Returns the request of a call. Raises ToolFailure for arguments that cannot be put into the URL."""
    others = {name: value for name, value in arguments.items() if name not in settings.places}
    text = PLACE.sub(lambda place: _url_part(place[1], arguments[place[1]]), settings.url)
    headers = [
        ("Accept", "application/json, text/*;q=0.9, */*;q=0.1"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", _USER_AGENT),
        *((name, value.get_secret_value()) for name, value in settings.headers.items()),
        *_call_headers(settings, context),
    ]
    if settings.method in _QUERY_METHODS:
        pairs = urlencode([(name, text) for name, value in others.items() for text in _query_texts(value)])
        separator = "&" if "?" in text else "?"
        return HttpToolRequest(settings.method, _url(f"{text}{separator}{pairs}" if pairs else text), headers, None)
    body = json.dumps(others).encode()
    return HttpToolRequest(settings.method, _url(text), [*headers, ("Content-Type", "application/json")], body)


def _call_headers(settings: HttpToolSettings, context: CallContext) -> Iterator[tuple[str, str]]:
    yield from context.provider_headers.items()
    if settings.send_token and context.token:
        yield "X-Fencing-Token", base64.b64encode(context.token).decode()
    if trace_header := traceparent():
        yield TRACEPARENT_KEY, trace_header


def _url(text: str) -> Url:
    if len(text) > _MAX_URL_CHARACTERS:
        raise ToolFailure(
            f"The arguments make the tool's URL longer than {_MAX_URL_CHARACTERS} characters.", "ARGUMENTS_TOO_LONG"
        )
    try:
        return parse_url(text)
    except UrlRefused as refused:
        raise ToolFailure(f"The arguments do not fit the tool's URL: {refused}", refused.reason) from refused


def _url_part(name: str, value: Any) -> str:
    """Returns an argument encoded as one part of the URL, so that it cannot change the path or add a parameter."""
    text = _query_text(value)
    if not text or any(part in {".", ".."} for part in text.replace("\\", "/").split("/")):
        raise ToolFailure(
            f"The argument {name} cannot be put into the tool's URL: it is empty, or has a . or .. path segment.",
            "BAD_ARGUMENT",
        )
    return quote(text, safe="", errors="replace")


def _query_texts(value: Any) -> list[str]:
    """Returns the query values of an argument. A list becomes a repeated parameter; null becomes no parameter."""
    if value is None:
        return []
    return [_query_text(item) for item in value] if isinstance(value, list) else [_query_text(value)]


def _query_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


REFUSAL_HEADER: Final = "x-fencing-refusal"
"""A response 409 or 412 with this header and the value STALE_EPOCH means a stale call."""

_CHARSETS: Final = frozenset(("utf-8", "us-ascii", "iso-8859-1", "iso-8859-15", "windows-1252", "utf-16"))
_TEXT: Final = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(x-ndjson|javascript|x-www-form-urlencoded)|"
)
_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9_-]+)")
_STALE_STATUSES: Final = frozenset((409, 412))
_BUSY_STATUSES: Final = frozenset((429, 503))
_PROXY_STATUSES: Final = frozenset((408, 499, 502, 503, 504, *range(520, 525)))
"""Statuses that proxies send when the server behind them fails: a repeat may succeed. Some proxies use 499 and 52x."""

_ABOUT_THE_CALL: Final = frozenset(range(400, 500)) - {401, 403, 404, 405, 407, 408, 409, 421, 425, 429, 499}
"""Statuses of a server that has read the call and refuses it. The others of the class may be about the credentials, the
route, the rate, or an earlier sending with the same key that still runs.
"""

_SETTLED: Final = frozenset({EffectClass.KEYED, EffectClass.UNSAFE})
"""The effect classes of which an unclear answer matters: a repeat by the model could be a second effect."""

_UNCLEAR: Final = "its answer does not show whether the call was carried out"


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response. `headers`: names in lower case. `body`: up to a size limit, `truncated` beyond it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool


def read_response(who: str, response: Response, effect_class: EffectClass) -> ToolAnswer:
    """Returns the answer that a response contains.

    Raises AnswerLostError when the response leaves open whether the call was carried out and that matters for its
    effect class. Raises AskedToWaitError when the response asks to retry later.
    """
    text = _text(response)
    if 200 <= response.status < 300:
        return ToolAnswer(text, truncated=response.truncated)
    if response.status in _STALE_STATUSES and _is_stale(response, text):
        return stale(who)
    answer = ToolAnswer(
        _failure_text(who, response, text),
        OutcomeStatus.FAILED,
        f"HTTP_{response.status}",
        response.truncated,
        no_effect=proves_no_effect(response.status),
        leaves_earlier_open=response.status not in _ABOUT_THE_CALL,
    )
    after_seconds = retry_after_seconds(response.headers.get("retry-after", ""), datetime.now(UTC))
    is_open = effect_class in _SETTLED and leaves_open(response.status)
    if response.status in _BUSY_STATUSES and after_seconds is not None and effect_class.may_run_again:
        raise AskedToWaitError(answer, after_seconds, is_open=is_open)
    is_of_proxy = response.status in _PROXY_STATUSES and effect_class.may_run_again
    if is_open:
        message = f"HTTP {response.status}{': ' if text else ''}{shortened(text)}"
        raise AnswerLostError(message, again=is_of_proxy, what=_UNCLEAR)
    if is_of_proxy:
        raise AnswerLostError(f"HTTP {response.status}")
    return answer


def _failure_text(who: str, response: Response, message: str) -> str:
    if 300 <= response.status < 400:
        return f"{who} answered HTTP {response.status}: it redirects elsewhere, and redirects are not followed."
    return f"{who} answered HTTP {response.status}{': ' if message else '.'}{message}"


def _is_stale(response: Response, message: str) -> bool:
    if response.headers.get(REFUSAL_HEADER, "").strip() == STALE_EPOCH:
        return True
    try:
        decoded = json.loads(message)
    except (ValueError, RecursionError):
        return False
    return isinstance(decoded, dict) and decoded.get("reason") == STALE_EPOCH


def kind_of_part(response: Response) -> str:
    """Returns the MIME type of a whole body that is not text, such as an image; else ""."""
    kind = _kind(response)
    is_part = response.body and not response.truncated and not _encoding(response) and not _TEXT.fullmatch(kind)
    return kind[:100] if is_part else ""


def _kind(response: Response) -> str:
    return response.headers.get("content-type", "").lower().partition(";")[0].strip()


def _encoding(response: Response) -> str:
    """Returns the encoding, which the request did not accept; "" for none."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding[:40]


def _text(response: Response) -> str:
    parameters = response.headers.get("content-type", "").lower().partition(";")[2]
    if not response.body:
        return ""
    if encoding := _encoding(response):
        return f"[{len(response.body)} bytes, encoded as {encoding}, which the request did not accept]"
    if not _TEXT.fullmatch(kind := _kind(response)):
        return f"[{len(response.body)} bytes of {kind[:100]}, which is not text]"
    charset = _CHARSET.search(parameters)
    known = charset is not None and charset[1] in _CHARSETS
    return response.body.decode(charset[1] if charset is not None and known else "utf-8", errors="replace")


# The calls of one HTTP tool: without proxies, without redirects, with a size limit.

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_KEPT_ALIVE_SECONDS: Final = 4.0


def lane_of(name: str) -> str:
    """Returns the lane of a tool. Each tool has its own slots, so a slow tool does not delay others."""
    return f"http {name}"


class HttpTool:
    """One tool and its connections. Use it with `async with`."""

    def __init__(self, name: str, settings: HttpToolSettings, parts: AnswerParts) -> None:
        self._name, self._settings, self._parts = name, settings, parts
        self._who = f"The server of {name}"
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        ca_file = self._settings.ca_file
        # A kept connection may close just when a call uses it, and then it is unknown whether the call arrived.
        kept_alive_seconds = _KEPT_ALIVE_SECONDS if self._settings.effect_class.may_run_again else 0.0
        opening = partial(
            Outgoing,
            CheckedNetworkBackend(Networks(EVERYWHERE if self._settings.allow_private else ()), "HTTP tools"),
            most_connections=self._settings.max_calls,
            kept_alive_seconds=kept_alive_seconds,
            ca_file=None if ca_file is None else str(ca_file),
        )
        self._outgoing = await self._open.enter_async_context(await asyncio.to_thread(opening))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def tool(self) -> Tool:
        """The tool, as the tool service runs it."""
        return Tool(
            self._settings.definition(self._name),
            self._run,
            lane=lane_of(self._name),
            guard_seconds=TELLING_SECONDS,
            keeps_any_timeout=True,
            acts_elsewhere=True,
        )

    async def _run(self, context: CallContext, arguments: Arguments) -> ToolAnswer:
        delivery = CallDelivery(self._who, self._settings.effect_class, context, self._settings.connect_seconds)
        return await delivery.carry_out(partial(self._send, arguments, context))

    async def _send(self, arguments: Arguments, context: CallContext, sending: SendAttempt) -> ToolAnswer:
        request = request_of(self._settings, context, arguments)
        try:
            response = await self._exchange(request, sending)
        except AddressRefused as refused:
            raise ToolFailure(
                f"{self._who} has an address that is not allowed: {refused}.", "ADDRESS_REFUSED"
            ) from refused
        except httpcore2.LocalProtocolError as error:  # the request is invalid, and nothing of it was sent
            raise NotSentError(str(error)) from error
        except FAILURES as error:
            answer = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise (AnswerLostError if sending.is_out else NotSentError)(answer) from error
        read = read_response(self._who, response, self._settings.effect_class)
        if read.status is not OutcomeStatus.SUCCEEDED or not (kind := kind_of_part(response)):
            return read
        return await self._parts.answer(context, partial(part_text, f"answer ({kind})", response.body, kind))

    async def _exchange(self, request: HttpToolRequest, sending: SendAttempt) -> Response:
        async with self._outgoing.send(
            request.method,
            request.url,
            request.headers,
            request.body,
            connect_seconds=min(self._settings.connect_seconds, sending.left_seconds),
            going_out=sending.go_out,
        ) as answer:
            # Reads the raw body: an encoding that the request did not accept is described, not decoded.
            body = await replace(answer, headers={}).read(MAX_ANSWER_BYTES)
            return Response(answer.status, answer.headers, body.content, truncated=not body.is_whole)


# All HTTP tools of the config file.

_SOURCE: Final = "http_tools"


async def open_http_tools(
    process: Process, settings: Mapping[str, HttpToolSettings], registry: ToolRegistry, parts: AnswerParts
) -> None:
    """Opens and registers the HTTP tools. Connects to no server yet. Raises ConfigurationError for a name in use."""
    problems: list[str] = []
    for name, tool_settings in settings.items():
        tool = await process.open(HttpTool(name, tool_settings, parts))
        problems += registry.put(f"{_SOURCE} {name}", [tool.tool], tool_settings.tenants)
        registry.facts.add(name, ToolSourceKind.HTTP, tool_settings.tenants).took(1)
    if problems:
        raise ConfigurationError([f"{_SOURCE}.{problem}" for problem in problems])
