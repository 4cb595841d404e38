"""Whatever a model asks for can be asked for."""

from __future__ import annotations

import pytest

from services.tools.web_search.asking import Searcher
from services.tools.web_search.settings import WebSearchSettings
from tests.patience import CALL_SECONDS
from tests.strangers import Stranger, page


@pytest.mark.parametrize("provider", ["plain", "serper"])
async def test_half_a_character_is_no_crash(provider):
    body = '{"results": [], "searchParameters": {}, "organic": []}'
    async with Stranger(lambda _: page(body)) as stranger:
        section = {"provider": provider, "url": stranger.url(), "allow_private": True, "timeout_seconds": CALL_SECONDS}
        async with Searcher.open(WebSearchSettings(**section, api_key="key")) as searcher:
            assert await searcher.search("\ud800 x", 3, {}) == []
    (seen,) = stranger.seen
    assert "%3F+x" in seen.target or b'"? x"' in seen.body
