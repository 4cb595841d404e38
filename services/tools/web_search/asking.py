"""One search: asked for, asked for again while its time lasts, read, and put into words."""

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

from services.tools.outgoing_errors import told_failure
from services.tools.tool import ToolFailed
from services.tools.web_search.formats import Asking, Result
from services.tools.web_search.settings import WebSearchSettings
from tenure.domain.addresses import EVERYWHERE, Networks
from tenure.domain.retry import RetryPolicy
from tenure.domain.webhooks import retry_after_seconds
from tenure.runtime.checked_network import CheckedBackend
from tenure.runtime.outgoing import FAILURES, READABLE_ENCODINGS, Answer, BadEncoding, Body, Outgoing

SEARCHES_AT_ONCE: Final = 8
MOST_BYTES: Final = 1024 * 1024
MOST_EXCERPT_CHARACTERS: Final = 2000

_AGAIN: Final = RetryPolicy(max_attempts=3, initial_seconds=0.5, factor=2.0, cap_seconds=5.0)
_AGAIN_STATUSES: Final = frozenset((429, 502, 503, 504))
_REFUSED_STATUSES: Final = frozenset((401, 403))
_KEPT_ALIVE_SECONDS: Final = 4.0
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]*>")


class Searcher:
    """Asks the service that is set up."""

    def __init__(self, settings: WebSearchSettings, outgoing: Outgoing) -> None:
        self.settings, self._outgoing = settings, outgoing

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: WebSearchSettings) -> AsyncIterator[Searcher]:
        """With its connections."""
        networks = Networks(EVERYWHERE if settings.allow_private else ())
        backend = CheckedBackend(networks, "web_search")
        async with Outgoing(
            backend, most_connections=SEARCHES_AT_ONCE, kept_alive_seconds=_KEPT_ALIVE_SECONDS
        ) as outgoing:
            yield cls(settings, outgoing)

    async def search(self, query: str, count: int, call_headers: dict[str, str]) -> list[Result]:
        """The first `count` results. Raises ToolFailed. `call_headers`: for a service of the installation's own."""
        settings = self.settings
        asked = query.encode(errors="replace").decode()  # JSON can hold half a character, URLs cannot
        asking = settings.format.ask(settings.endpoint, settings.key, asked, count)
        if settings.format.is_ours:
            asking.headers.extend(call_headers.items())
        try:
            async with asyncio.timeout(settings.timeout_seconds) as timeout:
                body = await self._answered(asking, timeout.when() or 0.0)
        except (TimeoutError, BadEncoding, *FAILURES) as error:
            raise told_failure(error, "The search service", settings.timeout_seconds) from error
        return list(islice(self._read(body), count))

    async def _answered(self, asking: Asking, deadline: float) -> Body:
        failures = 0
        while True:
            async with self._outgoing.send(
                asking.method, asking.url, [("accept-encoding", READABLE_ENCODINGS), *asking.headers], asking.body
            ) as answer:
                if answer.status == 200:
                    return await answer.read(MOST_BYTES)
            failures += 1
            refusal = self._refusal(answer)
            wait_seconds = _AGAIN.wait_seconds(failures, random.random(), _asked_seconds(answer))
            too_late = asyncio.get_running_loop().time() + wait_seconds >= deadline
            if answer.status not in _AGAIN_STATUSES or failures >= _AGAIN.max_attempts or too_late:
                raise refusal
            await asyncio.sleep(wait_seconds)

    def _refusal(self, answer: Answer) -> ToolFailed:
        """What the service says in its own words is not told: it may hold the key."""
        if answer.status in _REFUSED_STATUSES:
            told = f"The search service {self.settings.format.refusal}. Whoever runs this server has to see to it."
            return ToolFailed(told, "KEY_REFUSED" if self.settings.key else f"HTTP_{answer.status}")
        asked_seconds = _asked_seconds(answer)
        asks = f" It asks to be left alone for {asked_seconds:g} s." if asked_seconds else ""
        return ToolFailed(f"The search service answered {answer.status}.{asks}", f"HTTP_{answer.status}")

    def _read(self, body: Body) -> list[Result]:
        if not body.is_whole:
            raise ToolFailed(
                "The search service answered with more than 1 MiB, or in too many pieces.", "ANSWER_TOO_LARGE"
            )
        try:
            return list(self.settings.format.read(json.loads(body.content)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ToolFailed("The search service answered with something else than results.", "BAD_ANSWER") from error


def words_of(results: list[Result]) -> str:
    """For the model: numbered, each with its address and excerpt, of plain text on one line each."""
    told = [
        f"{number}. {_plain(title)}\n   {_plain(url)}\n   {_plain(excerpt)}"
        for number, (title, url, excerpt) in enumerate(results, start=1)
    ]
    return "\n".join(told) or "Nothing was found."


def _plain(text: str) -> str:
    """Services mark the words searched for by tags, and write characters as entities."""
    flat = html.unescape(_TAG.sub("", text[: 2 * MOST_EXCERPT_CHARACTERS]))
    flat = " ".join("".join(one if one.isprintable() else " " for one in flat).split())
    return flat if len(flat) <= MOST_EXCERPT_CHARACTERS else flat[: MOST_EXCERPT_CHARACTERS - 1] + "…"


def _asked_seconds(answer: Answer) -> float:
    return retry_after_seconds(answer.headers.get("retry-after", ""), datetime.now(UTC)) or 0.0
