"""web_search: asks a configured JSON endpoint, `GET <url>?q=…&n=…` → `{"results": [{"title", "url", "snippet"}]}`."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from concurrent.futures import Executor
from typing import Any, Final
from urllib.parse import urlencode

from services.tools.builtin.definitions import define
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed
from tenure.domain.tools import EffectClass

SEARCH_LANE: Final = "search"
_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1024 * 1024
_MOST_RESULTS: Final = 20


def search_tools(url: str | None, threads: Executor) -> list[Tool]:
    """The tool. `threads` bounds the requests on their way; without `url` the tool says that it is not set up."""
    definition = define(
        "web_search",
        EffectClass.PURE,
        "Search the web. Answers with titles, addresses and excerpts of pages.",
        {
            "query": {"type": "string", "minLength": 1, "maxLength": 1000},
            "num_results": {"type": "integer", "minimum": 1, "maximum": _MOST_RESULTS, "default": 5},
        },
        required=("query",),
    )

    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        if not url:
            raise ToolFailed("Web search is not set up on this server.", "NOT_CONFIGURED")
        count = int(arguments.get("num_results", 5))
        separator = "&" if "?" in url else "?"
        address = f"{url}{separator}{urlencode({'q': arguments['query'], 'n': count})}"
        body = await asyncio.get_running_loop().run_in_executor(threads, _get, address, context.provider_headers)
        return ToolAnswer(_words(_results(body)[:count]))

    return [Tool(definition, run, lane=SEARCH_LANE)]


def _get(address: str, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(address, headers={"Accept": "application/json", **headers})  # noqa: S310  the operator's own address
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310  as above
            body: bytes = response.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise ToolFailed(f"The search service answered {error.code} {error.reason}.", f"HTTP_{error.code}") from error
    except (OSError, ValueError) as error:
        raise ToolFailed(f"The search service cannot be reached: {error}.", "UNREACHABLE") from error
    if len(body) > _MOST_BYTES:
        raise ToolFailed("The search service answered with more than 1 MiB.", "ANSWER_TOO_LARGE")
    return body


def _results(body: bytes) -> list[dict[str, Any]]:
    try:
        results = json.loads(body)["results"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ToolFailed("The search service answered with something else than results.", "BAD_ANSWER") from error
    if not isinstance(results, list):
        raise ToolFailed("The search service answered with something else than results.", "BAD_ANSWER")
    return [result for result in results if isinstance(result, dict)]


def _words(results: list[dict[str, Any]]) -> str:
    told = [
        f"{number}. {result.get('title', '')}\n   {result.get('url', '')}\n   {result.get('snippet', '')}"
        for number, result in enumerate(results, start=1)
    ]
    return "\n".join(told) or "Nothing was found."
