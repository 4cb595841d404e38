"""http_fetch leads nowhere inside: whatever is dialled besides the public front would reach a server that counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edges.http_fetch.fetch import Fetcher
from edges.http_fetch.settings import HttpFetchSettings
from services.tools.tool import ToolFailure
from tenure.domain.outbound import Networks, UrlRefused, parse_url
from tenure.runtime.http.outbound_http import CheckedNetworkBackend
from tests.edges.http_fetch.http_fetcher import PUBLIC, world
from tests.support.dialling import Dialler, answering, knowing
from tests.support.examples import examples
from tests.support.http_stub import page

INSIDE = [("127.0.0.1", "loopback"), ("169.254.169.254", "link-local"), ("fd00:ec2::254", "private")]
"""Addresses, and the kind that the refusal names. tests/unit/test_addresses.py has every kind."""

HOSTILE = [
    ("http://2130706433/", "ODD_HOST"),
    ("http://front.example@127.0.0.1/", "CREDENTIALS_IN_URL"),
    ("http://front.example/\r\nHost: 127.0.0.1", "BAD_URL"),
    ("file:///etc/passwd", "SCHEME_REFUSED"),
    ("http://front.example:6379/", "PORT_NOT_ALLOWED"),
    ("http://127.0.0.1/", "HOST_NOT_ALLOWED"),
    ("http://unknown.example/", "UNRESOLVED"),
]
"""URLs, and the reason they are refused for where all names are allowed. tests/unit/test_urls.py has every kind."""


@pytest.mark.parametrize(("url", "reason"), HOSTILE)
async def test_a_hostile_url_is_refused_without_a_connection(url: Any, reason: Any) -> None:
    async with world() as here:
        assert (await here.refused(url)).detail == reason
    assert here.dialler.dialled == []
    assert (here.front.connections, here.inside.connections) == (0, 0)


@pytest.mark.parametrize(("address", "kind"), INSIDE)
async def test_an_inside_address_is_refused_on_an_allowed_host(address: Any, kind: Any) -> None:
    async with world() as here:
        host = f"[{address}]" if ":" in address else address
        written = await here.refused(f"http://{host}/", allow=[address])
        resolved = await here.refused("http://front.example/", knowing({"front.example": [address]}))
        answers = {"front.example": [PUBLIC], "inside.example": [address, address]}
        here.front.answer = lambda _: page("", "302 Found", location="http://inside.example/")
        redirected = await here.refused("http://front.example/", knowing(answers))
    for failed in (written, resolved, redirected):
        assert failed.detail == "ADDRESS_REFUSED"
        assert f"{kind} address" in failed.message
    assert address not in resolved.message + redirected.message
    assert {host for host, _ in here.dialler.dialled} == {PUBLIC}
    assert (here.front.connections, here.inside.connections) == (1, 0)


@pytest.mark.parametrize(
    ("location", "reason"),
    [("//127.0.0.1/", "HOST_NOT_ALLOWED"), ("http://0x7f.1/", "ODD_HOST"), ("", "TOO_MANY_REDIRECTS")],
)
async def test_redirect_target_is_checked_as_the_url(location: str, reason: str) -> None:
    async with world(lambda _: page("", "302 Found", location=location or "?")) as here:
        assert (await here.refused("http://front.example/", allow=["front.example"])).detail == reason
    assert {host for host, _ in here.dialler.dialled} == {PUBLIC}
    assert here.inside.connections == 0


async def test_a_rebound_name_is_checked_at_each_hop() -> None:
    async with world(lambda _: page("", "302 Found", location="/again")) as here:
        failed = await here.refused("http://front.example/", answering([[PUBLIC], [PUBLIC], ["127.0.0.1"]]))
    assert failed.detail == "ADDRESS_REFUSED"
    assert (here.front.connections, here.inside.connections) == (2, 0)


async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as here:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, here.inside.url())
        await here.fetch("http://front.example/")
    assert (here.front.connections, here.inside.connections) == (1, 0)


@pytest.mark.faults
@given(
    st.text(max_size=60)
    | st.from_regex(
        r"(https?:)?[/\\]{0,3}[-a-z0-9.:@\[\]%\\/?#_]{0,20}(front\.example|127\.0\.0\.1)?.{0,20}", fullmatch=True
    )
)
@settings(max_examples=examples(10))
async def test_only_listed_hosts_are_looked_up(text: Any) -> None:
    """What is checked is what is looked up and dialled."""
    looked_up, dialler = [], Dialler(failing=[PUBLIC])

    async def resolve(host: Any, _port: Any) -> Any:
        looked_up.append(host)
        return [PUBLIC]

    backend = CheckedNetworkBackend(Networks(), "http_fetch", resolve=resolve, dialer=dialler)
    async with Fetcher.open(
        HttpFetchSettings.model_validate({"allow": ["front.example"]}), ThreadPoolExecutor(1), backend
    ) as fetcher:
        for url in (text, f"http://{text}", f"http://front.example{text}"):
            with pytest.raises(ToolFailure):
                await fetcher.fetch(url)
    assert set(looked_up) <= {"front.example"}
    assert set(dialler.dialled) <= {(PUBLIC, 80), (PUBLIC, 443)}


@pytest.mark.parametrize(
    ("allow", "url", "reason"),
    [
        (["front.example"], "http://front.example/", ""),
        (["FRONT.example."], "http://Front.Example./", ""),
        (["front.example"], "http://sub.front.example/", "HOST_NOT_ALLOWED"),
        (["front.example"], "http://evilfront.example/", "HOST_NOT_ALLOWED"),
        (["*.front.example"], "http://front.example/", "HOST_NOT_ALLOWED"),
        (["*.example"], "http://front.example/", ""),
        (["*.example"], "http://front.example.evil/", "HOST_NOT_ALLOWED"),
        (["*"], f"http://{PUBLIC}/", "HOST_NOT_ALLOWED"),
        ([PUBLIC], f"http://{PUBLIC}/", ""),
        ([{"host": "front.example", "ports": [8443]}], "http://front.example:8443/", ""),
        ([{"host": "front.example", "ports": [8443]}], "http://front.example/", "PORT_NOT_ALLOWED"),
        ([{"host": "*", "paths": ["/a"]}, "front.example"], "http://front.example/b", ""),
        *(
            ([{"host": "front.example", "paths": [path]}], f"http://front.example/docs{rest}", reason)
            for path, rest, reason in (
                *(("/docs", "", ""), ("/docs", "/a?b", ""), ("/docs/", "/%C3%A4", "")),
                *(
                    ("/docs", rest, "PATH_NOT_ALLOWED")
                    for rest in ("ecret", "/../x", "/%2e%2e/x", "/..%2fx", "/..;/x", "/..\\x", "/%252e%252e/x")
                ),
            )
        ),
    ],
)
def test_only_listed_hosts_ports_and_paths_are_allowed(allow: Any, url: str, reason: str) -> None:
    settings = HttpFetchSettings.model_validate({"allow": allow})
    with pytest.raises(UrlRefused) if reason else nullcontext() as refused:
        settings.check(parse_url(url))
    assert reason == (refused.value.reason if refused else "")
