"""Builds the request of each search service and reads its answer, as pairs of pure functions.

brave     https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
tavily    https://docs.tavily.com/documentation/api-reference/endpoint/search
serper    https://serper.dev (its playground shows requests and answers)
searxng   https://docs.searxng.org/dev/search_api.html
plain     our own format: `GET <url>?q=…&n=…` → `{"results": [{"title", "url", "snippet"}]}`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from tenure.domain.outbound import Url

JSON: Final = ("accept", "application/json")


class SearchRequest(NamedTuple):
    """One HTTP request to a search service."""

    method: str
    url: Url
    headers: list[tuple[str, str]]
    body: bytes = b""


class SearchResult(NamedTuple):
    """One result, with the texts of the service."""

    title: str
    url: str
    excerpt: str


Ask = Callable[[Url, str, str, int], SearchRequest]
"""Takes the endpoint, the key, the query and the number of results. Returns the request."""

Read = Callable[[Any], Iterator[SearchResult]]
"""Takes the decoded JSON of an answer. Raises ValueError, KeyError, TypeError or AttributeError for another shape."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of one search service.

    url: the default URL, "" if each installation has its own.
    is_ours: whether requests carry the idempotency key and the epoch of the call.
    refusal: what a 401 or 403 of the service means.
    """

    ask: Ask
    read: Read
    url: str = ""
    needs_key: bool = True
    most_query_characters: int = 1000
    is_ours: bool = False
    refusal: str = "does not accept this server's key"


def ask_brave(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """Returns a GET with the key in X-Subscription-Token. Turns off the marks around the words of the query."""
    parameters = {"q": query, "count": count, "result_filter": "web", "text_decorations": "false"}
    return SearchRequest("GET", _with(url, parameters), [JSON, ("x-subscription-token", key)])


def read_brave(answer: Any) -> Iterator[SearchResult]:
    """Reads `web.results[]` with title, url, description. The service leaves out `web` when it found nothing."""
    if answer["type"] != "search":
        raise ValueError("its type is not search")
    return _results(answer.get("web", {"results": []})["results"], "url", "description")


def ask_tavily(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """Returns a POST of JSON with the key as bearer token. A basic search costs one credit, an advanced search two."""
    return _posted(
        url, {"query": query, "max_results": count, "search_depth": "basic"}, ("authorization", f"Bearer {key}")
    )


def read_tavily(answer: Any) -> Iterator[SearchResult]:
    """Reads `results[]` with title, url, content."""
    return _results(answer["results"], "url", "content")


def ask_serper(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """Returns a POST of JSON with the key in X-API-KEY."""
    return _posted(url, {"q": query, "num": count}, ("x-api-key", key))


def read_serper(answer: Any) -> Iterator[SearchResult]:
    """Reads `organic[]` with title, link, snippet.

    Raises KeyError without `searchParameters`, which is always there.
    """
    answer["searchParameters"]
    return _results(answer.get("organic", []), "link", "snippet")


def ask_searxng(url: Url, key: str, query: str, _count: int) -> SearchRequest:
    """Returns a GET with format=json, which the instance's settings must allow.

    The API has no number of results. A key, for an instance behind a proxy with authentication, is the bearer token.
    """
    authorization = [("authorization", f"Bearer {key}")] if key else []
    return SearchRequest("GET", _with(url, {"q": query, "format": "json"}), [JSON, *authorization])


def read_searxng(answer: Any) -> Iterator[SearchResult]:
    """Reads `results[]` with title, url, content."""
    return _results(answer["results"], "url", "content")


def ask_plain(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """Returns a GET of our own format. A key is the bearer token."""
    authorization = [("authorization", f"Bearer {key}")] if key else []
    return SearchRequest("GET", _with(url, {"q": query, "n": count}), [JSON, *authorization])


def read_plain(answer: Any) -> Iterator[SearchResult]:
    """Reads `results[]` with title, url, snippet."""
    return _results(answer["results"], "url", "snippet")


def _with(url: Url, parameters: dict[str, object]) -> Url:
    """Returns the URL with the parameters appended to its own query."""
    return replace(url, query="&".join(part for part in (url.query, urlencode(parameters)) if part))


def _posted(url: Url, content: dict[str, object], key: tuple[str, str]) -> SearchRequest:
    return SearchRequest("POST", url, [JSON, ("content-type", "application/json"), key], json.dumps(content).encode())


def _results(items: Any, url: str, excerpt: str) -> Iterator[SearchResult]:
    if not isinstance(items, list):
        raise TypeError("its results are not a list")
    dicts = [item for item in items if isinstance(item, dict)]
    return (SearchResult(_text(item, "title"), _text(item, url), _text(item, excerpt)) for item in dicts)


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


FORMATS: Final = {
    "brave": Format(ask_brave, read_brave, "https://api.search.brave.com/res/v1/web/search", most_query_characters=400),
    "tavily": Format(ask_tavily, read_tavily, "https://api.tavily.com/search", most_query_characters=400),
    "serper": Format(ask_serper, read_serper, "https://google.serper.dev/search"),
    "searxng": Format(
        ask_searxng,
        read_searxng,
        needs_key=False,
        refusal="does not answer in JSON: add json to search.formats in the instance's settings",
    ),
    "plain": Format(ask_plain, read_plain, needs_key=False, is_ours=True),
}
"""The formats by the `provider` of the config file."""
