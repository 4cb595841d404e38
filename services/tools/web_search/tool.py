"""The tool web_search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.tools.builtin.definitions import define
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed
from services.tools.web_search.asking import words_of
from tenure.domain.tools import EffectClass

if TYPE_CHECKING:
    from services.tools.web_search.asking import Searcher

SEARCH_LANE: Final = "search"
_USUAL_RESULTS: Final = 5
_MOST_RESULTS: Final = 20
_MOST_QUERY_CHARACTERS: Final = 1000
_TELLING_SECONDS: Final = 2.0


def search_tools(searcher: Searcher | None) -> list[Tool]:
    """The tool; without a searcher it says that it is not set up."""
    most_results = searcher.settings.max_results if searcher else _MOST_RESULTS
    most_characters = searcher.settings.format.most_query_characters if searcher else _MOST_QUERY_CHARACTERS
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
            raise ToolFailed("Web search is not set up on this server.", "NOT_CONFIGURED")
        count = int(arguments.get("num_results", usual_results))
        return ToolAnswer(words_of(await searcher.search(arguments["query"], count, context.provider_headers)))

    return [Tool(definition, run, lane=SEARCH_LANE, guard_seconds=_TELLING_SECONDS)]
