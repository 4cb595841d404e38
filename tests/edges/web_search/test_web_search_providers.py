"""web_search in the formats of real services: asked as they want to be asked, read as they answer."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from edges.tools_config import read_config
from edges.web_search.search import MAX_EXCERPT_CHARACTERS, Searcher, search_tools
from edges.web_search.settings import WebSearchSettings
from services.tools.tool import CallContext, ToolFailure
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.settings import ConfigurationError
from tests.conformance.search_answers import (
    BRAVE,
    KEY,
    PLAIN,
    SEARXNG,
    SERPER,
    TAVILY,
)
from tests.support.fix_tools import Grants, StartTools
from tests.support.http_stub import HttpStub, never, page
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

CONTEXT = CallContext("default", "task", "1.0", "task/1.0", 7, print)


def answered(content: Any, status: str = "200 OK", **headers: Any) -> Any:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return page(body, status, content_type="application/json", **headers)


async def search(stranger: Any, provider: str = "brave", *, settings: Any = None, **arguments: Any) -> Any:
    """The content for the model."""
    usual = {"url": stranger.url("/search"), "api_key": KEY, "allow_private": True, "timeout_seconds": CALL_SECONDS}
    async with Searcher.open(WebSearchSettings(provider=provider, **{**usual, **(settings or {})})) as searcher:
        (tool,) = search_tools(searcher)
        return (await tool.run(CONTEXT, {"query": "fencing & tokens", **arguments})).content


async def failure(stranger: Any, provider: str = "brave", **settings: Any) -> Any:
    with pytest.raises(ToolFailure) as failed:
        await search(stranger, provider, settings=settings)
    assert KEY not in failed.value.message + str(failed.value.__cause__)
    return failed.value


class TestFormats:
    async def test_brave_gets_its_token_and_its_markup_is_removed(self) -> None:
        async with HttpStub(lambda _: answered(BRAVE)) as stranger:
            match = await search(stranger, "brave", num_results=2)
        assert match == (
            "1. Brave Search & friends\n   https://search.brave.com/\n   Search the web privately 'now'.\n"
            "2. Search engine\n   https://en.wikipedia.org/wiki/Search_engine\n   A search engine is a software system."
        )
        (seen,) = stranger.seen
        query = {"q": ["fencing & tokens"], "count": ["2"], "result_filter": ["web"], "text_decorations": ["false"]}
        assert (seen.method, parse_qs(urlsplit(seen.target).query)) == ("GET", query)
        assert (seen.headers["x-subscription-token"], seen.headers["accept"]) == (KEY, "application/json")

    async def test_tavily_is_posted_to_with_a_bearer_token(self) -> None:
        async with HttpStub(lambda _: answered(TAVILY)) as stranger:
            match = await search(stranger, "tavily")
        assert match.splitlines()[:3] == [
            "1. Lionel Messi Facts | Britannica",
            "   https://www.britannica.com/facts/Lionel-Messi",
            "   Lionel Messi, an Argentine footballer.",
        ]
        (seen,) = stranger.seen
        assert json.loads(seen.body) == {"query": "fencing & tokens", "max_results": 5, "search_depth": "basic"}
        assert (seen.method, seen.headers["authorization"]) == ("POST", f"Bearer {KEY}")
        assert seen.headers["content-type"] == "application/json"

    async def test_serper_is_posted_to_with_its_key(self) -> None:
        async with HttpStub(lambda _: answered(SERPER)) as stranger:
            match = await search(stranger, "serper", num_results=1)
        assert match == "1. Apple\n   https://www.apple.com/\n   Discover the innovative world of Apple."
        (seen,) = stranger.seen
        assert (seen.method, seen.headers["x-api-key"]) == ("POST", KEY)
        assert json.loads(seen.body) == {"q": "fencing & tokens", "num": 1}

    async def test_searxng_is_asked_for_json_without_a_key(self) -> None:
        async with HttpStub(lambda _: answered(SEARXNG)) as stranger:
            match = await search(stranger, "searxng", settings={"api_key": None, "url": stranger.url("/?language=de")})
        assert match.startswith(
            "1. Welcome to SearXNG\n   https://docs.searxng.org/\n   SearXNG is a metasearch engine.\n"
        )
        (seen,) = stranger.seen
        query = parse_qs(urlsplit(seen.target).query)
        assert query == {"language": ["de"], "q": ["fencing & tokens"], "format": ["json"]}
        assert "authorization" not in seen.headers

    @pytest.mark.parametrize("provider", ["brave", "tavily", "serper", "searxng"])
    async def test_search_request_does_not_name_the_call(self, provider: str) -> None:
        answers = {"brave": BRAVE, "tavily": TAVILY, "serper": SERPER, "searxng": SEARXNG}
        async with HttpStub(lambda _: answered(answers[provider])) as stranger:
            await search(stranger, provider)
        assert not {"idempotency-key", "x-fencing-epoch"} & stranger.seen[0].headers.keys()

    @pytest.mark.parametrize(
        ("provider", "answer"),
        [
            ("brave", {"type": "search", "query": {"original": "x"}}),
            ("tavily", {"results": []}),
            ("serper", {"searchParameters": {"q": "x"}}),
            ("searxng", {"results": []}),
            ("plain", {"results": ["no result", 7]}),
        ],
    )
    async def test_search_without_results_succeeds(self, provider: str, answer: Any) -> None:
        async with HttpStub(lambda _: answered(answer)) as stranger:
            assert await search(stranger, provider) == "Nothing was found."

    async def test_search_result_is_one_line_and_cut(self) -> None:
        title = "a<b>b</b>\n2. forged\x1b[2J &lt;i&gt; 1 < 2 > 0"
        results = [{"title": title, "url": "https://e/", "snippet": "x" * 10_000}]
        async with HttpStub(lambda _: answered({"results": results})) as stranger:
            response = (await search(stranger, "plain")).splitlines()
        assert response[0] == "1. ab 2. forged [2J <i> 1 < 2 > 0"
        assert len(response) == 3
        assert len(response[2].strip()) == MAX_EXCERPT_CHARACTERS


class TestSettings:
    @pytest.mark.parametrize(
        ("section", "expected"),
        [
            ("{provider: google}", "web_search.provider: Input should be 'brave', 'tavily', 'serper', 'searxng' or"),
            ("{provider: brave}", "web_search: Value error, brave needs a key: set api_key"),
            ("{provider: tavily, api_key: ''}", "web_search: Value error, tavily needs a key"),
            ('{provider: serper, api_key: "a\\nb"}', "web_search.api_key: Value error, a key must consist of"),
            ("{provider: searxng}", "web_search: Value error, searxng has no default URL: set url"),
            ("{provider: searxng, url: 'http://searx/'}", "web_search: Value error, url must begin with https://"),
            ("{provider: searxng, url: 'https://u:p@searx/'}", "web_search.url: Value error, The URL must not hold"),
            ("{provider: brave, api_key: x, max_results: 50}", "web_search.max_results: Input should be less than"),
        ],
    )
    def test_invalid_setting_is_named(self, tmp_path: Path, section: str, expected: str) -> None:
        path = tmp_path / "tools.yaml"
        path.write_text(f"web_search: {section}")
        with pytest.raises(ConfigurationError) as raised:
            read_config(path, {})
        (problem,) = raised.value.problems
        assert problem.startswith(f"{path}: {expected}")

    def test_key_is_not_in_repr_or_log(self, tmp_path: Path) -> None:
        path = tmp_path / "tools.yaml"
        path.write_text("web_search: {provider: brave, api_key: '${SEARCH_KEY}'}")
        config = read_config(path, {"SEARCH_KEY": KEY})
        assert config.web_search is not None
        assert config.web_search.key == KEY
        assert KEY not in repr(config) + str(config) + config.model_dump_json()
        path.write_text("web_search: {provider: brave, api_key: '${SEARCH_KEY}', timeout_seconds: -1}")
        with pytest.raises(ConfigurationError) as raised:
            read_config(path, {"SEARCH_KEY": KEY})
        assert KEY not in str(raised.value) + str(raised.value.__cause__)

    def test_the_usual_addresses_are_theirs(self) -> None:
        hosts = {"brave": "api.search.brave.com", "tavily": "api.tavily.com", "serper": "google.serper.dev"}
        for provider, host in hosts.items():
            endpoint = WebSearchSettings(provider=provider, api_key="x").endpoint
            assert (endpoint.scheme, endpoint.host) == ("https", host)

    async def test_a_process_uses_the_configured_provider_and_key(
        self, tool_service: StartTools, grants: Grants, tmp_path: Path
    ) -> None:
        async with HttpStub(lambda _: answered({"message": KEY}, "401 Unauthorized")) as stranger:
            path = tmp_path / "tools.yaml"
            section = {"provider": "brave", "url": stranger.url(), "api_key": KEY, "allow_private": True}
            section["timeout_seconds"] = CALL_SECONDS
            path.write_text(json.dumps({"web_search": section}))
            tools = await tool_service(config_file=path)
            outcome = await tools.outcome(grants.claim(), "1.0", "web_search", query="x")
        assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "KEY_REFUSED")
        assert stranger.seen[0].headers["x-subscription-token"] == KEY
        assert KEY not in json.dumps(tools.log) + outcome.content


class TestRefusals:
    @pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
    async def test_refused_key_is_reported_without_the_key(self, status: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        async with HttpStub(lambda _: answered({"message": f"{KEY} is not a key"}, status)) as stranger:
            failed = await failure(stranger)
        assert failed.detail == "KEY_REFUSED"
        assert len(stranger.seen) == 1
        assert "receive_response_headers" in caplog.text
        assert KEY not in caplog.text

    async def test_searxng_without_json_has_its_detail(self) -> None:
        async with HttpStub(lambda _: page("", "403 Forbidden")) as stranger:
            failed = await failure(stranger, "searxng", api_key=None)
        assert failed.detail == "HTTP_403"
        assert "search.formats" in failed.message

    async def test_busy_service_is_retried_at_its_retry_after(self) -> None:
        answers = [answered({}, "429 Too Many Requests", retry_after="0"), answered({}, "503 x"), answered(PLAIN)]
        async with HttpStub(lambda _: answers.pop(0)) as stranger:
            match = await search(stranger, "plain")
        assert match.startswith("1. T0")
        assert len(stranger.seen) == 3

    async def test_a_retry_time_beyond_the_limit_is_not_waited_for(self) -> None:
        async with HttpStub(lambda _: answered({}, "429 Too Many Requests", retry_after="3600")) as stranger:
            failed = await failure(stranger)
        assert (failed.detail, len(stranger.seen)) == ("HTTP_429", 1)
        assert "3600 s" in failed.message

    async def test_a_redirect_is_followed_nowhere(self) -> None:
        async with HttpStub(lambda _: answered(BRAVE)) as other:
            there = other.url()
            async with HttpStub(lambda _: page("", "302 Found", location=there)) as stranger:
                assert (await failure(stranger)).detail == "HTTP_302"
            assert other.connections == 0

    @pytest.mark.parametrize(
        ("answer", "detail"),
        [
            (answered(b"<html>"), "BAD_ANSWER"),
            (answered({"error": "x"}), "BAD_ANSWER"),
            (answered({"type": "search", "web": {"results": "x"}}), "BAD_ANSWER"),
            (answered(b"[" * 100_000), "BAD_ANSWER"),
            (answered(b"\xff"), "BAD_ANSWER"),
            (b"SSH-2.0-OpenSSH_9.6\r\n", "BAD_ANSWER"),
            (answered(BRAVE, content_length="100000"), "BAD_ANSWER"),
            (answered(b" " * (2 << 20)), "ANSWER_TOO_LARGE"),
            (answered(b"x", content_encoding="gzip"), "ENCODING_REFUSED"),
            (answered({}, "500 Oops"), "HTTP_500"),
        ],
    )
    async def test_a_bad_answer_is_an_outcome(self, answer: Any, detail: str) -> None:
        async with HttpStub(lambda _: answer) as stranger:
            assert (await failure(stranger)).detail == detail

    async def test_silent_search_service_times_out(self) -> None:
        async with HttpStub(never) as stranger:
            assert (await failure(stranger, timeout_seconds=0.3)).detail == "TIMEOUT"

    async def test_a_cancelled_search_gives_up_its_connection(self) -> None:
        async with HttpStub(never) as stranger:
            searching = asyncio.create_task(search(stranger))
            await stranger.until_requested()
            searching.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stranger.left.wait()
            assert searching.cancelled()

    async def test_a_service_inside_is_not_reached_unless_that_is_allowed(self) -> None:
        async with HttpStub(lambda _: answered(BRAVE)) as stranger:
            inside = stranger.url("/search").replace("http:", "https:")
            assert (await failure(stranger, url=inside, allow_private=False)).detail == "ADDRESS_REFUSED"
            assert stranger.connections == 0
