"""Whatever a model asks for can be asked for."""

from __future__ import annotations

import pytest

from edges.web_search.search import Searcher
from edges.web_search.settings import WebSearchSettings
from tests.support.http_stub import HttpStub, page
from tests.support.patience import CALL_SECONDS


@pytest.mark.parametrize("provider", ["plain", "serper"])
async def test_half_a_surrogate_pair_is_searched(provider: str) -> None:
    body = '{"results": [], "searchParameters": {}, "organic": []}'
    async with HttpStub(lambda _: page(body)) as stranger:
        section = {"provider": provider, "url": stranger.url(), "allow_private": True, "timeout_seconds": CALL_SECONDS}
        async with Searcher.open(WebSearchSettings(**section, api_key="key")) as searcher:
            assert await searcher.search("\ud800 x", 3, {}) == []
    (seen,) = stranger.seen
    assert "%3F+x" in seen.target or b'"? x"' in seen.body
