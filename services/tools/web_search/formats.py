"""How each search service is asked, and how its answer is read: pairs of pure functions.

brave     https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
tavily    https://docs.tavily.com/documentation/api-reference/endpoint/search
serper    https://serper.dev (its playground shows requests and answers)
searxng   https://docs.searxng.org/dev/search_api.html
plain     ours: `GET <url>?q=…&n=…` → `{"results": [{"title", "url", "snippet"}]}`
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
    """A request for results."""

    method: str
    url: Url
    headers: list[tuple[str, str]]
    body: bytes = b""


class SearchResult(NamedTuple):
    """As the service wrote it."""

    title: str
    url: str
    excerpt: str


Ask = Callable[[Url, str, str, int], SearchRequest]
"""Of the endpoint, the key, the query, and how many results are wanted."""

Read = Callable[[Any], Iterator[SearchResult]]
"""Of the answer's JSON. Raises ValueError, KeyError, TypeError or AttributeError for what is no answer."""


@dataclass(frozen=True, slots=True)
class Format:
    """`url`: where the service is asked, if everybody asks it there. `is_ours`: it is told which call it is asked for.
    `refusal`: what its 401 and 403 mean.
    """

    ask: Ask
    read: Read
    url: str = ""
    needs_key: bool = True
    most_query_characters: int = 1000
    is_ours: bool = False
    refusal: str = "does not take this server's key"


def ask_brave(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """GET with the key in X-Subscription-Token. `text_decorations`: without marks around the words searched for."""
    wanted = {"q": query, "count": count, "result_filter": "web", "text_decorations": "false"}
    return SearchRequest("GET", _with(url, wanted), [JSON, ("x-subscription-token", key)])


def read_brave(answer: Any) -> Iterator[SearchResult]:
    """`web.results[]` with title, url, description. `web` is left out where nothing was found."""
    if answer["type"] != "search":
        raise ValueError("it is no answer to a search")
    return _results(answer.get("web", {"results": []})["results"], "url", "description")


def ask_tavily(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """POST of JSON with the key as bearer token. A basic search costs one credit, an advanced one two."""
    return _posted(
        url, {"query": query, "max_results": count, "search_depth": "basic"}, ("authorization", f"Bearer {key}")
    )


def read_tavily(answer: Any) -> Iterator[SearchResult]:
    """`results[]` with title, url, content."""
    return _results(answer["results"], "url", "content")


def ask_serper(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """POST of JSON with the key in X-API-KEY."""
    return _posted(url, {"q": query, "num": count}, ("x-api-key", key))


def read_serper(answer: Any) -> Iterator[SearchResult]:
    """`organic[]` with title, link, snippet; beside it `searchParameters`, which is always there."""
    answer["searchParameters"]
    return _results(answer.get("organic", []), "link", "snippet")


def ask_searxng(url: Url, key: str, query: str, _count: int) -> SearchRequest:
    """GET with format=json, which the instance's settings have to allow. It knows no number of results. A key, for
    one behind a gate, goes as bearer token.
    """
    gate = [("authorization", f"Bearer {key}")] if key else []
    return SearchRequest("GET", _with(url, {"q": query, "format": "json"}), [JSON, *gate])


def read_searxng(answer: Any) -> Iterator[SearchResult]:
    """`results[]` with title, url, content."""
    return _results(answer["results"], "url", "content")


def ask_plain(url: Url, key: str, query: str, count: int) -> SearchRequest:
    """GET of ours. A key goes as bearer token."""
    gate = [("authorization", f"Bearer {key}")] if key else []
    return SearchRequest("GET", _with(url, {"q": query, "n": count}), [JSON, *gate])


def read_plain(answer: Any) -> Iterator[SearchResult]:
    """`results[]` with title, url, snippet."""
    return _results(answer["results"], "url", "snippet")


def _with(url: Url, parameters: dict[str, object]) -> Url:
    """The URL's own query is kept."""
    return replace(url, query="&".join(part for part in (url.query, urlencode(parameters)) if part))


def _posted(url: Url, content: dict[str, object], key: tuple[str, str]) -> SearchRequest:
    return SearchRequest("POST", url, [JSON, ("content-type", "application/json"), key], json.dumps(content).encode())


def _results(items: Any, url: str, excerpt: str) -> Iterator[SearchResult]:
    if not isinstance(items, list):
        raise TypeError("its results are no list")
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
        refusal="does not answer in JSON: the instance's settings have to list json under search.formats",
    ),
    "plain": Format(ask_plain, read_plain, needs_key=False, is_ours=True),
}
"""By the name in the config file."""
