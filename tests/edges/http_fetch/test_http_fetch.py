"""http_fetch reads what it may, within its bounds: in time, in bytes, in redirects, and under TLS by the name."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.edges.http_fetch.http_fetcher import PUBLIC, world
from tests.support.certificates import issue
from tests.support.dialling import Dialler, knowing
from tests.support.fix_tools import Grants, StartTools, ToolClient
from tests.support.http_stub import HttpStub, never, page
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

FRONT = "http://front.example/"


class TestFetching:
    async def test_page_is_returned_and_its_server_gets_no_secrets(self) -> None:
        async with world(page("<h1>A</h1><p>b <a href='/c'>c</a>", content_type="text/html; charset=utf-8")) as here:
            answer = await here.fetch(f"{FRONT}a?b=c#d")
        assert answer.content == (
            "[200 http://front.example/a?b=c, text/html, 33 bytes]\n\n# A\n\nb [c](http://front.example/c)"
        )
        assert not answer.truncated
        (seen,) = here.front.seen
        assert (seen.method, seen.target) == ("GET", "/a?b=c")
        assert seen.headers.keys() == {"host", "user-agent", "accept", "accept-encoding"}
        assert (seen.headers["host"], seen.headers["user-agent"][:7]) == ("front.example", "tenure/")

    async def test_redirects_are_followed_without_cookies_and_referrers(self) -> None:
        answers = {
            "/": page("", "301 x", location="/b?c", set_cookie="a=b"),
            "/b?c": page("", "302 x", location="http://other.example/d"),
            "/d": page("", "303 x", location="//front.example/e"),
            "/e": page("", "307 x", location="f"),
            "/f": page("", "308 x", location="/g"),
            "/g": page("there"),
        }
        async with world(lambda seen: answers[seen.target]) as here:
            answer = await here.fetch(FRONT)
            assert answer.content == "[200 http://front.example/g, text/plain, 5 bytes]\n\nthere"
            assert [seen.headers["host"] for seen in here.front.seen][2] == "other.example"
            assert not {"cookie", "referer", "authorization"} & {
                name for seen in here.front.seen for name in seen.headers
            }
            assert (await here.refused(FRONT, max_redirects=4)).detail == "TOO_MANY_REDIRECTS"
            assert len(here.front.seen) == 6 + 5

    async def test_no_connection_is_used_twice(self) -> None:
        answers = [page("", "302 x", location="/b", connection="keep-alive"), page("there", connection="keep-alive")]
        async with world(lambda _: answers.pop(0)) as here:
            assert (await here.fetch(FRONT)).content.endswith("there")
        assert here.front.connections == 2

    async def test_ipv6_address_is_fetched(self) -> None:
        async with world() as here:
            here.dialler = Dialler({"2606:2800:220:1::1": ("127.0.0.1", here.front.port)})
            answer = await here.fetch("http://[2606:2800:0220:1::0001]:80/x", allow=["2606:2800:220:1:0::1"])
        assert answer.content.startswith("[200 http://[2606:2800:220:1::1]/x, ")
        assert here.front.seen[0].headers["host"] == "[2606:2800:220:1::1]"

    @pytest.mark.parametrize(
        ("answer", "detail"),
        [
            (page("x", "404 Nicht da"), "HTTP_404"),
            (page("", "302 x"), "HTTP_302"),
            (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "BAD_ANSWER"),
            (page("x", content_length="99"), "BAD_ANSWER"),
        ],
    )
    async def test_failed_fetch_is_an_outcome(self, answer: Any, detail: str) -> None:
        async with world(answer) as here:
            assert (await here.refused(FRONT)).detail == detail

    async def test_content_that_is_not_text_is_returned_as_type_and_size(self) -> None:
        head = page(b"", content_type="image/png", content_length="123456")

        async def endless(_seen: Any) -> AsyncGenerator[Any]:
            yield head
            while True:
                await asyncio.sleep(0.01)
                yield b"\x89PNG"

        async with world(endless) as here:
            failed = await here.refused(FRONT)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await here.front.left.wait()
        assert failed.detail == "TYPE_REFUSED"
        assert "is image/png, of 123,456 bytes" in failed.message

    async def test_binary_content_declared_as_text_is_refused(self) -> None:
        async with world(page(b"\x7fELF\0\0", content_type="text/plain")) as here:
            assert (await here.refused(FRONT)).detail == "TYPE_REFUSED"


class TestBounds:
    async def test_a_long_page_is_cut_and_its_rest_is_not_read(self) -> None:
        async def endless(_seen: Any) -> AsyncGenerator[Any]:
            yield b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0.001)

        async with world(endless) as here:
            answer = await here.fetch(FRONT, max_bytes=100_000)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await here.front.left.wait()
        assert answer.truncated
        assert answer.content.endswith("x\n[cut here: the rest was not read]")
        assert answer.content.count("x") == 100_000 + "text/plain, front.example".count("x")

    async def test_a_bomb_is_unpacked_no_further_than_the_cap(self) -> None:
        async with world(page(gzip.compress(b"x" * (64 << 20), mtime=0), content_encoding="gzip")) as here:
            answer = await here.fetch(FRONT, max_bytes=100_000)
        assert answer.truncated
        assert len(answer.content) < 100_200

    @pytest.mark.parametrize("encoding", ["gzip", "br"], ids=["not packed", "unknown"])
    async def test_body_with_a_wrong_encoding_is_refused(self, encoding: str) -> None:
        async with world(page(b"x", content_encoding=encoding)) as here:
            assert (await here.refused(FRONT)).detail == "ENCODING_REFUSED"

    @pytest.mark.parametrize(
        "beginning", first([b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"])
    )
    async def test_slow_server_times_out(self, beginning: bytes) -> None:
        async def trickle(_seen: Any) -> AsyncGenerator[Any]:
            yield beginning
            for byte in b"x-a: " + b"b" * 10_000_000:
                await asyncio.sleep(0.02)
                yield bytes([byte])

        async with world(trickle if beginning else never) as here:
            failed = await here.refused(FRONT, timeout_seconds=0.4)
        assert failed.detail == "TIMEOUT"
        assert "within 0.4 s" in failed.message

    async def test_silent_resolver_times_out(self) -> None:
        async def silent(_host: str, _port: int) -> Any:
            await asyncio.Event().wait()

        async with world() as here:
            assert (await here.refused(FRONT, silent, timeout_seconds=0.2)).detail == "TIMEOUT"

    async def test_a_cancelled_fetch_gives_up_its_connection(self) -> None:
        async with world(never) as here:
            fetching = asyncio.create_task(here.fetch(FRONT))
            await here.front.until_requested()
            fetching.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await here.front.left.wait()
            assert fetching.cancelled()


class TestTls:
    @pytest.fixture
    def authority(self) -> Any:
        return issue("authority")

    async def test_the_certificate_must_match_the_dialled_name(self, authority: Any, tmp_path: Path) -> None:
        tls = issue("front", ("front.example",), authority).server(tmp_path)
        names = []
        tls.sni_callback = lambda _socket, name, _context: names.append(name)
        async with world(None, tls) as here:
            answer = await here.fetch("https://front.example/", ca_file=authority.write(tmp_path / "ca.pem"))
        assert answer.content.endswith("hello")
        assert (names, here.dialler.dialled) == (["front.example"], [(PUBLIC, 443)])

    async def test_a_certificate_for_another_name_is_refused(self, authority: Any, tmp_path: Path) -> None:
        tls = issue("front.example", ("elsewhere.example",), authority).server(tmp_path)
        async with world(None, tls) as here:
            failed = await here.refused("https://front.example/", ca_file=authority.write(tmp_path / "ca.pem"))
        assert failed.detail == "TLS_FAILED"
        assert here.front.seen == []

    async def test_unknown_certificate_authority_is_refused(self, authority: Any, tmp_path: Path) -> None:
        async with world(None, issue("front", ("front.example",), authority).server(tmp_path)) as here:
            assert (await here.refused("https://front.example/")).detail == "TLS_FAILED"
        assert here.front.seen == []

    async def test_an_address_has_to_be_in_the_certificate_itself(self, authority: Any, tmp_path: Path) -> None:
        trusting = {"ca_file": authority.write(tmp_path / "ca.pem"), "allow": [PUBLIC]}
        async with world(None, issue("front", (PUBLIC,), authority).server(tmp_path)) as here:
            assert (await here.fetch(f"https://{PUBLIC}/", **trusting)).content.endswith("hello")

    async def test_redirect_to_clear_text_is_refused(self, authority: Any, tmp_path: Path) -> None:
        tls = issue("front", ("front.example",), authority).server(tmp_path)
        async with world(page("", "302 x", location="http://front.example/"), tls) as here:
            failed = await here.refused("https://front.example/", ca_file=authority.write(tmp_path / "ca.pem"))
        assert failed.detail == "DOWNGRADE_REFUSED"
        assert here.front.connections == 1


class TestService:
    async def test_http_fetch_needs_its_section(self, tools: ToolClient, grants: Grants) -> None:
        outcome = await tools.outcome(grants.claim(), "1.0", "http_fetch", url=FRONT)
        assert outcome.status is OutcomeStatus.INVALID_ARGUMENTS
        assert "There is no tool named 'http_fetch'" in outcome.content

    async def test_section_allows_hosts_and_networks(
        self, tool_service: StartTools, grants: Grants, tmp_path: Path
    ) -> None:
        async with HttpStub(lambda _: page("inside")) as inside:
            allow = [{"host": "127.0.0.1", "ports": [inside.port]}]
            section = {"allow": allow, "timeout_seconds": CALL_SECONDS}
            (tmp_path / "no.yaml").write_text(json.dumps({"http_fetch": section}))
            (tmp_path / "yes.yaml").write_text(
                json.dumps({"http_fetch": {**section, "allowed_networks": ["127.0.0.1/32"]}})
            )
            tools = await tool_service(config_file=tmp_path / "no.yaml")
            outcome = await tools.outcome(grants.claim(), "1.0", "http_fetch", url=inside.url())
            assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "ADDRESS_REFUSED")
            assert inside.connections == 0
            tools = await tool_service(config_file=tmp_path / "yes.yaml")
            outcome = await tools.outcome(grants.claim(), "1.0", "http_fetch", url=inside.url())
            assert outcome.status is OutcomeStatus.SUCCEEDED
            assert outcome.content.endswith("inside")
            assert "idempotency-key" not in inside.seen[0].headers


async def test_unreachable_host_is_an_outcome() -> None:
    async with world() as here:
        nowhere = knowing({"front.example": [PUBLIC]})
        here.dialler._failing.add(PUBLIC)
        assert (await here.refused(FRONT, nowhere)).detail == "UNREACHABLE"


async def test_a_redirect_that_is_written_in_utf8_is_followed() -> None:
    def answer(seen: Any) -> Any:
        return page("", "302 Found", location="/café") if seen.target == "/" else page("coffee")

    async with world(answer) as here:
        assert (await here.fetch(FRONT)).content.endswith("coffee")
    assert [seen.target for seen in here.front.seen] == ["/", "/caf%C3%A9"]
