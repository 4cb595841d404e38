"""The request of a call: its arguments where the operator wants them, its key and its epoch in the headers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from services.tools.http_tools.settings import PLACE, HttpToolSettings
from services.tools.tool import Arguments, CallContext, ToolFailed
from tenure.domain.urls import Url, UrlRefused, parse_url
from tenure.runtime.trace_context import TRACEPARENT_KEY, traceparent

_USER_AGENT: Final = f"tenure/{version('tenure')}"
_IN_THE_QUERY: Final = frozenset(("GET", "DELETE"))
_MOST_URL_CHARACTERS: Final = 4096


class Request(NamedTuple):
    """What is sent."""

    method: str
    url: Url
    headers: list[tuple[str, str]]
    body: bytes | None


def request_of(settings: HttpToolSettings, context: CallContext, arguments: Arguments) -> Request:
    """Raises ToolFailed for arguments that cannot be put into a URL."""
    others = {name: value for name, value in arguments.items() if name not in settings.places}
    text = PLACE.sub(lambda place: _placed(place[1], arguments[place[1]]), settings.url)
    headers = [
        ("Accept", "application/json, text/*;q=0.9, */*;q=0.1"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", _USER_AGENT),
        *((name, value.get_secret_value()) for name, value in settings.headers.items()),
        *_call_headers(settings, context),
    ]
    if settings.method in _IN_THE_QUERY:
        pairs = urlencode([(name, text) for name, value in others.items() for text in _query_texts(value)])
        separator = "&" if "?" in text else "?"
        return Request(settings.method, _url(f"{text}{separator}{pairs}" if pairs else text), headers, None)
    body = json.dumps(others).encode()
    return Request(settings.method, _url(text), [*headers, ("Content-Type", "application/json")], body)


def _call_headers(settings: HttpToolSettings, context: CallContext) -> Iterator[tuple[str, str]]:
    yield from context.provider_headers.items()
    if settings.send_token and context.token:
        yield "X-Fencing-Token", base64.b64encode(context.token).decode()
    if told := traceparent():
        yield TRACEPARENT_KEY, told


def _url(text: str) -> Url:
    if len(text) > _MOST_URL_CHARACTERS:
        raise ToolFailed("The arguments are too long for the tool's address.", "ARGUMENTS_TOO_LONG")
    try:
        return parse_url(text)
    except UrlRefused as refused:
        raise ToolFailed(f"The arguments do not fit the tool's address: {refused}", refused.reason) from refused


def _placed(name: str, value: Any) -> str:
    """An argument as a piece of the URL. It stays the one piece: it leads to no other path, and adds no parameter."""
    text = _query_text(value)
    if not text or any(part in {".", ".."} for part in text.replace("\\", "/").split("/")):
        raise ToolFailed(f"The argument {name} cannot be put into the tool's address.", "BAD_ARGUMENT")
    return quote(text, safe="", errors="replace")


def _query_texts(value: Any) -> list[str]:
    """A list is a parameter given several times; null is one that is not given."""
    if value is None:
        return []
    return [_query_text(one) for one in value] if isinstance(value, list) else [_query_text(value)]


def _query_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()
