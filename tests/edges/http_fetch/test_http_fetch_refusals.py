"""http_fetch leads nowhere inside: whatever is dialled besides the public front would reach a server that counts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edges.http_fetch.fetch import Fetcher
from edges.http_fetch.settings import HttpFetchSettings
from services.tools.tool import ToolFailure
from tenure.domain.outbound import Networks
from tenure.runtime.http.outbound_http import CheckedNetworkBackend
from tests.edges.http_fetch.http_fetcher import PUBLIC, world
from tests.support.dialling import Dialler, answering, knowing
from tests.support.examples import examples
from tests.support.http_stub import page
from tests.support.sweeps import one_of_each

INSIDE = [
    ("127.0.0.1", "loopback"),
    ("127.8.8.8", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("192.168.1.1", "private"),
    ("169.254.169.254", "link-local"),
    ("100.100.100.200", "carrier-grade NAT"),
    ("168.63.129.16", "cloud metadata"),
    ("192.0.0.192", "reserved"),
    ("198.18.0.1", "reserved"),
    ("224.0.0.1", "multicast"),
    ("255.255.255.255", "reserved"),
    ("203.0.113.1", "documentation"),
    ("::1", "loopback"),
    ("::", "unspecified"),
    ("::7f00:1", "reserved"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:a9fe:a9fe", "link-local"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b:1::a00:1", "private"),
    ("2002:7f00:1::", "tunnel"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "tunnel"),
    ("fe80::1", "link-local"),
    ("fec0::1", "private"),
    ("fd00:ec2::254", "private"),
    ("ff02::1", "multicast"),
]
"""Addresses, and the kind that the refusal names."""

HOSTILE = [
    ("http://2130706433/", "ODD_HOST"),
    ("http://0x7f000001/", "ODD_HOST"),
    ("http://017700000001/", "ODD_HOST"),
    ("http://0177.0.0.1/", "ODD_HOST"),
    ("http://0x7f.0x0.0x0.0x1/", "ODD_HOST"),
    ("http://127.1/", "ODD_HOST"),
    ("http://127.0.1/", "ODD_HOST"),
    ("http://00127.0.0.1/", "ODD_HOST"),
    ("http://\uff11\uff12\uff17.0.0.1/", "ODD_HOST"),
    ("http://127\u30020\u30020\u30021/", "ODD_HOST"),
    ("http://[::1%25lo]/", "ODD_HOST"),
    ("http://[0:0:0:0:0:ffff:127.0.0.1.]/", "ODD_HOST"),
    ("http://front.example%00.evil.example/", "ODD_HOST"),
    ("http://front.example%2f@127.0.0.1/", "CREDENTIALS_IN_URL"),
    ("http://front.example@127.0.0.1/", "CREDENTIALS_IN_URL"),
    ("http://front.example:80@127.0.0.1/", "CREDENTIALS_IN_URL"),
    ("http://127.0.0.1\\@front.example/", "CREDENTIALS_IN_URL"),
    ("http://user:password@front.example/", "CREDENTIALS_IN_URL"),
    ("http://front.example\\.evil.example/", "ODD_HOST"),
    ("http://127.0.0.1:80\\front.example/", "ODD_HOST"),
    ("http:\\\\127.0.0.1/", "BAD_URL"),
    ("http:127.0.0.1", "BAD_URL"),
    ("//127.0.0.1/", "BAD_URL"),
    ("http://front.example/\r\nHost: 127.0.0.1", "BAD_URL"),
    ("http://front.example \t127.0.0.1/", "BAD_URL"),
    ("file:///etc/passwd", "SCHEME_REFUSED"),
    ("ftp://front.example/", "SCHEME_REFUSED"),
    ("gopher://127.0.0.1:6379/_INFO", "SCHEME_REFUSED"),
    ("dict://127.0.0.1:11211/stats", "SCHEME_REFUSED"),
    ("http+unix://%2Fvar%2Frun%2Fdocker.sock/info", "SCHEME_REFUSED"),
    ("http://front.example:22/", "PORT_NOT_ALLOWED"),
    ("http://front.example:6379/", "PORT_NOT_ALLOWED"),
    ("http://front.example:0/", "ODD_HOST"),
    ("http://127.0.0.1/", "HOST_NOT_ALLOWED"),
    ("http://[::1]/", "HOST_NOT_ALLOWED"),
    ("http://unknown.example/", "UNRESOLVED"),
]
"""URLs, and the reason they are refused for where all names are allowed."""


@pytest.mark.parametrize(("url", "reason"), one_of_each(HOSTILE))
async def test_a_hostile_url_is_refused_without_a_connection(url: Any, reason: Any) -> None:
    async with world() as here:
        assert (await here.refused(url)).detail == reason
    assert here.dialler.dialled == []
    assert (here.front.connections, here.inside.connections) == (0, 0)


@pytest.mark.parametrize(("address", "kind"), one_of_each(INSIDE))
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
    one_of_each(
        [
            ("http://127.0.0.1/", "HOST_NOT_ALLOWED"),
            ("http://169.254.169.254/latest/meta-data/", "HOST_NOT_ALLOWED"),
            ("//127.0.0.1/", "HOST_NOT_ALLOWED"),
            ("http://[::1]/", "HOST_NOT_ALLOWED"),
            ("http://[::ffff:127.0.0.1]/", "HOST_NOT_ALLOWED"),
            ("http://elsewhere.example/", "HOST_NOT_ALLOWED"),
            ("http://front.example.evil.example/", "HOST_NOT_ALLOWED"),
            ("http://evilfront.example/", "HOST_NOT_ALLOWED"),
            ("http://2130706433/", "ODD_HOST"),
            ("http://0x7f.1/", "ODD_HOST"),
            ("http://[::1", "BAD_URL"),
            ("http://127.0.0.1\\@front.example/", "CREDENTIALS_IN_URL"),
            ("http://u:p@front.example/", "CREDENTIALS_IN_URL"),
            ("http://front.example:6379/", "PORT_NOT_ALLOWED"),
            ("file:///etc/passwd", "SCHEME_REFUSED"),
            ("gopher://front.example/_x", "SCHEME_REFUSED"),
            ("javascript:alert(1)", "SCHEME_REFUSED"),
            ("http://front.example/a b", "BAD_URL"),
            ("", "TOO_MANY_REDIRECTS"),
            ("#x", "TOO_MANY_REDIRECTS"),
        ]
    ),
)
async def test_redirect_target_is_checked_as_the_url(location: str, reason: str) -> None:
    async with world(lambda _: page("", "302 Found", location=location or "?")) as here:
        assert (await here.refused("http://front.example/", allow=["front.example"])).detail == reason
    assert {host for host, _ in here.dialler.dialled} == {PUBLIC}
    assert here.inside.connections == 0


async def test_a_rebound_name_leads_nowhere_else() -> None:
    """The connection goes to the address that was judged: no second lookup happens between the two."""
    answers: list[Sequence[str]] = [[PUBLIC], ["127.0.0.1"], [PUBLIC]]
    async with world() as here:
        response = await here.fetch("http://front.example/", answering(answers))
        assert response.content.endswith("hello")
        assert here.dialler.dialled == [(PUBLIC, 80)]
        failed = await here.refused("http://front.example/", answering(answers))
    assert failed.detail == "ADDRESS_REFUSED"
    assert answers == [[PUBLIC]]
    assert here.inside.connections == 0


async def test_a_rebound_name_is_checked_at_each_hop() -> None:
    async with world(lambda _: page("", "302 Found", location="/again")) as here:
        failed = await here.refused("http://front.example/", answering([[PUBLIC], [PUBLIC], ["127.0.0.1"]]))
    assert failed.detail == "ADDRESS_REFUSED"
    assert (here.front.connections, here.inside.connections) == (2, 0)


async def test_mixed_dns_answer_uses_the_public_address() -> None:
    async with world() as here:
        await here.fetch("http://front.example/", answering([["127.0.0.1", "::1", PUBLIC, "10.0.0.1"]]))
    assert here.dialler.dialled == [(PUBLIC, 80)]
    assert here.inside.connections == 0


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


class TestAllowing:
    @pytest.mark.parametrize(
        ("allow", "url", "reason"),
        one_of_each(
            [
                (["front.example"], "http://front.example/", ""),
                (["FRONT.example."], "http://Front.Example./", ""),
                (["front.example"], "http://sub.front.example/", "HOST_NOT_ALLOWED"),
                (["*.front.example"], "http://front.example/", "HOST_NOT_ALLOWED"),
                (["*.example"], "http://front.example/", ""),
                (["*.example"], "http://front.example.evil/", "HOST_NOT_ALLOWED"),
                (["*"], f"http://{PUBLIC}/", "HOST_NOT_ALLOWED"),
                ([PUBLIC], f"http://{PUBLIC}/", ""),
                ([{"host": "front.example", "ports": [8443]}], "http://front.example:8443/", ""),
                ([{"host": "front.example", "ports": [8443]}], "http://front.example/", "PORT_NOT_ALLOWED"),
                ([{"host": "front.example", "paths": ["/docs"]}], "http://front.example/docs", ""),
                ([{"host": "front.example", "paths": ["/docs"]}], "http://front.example/docs/a?b", ""),
                ([{"host": "front.example", "paths": ["/docs/"]}], "http://front.example/docs/%C3%A4", ""),
                ([{"host": "front.example", "paths": ["/docs"]}], "http://front.example/docsecret", "PATH_NOT_ALLOWED"),
                ([{"host": "front.example", "paths": ["/docs"]}], "http://front.example/docs/../x", "PATH_NOT_ALLOWED"),
                (
                    [{"host": "front.example", "paths": ["/docs"]}],
                    "http://front.example/docs/%2e%2e/x",
                    "PATH_NOT_ALLOWED",
                ),
                (
                    [{"host": "front.example", "paths": ["/docs"]}],
                    "http://front.example/docs/..%2fx",
                    "PATH_NOT_ALLOWED",
                ),
                (
                    [{"host": "front.example", "paths": ["/docs"]}],
                    "http://front.example/docs/..;/x",
                    "PATH_NOT_ALLOWED",
                ),
                (
                    [{"host": "front.example", "paths": ["/docs"]}],
                    "http://front.example/docs/..\\x",
                    "PATH_NOT_ALLOWED",
                ),
                (
                    [{"host": "front.example", "paths": ["/docs"]}],
                    "http://front.example/docs/%252e%252e/x",
                    "PATH_NOT_ALLOWED",
                ),
                ([{"host": "*", "paths": ["/a"]}, "front.example"], "http://front.example/b", ""),
            ]
        ),
    )
    async def test_only_listed_hosts_ports_and_paths_are_fetched(self, allow: Any, url: str, reason: str) -> None:
        async with world() as here:
            if reason:
                assert (await here.refused(url, allow=allow)).detail == reason
            else:
                assert (await here.fetch(url, allow=allow)).content.endswith("hello")
        assert here.front.connections == (0 if reason else 1)
