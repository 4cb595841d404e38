"""URLs of strangers have one reading: what is checked is what is dialled."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpcore2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.outbound import (
    Url,
    UrlRefused,
    follow,
    parse_url,
)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.com", Url("https", "example.com", 443, "/")),
        ("HTTPS://Example.COM.:8443/a?b=c#d", Url("https", "example.com", 8443, "/a", "b=c")),
        ("http://93.184.216.34/", Url("http", "93.184.216.34", 80, "/")),
        ("http://[2606:2800:0220:1:0::1]:81/", Url("http", "2606:2800:220:1::1", 81, "/")),
        ("http://example.com/a/../b/./c/%2e%2E/d", Url("http", "example.com", 80, "/b/d")),
        ("http://example.com/../../etc", Url("http", "example.com", 80, "/etc")),
        ("http://example.com/a/..", Url("http", "example.com", 80, "/")),
        ("http://example.com/ä\\b?q=ö|x", Url("http", "example.com", 80, "/%C3%A4%5Cb", "q=%C3%B6%7Cx")),
        ("http://example.com?q=/a@b", Url("http", "example.com", 80, "/", "q=/a@b")),
        ("http://xn--bcher-kva.example/", Url("http", "xn--bcher-kva.example", 80, "/")),
    ],
)
def test_plain_url_has_its_dialled_address(text: str, url: Any) -> None:
    assert parse_url(text) == url
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "BAD_URL"),
        ("example.com", "BAD_URL"),
        ("//example.com/", "BAD_URL"),
        ("http:example.com", "BAD_URL"),
        ("http:/example.com", "BAD_URL"),
        ("http:\\\\example.com", "BAD_URL"),
        ("http://exa mple.com/", "BAD_URL"),
        ("http://example.com/\r\nX: y", "BAD_URL"),
        ("http://example.com/\x00", "BAD_URL"),
        ("http://example.com/\ud800", "BAD_URL"),
        ("http://example.com:99999/", "BAD_URL"),
        ("http://example.com/" + "a" * 5000, "BAD_URL"),
        ("file:///etc/passwd", "SCHEME_REFUSED"),
        ("gopher://example.com/", "SCHEME_REFUSED"),
        ("data:text/html,x", "SCHEME_REFUSED"),
        ("http+unix://%2Frun%2Fdocker.sock/", "SCHEME_REFUSED"),
        ("http://user@example.com/", "CREDENTIALS_IN_URL"),
        ("http://example.com:80@evil.example/", "CREDENTIALS_IN_URL"),
        ("http://evil.example\\@example.com/", "CREDENTIALS_IN_URL"),
        ("http:///etc/passwd", "ODD_HOST"),
        ("http://", "ODD_HOST"),
        ("http://example.com:/", "ODD_HOST"),
        ("http://example.com:80:81/", "ODD_HOST"),
        ("http://example.com:+80/", "ODD_HOST"),
        ("http://example.com\\evil.example/", "ODD_HOST"),
        ("http://ex%61mple.com/", "ODD_HOST"),
        ("http://example..com/", "ODD_HOST"),
        ("http://-example.com/", "ODD_HOST"),
        ("http://bücher.example/", "ODD_HOST"),
        ("http://example。com/", "ODD_HOST"),
        ("http://ⓔxample.com/", "ODD_HOST"),
        ("http://2130706433/", "ODD_HOST"),
        ("http://0x7f000001/", "ODD_HOST"),
        ("http://0x7f.0.0.1/", "ODD_HOST"),
        ("http://0177.0.0.1/", "ODD_HOST"),
        ("http://127.1/", "ODD_HOST"),
        ("http://127.0.0.1.2/", "ODD_HOST"),
        ("http://example.0x/", "ODD_HOST"),
        ("http://1.2.3.256/", "ODD_HOST"),
        ("http://017700000001/", "ODD_HOST"),
        ("http://00127.0.0.1/", "ODD_HOST"),
        ("http://\uff11\uff12\uff17.0.0.1/", "ODD_HOST"),
        ("http://example.com%00.evil.example/", "ODD_HOST"),
        ("http://127.0.0.1:80\\example.com/", "ODD_HOST"),
        ("http://example.com:0/", "ODD_HOST"),
        ("http://[0:0:0:0:0:ffff:127.0.0.1.]/", "ODD_HOST"),
        ("http://[::1/", "ODD_HOST"),
        ("http://[fe80::1%25eth0]/", "ODD_HOST"),
        ("http://[::1]x/", "ODD_HOST"),
        ("http://::1/", "ODD_HOST"),
    ],
)
def test_ambiguous_url_is_refused(text: Any, reason: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        parse_url(text)
    assert refused.value.reason == reason


@given(st.text(st.characters(), max_size=60) | st.from_regex(r"https?://[-a-z0-9.:@\[\]%\\/?#_]{0,40}", fullmatch=True))
def test_accepted_url_is_read_equally_by_other_parsers(text: Any) -> None:
    """urllib and httpcore find the host that we dial in it. (httpcore loses what follows a `;`: it is given pieces.)"""
    for candidate in (text, f"http://{text}", f"https://example.com/{text}"):
        try:
            url = parse_url(candidate)
        except UrlRefused:
            continue
        again = str(url)
        assert parse_url(again) == url
        assert again.isascii()
        split = urlsplit(again)
        assert (split.scheme, split.hostname, split.port or url.port) == (url.scheme, url.host, url.port)
        theirs = httpcore2.URL(again)
        assert theirs.host.decode().strip("[]") == url.host
        assert (theirs.port or url.port) == url.port


@given(st.text(st.characters(), max_size=60))
def test_redirect_is_read_or_refused(location: str) -> None:
    base = parse_url("https://example.com/a/b?c")
    try:
        url = follow(base, location)
    except UrlRefused:
        return
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("c?d#e", "https://example.com/a/c?d"),
        ("/../x", "https://example.com/x"),
        ("//evil.example/x", "https://evil.example/x"),
        ("\\\\evil.example/x", "https://example.com/a/%5C%5Cevil.example/x"),
        ("http://evil.example", "http://evil.example/"),
    ],
)
def test_a_redirect_is_read_from_where_it_came(location: str, leads_to: str) -> None:
    assert str(follow(parse_url("https://example.com/a/b"), location)) == leads_to


@pytest.mark.parametrize("location", ["http://[", "javascript:alert(1)", "http://a\tb/", "file:///x", "http://1/"])
def test_invalid_redirect_is_refused(location: str) -> None:
    with pytest.raises(UrlRefused):
        follow(parse_url("https://example.com/"), location)
