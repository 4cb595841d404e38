"""Runs one search: sends the query, retries while time is left, reads the results and formats them for the model."""

from __future__ import annotations

import asyncio
import html
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from edges.web_search.formats import SearchRequest, SearchResult
from edges.web_search.settings import WebSearchSettings
from services.tools.sending import failure_answer
from services.tools.tool import GENERAL_LANE, Arguments, CallContext, Tool, ToolAnswer, ToolFailure, define
from tenure.domain.outbound import EVERYWHERE, Networks
from tenure.domain.retry import RetryPolicy
from tenure.domain.tools import EffectClass
from tenure.domain.webhooks import retry_after_seconds
from tenure.runtime.http.body_decoder import READABLE_ENCODINGS, BadEncoding
from tenure.runtime.http.outbound_http import FAILURES, Body, CheckedNetworkBackend, HttpResponse, Outgoing

SEARCHES_AT_ONCE: Final = 8
MAX_BYTES: Final = 1024 * 1024
MAX_EXCERPT_CHARACTERS: Final = 2000

_RETRY: Final = RetryPolicy(max_attempts=3, initial_seconds=0.5, factor=2.0, cap_seconds=5.0)
_RETRY_STATUSES: Final = frozenset((429, 502, 503, 504))
_REFUSED_STATUSES: Final = frozenset((401, 403))
_KEPT_ALIVE_SECONDS: Final = 4.0
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]*>")


class Searcher:
    """Sends queries to the configured search service."""

    def __init__(self, settings: WebSearchSettings, outgoing: Outgoing) -> None:
        self.settings, self._outgoing = settings, outgoing

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: WebSearchSettings) -> AsyncIterator[Searcher]:
        """Opens a searcher with its connections."""
        networks = Networks(EVERYWHERE if settings.allow_private else ())
        backend = CheckedNetworkBackend(networks, "web_search")
        async with Outgoing(
            backend, most_connections=SEARCHES_AT_ONCE, kept_alive_seconds=_KEPT_ALIVE_SECONDS
        ) as outgoing:
            yield cls(settings, outgoing)

    async def search(self, query: str, count: int, call_headers: dict[str, str]) -> list[SearchResult]:
        """Returns the first `count` results.

        `call_headers`: sent to a service of the format `plain` only. Raises ToolFailure.
        """
        settings = self.settings
        clean_query = query.encode(errors="replace").decode()  # JSON can contain a lone surrogate, a URL cannot
        request = settings.format.ask(settings.endpoint, settings.key, clean_query, count)
        if settings.format.is_ours:
            request.headers.extend(call_headers.items())
        try:
            async with asyncio.timeout(settings.timeout_seconds) as timeout:
                body = await self._answered(request, timeout.when() or 0.0)
        except (TimeoutError, BadEncoding, *FAILURES) as error:
            raise failure_answer(error, "The search service", settings.timeout_seconds) from error
        return list(islice(self._read(body), count))

    async def _answered(self, request: SearchRequest, deadline: float) -> Body:
        failures = 0
        while True:
            async with self._outgoing.send(
                request.method, request.url, [("accept-encoding", READABLE_ENCODINGS), *request.headers], request.body
            ) as answer:
                if answer.status == 200:
                    return await answer.read(MAX_BYTES)
            failures += 1
            refusal = self._refusal(answer)
            wait_seconds = _RETRY.wait_seconds(failures, random.random(), _retry_after_seconds(answer))
            too_late = asyncio.get_running_loop().time() + wait_seconds >= deadline
            if answer.status not in _RETRY_STATUSES or failures >= _RETRY.max_attempts or too_late:
                raise refusal
            await asyncio.sleep(wait_seconds)

    def _refusal(self, answer: HttpResponse) -> ToolFailure:
        """Returns the failure for an error status, without the service's own text: it may contain the key."""
        if answer.status in _REFUSED_STATUSES:
            message = f"The search service {self.settings.format.refusal}. The operator of this server must fix this."
            return ToolFailure(message, "KEY_REFUSED" if self.settings.key else f"HTTP_{answer.status}")
        retry_seconds = _retry_after_seconds(answer)
        asks = f" It asks not to be called again for {retry_seconds:g} s." if retry_seconds else ""
        return ToolFailure(f"The search service answered {answer.status}.{asks}", f"HTTP_{answer.status}")

    def _read(self, body: Body) -> list[SearchResult]:
        if not body.is_whole:
            raise ToolFailure(
                "The search service answered with more than 1 MiB, or in too many chunks.", "ANSWER_TOO_LARGE"
            )
        try:
            return list(self.settings.format.read(json.loads(body.content)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ToolFailure("The answer of the search service does not contain results.", "BAD_ANSWER") from error


def format_results(results: list[SearchResult]) -> str:
    """Returns the results as text for the model: numbered, with title, URL and excerpt on one line each."""
    lines = [
        f"{number}. {_plain(title)}\n   {_plain(url)}\n   {_plain(excerpt)}"
        for number, (title, url, excerpt) in enumerate(results, start=1)
    ]
    return "\n".join(lines) or "Nothing was found."


def _plain(text: str) -> str:
    """Returns the text without tags and entities: services mark the words of the query by tags."""
    flat = html.unescape(_TAG.sub("", text[: 2 * MAX_EXCERPT_CHARACTERS]))
    flat = " ".join("".join(char if char.isprintable() else " " for char in flat).split())
    return flat if len(flat) <= MAX_EXCERPT_CHARACTERS else flat[: MAX_EXCERPT_CHARACTERS - 1] + "…"


def _retry_after_seconds(answer: HttpResponse) -> float:
    return retry_after_seconds(answer.headers.get("retry-after", ""), datetime.now(UTC)) or 0.0


# The tool web_search.

SEARCH_LANE: Final = "search"
_USUAL_RESULTS: Final = 5
_MAX_RESULTS: Final = 20
_MAX_QUERY_CHARACTERS: Final = 1000
_TELLING_SECONDS: Final = 2.0


def search_tools(searcher: Searcher | None) -> list[Tool]:
    """Returns the tool web_search. Without a searcher, its calls fail with NOT_CONFIGURED."""
    most_results = searcher.settings.max_results if searcher else _MAX_RESULTS
    most_characters = searcher.settings.format.most_query_characters if searcher else _MAX_QUERY_CHARACTERS
    usual_results = min(_USUAL_RESULTS, most_results)
    definition = define(
        "web_search",
        EffectClass.PURE,
        "Search the web. Answers with titles, addresses and excerpts of pages.",
        {
            "query": {"type": "string", "minLength": 1, "maxLength": most_characters},
            "num_results": {"type": "integer", "minimum": 1, "maximum": most_results, "default": usual_results},
        },
        required=("query",),
        timeout_seconds=searcher.settings.timeout_seconds if searcher else 30.0,
    )

    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        if searcher is None:
            raise ToolFailure("Web search is not configured on this server.", "NOT_CONFIGURED")
        count = int(arguments.get("num_results", usual_results))
        return ToolAnswer(format_results(await searcher.search(arguments["query"], count, context.provider_headers)))

    lane = SEARCH_LANE if searcher else GENERAL_LANE  # a call that fails at once needs no place of the search service
    return [Tool(definition, run, lane=lane, guard_seconds=_TELLING_SECONDS)]
