"""A body becomes text: whatever it holds, in the time its length takes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edges.http_fetch.settings import HttpFetchSettings
from edges.http_fetch.text import NotText, read_text, readable, reads
from tenure.domain.outbound import parse_url
from tenure.runtime.http.outbound_http import Body

HERE = parse_url("https://example.com/a/b")


def text(html: Any) -> Any:
    return readable(html, HERE)[0]


def read(content: Any, content_type: str = "text/plain", *, is_whole: bool = True) -> Any:
    return read_text(Body(content, is_whole=is_whole), content_type, HERE)


class TestHtml:
    @pytest.mark.parametrize(
        ("html", "expected"),
        [
            ("<title>T</title><h2>H</h2><p>a\n  b<p>c", "T\n\n## H\n\na b\n\nc"),
            ("<ul><li>a<li>b &amp; c</ul>d", "- a\n- b & c\n\nd"),
            ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "| a | b\n| 1 | 2"),
            ("x<script>var a = '<p>';</script><style>p {}</style><template>t</template>y", "xy"),
            ("<pre>a\n  b</pre>", "a\n  b"),
            (
                "<a href='c?d'>e</a> <a href='#f'>g</a> <a href='javascript:x'>h</a>",
                "[e](https://example.com/a/c?d) g h",
            ),
            ("<a href='//o.example/'>a<a href='http://[x'>b", "[a](https://o.example/)b"),
            ("<img alt='A cat' src=x> <img src=y>", "A cat"),
            ("<![if !IE]>a<![endif]><!-- b --><![CDATA[c]]>d", "ad"),
            ("<svg><text>a</text></svg>b<svg/>c</svg>d", "bcd"),
            ("plain & simple <3", "plain & simple <3"),
            ("a&#" + "1" * 5000 + ";b&#0000065;", "a\ufffdbA"),
            ("<p title='&#" + "1" * 5000 + "'>a", "a"),
            ("a<br>b<br/>c", "a\nb\nc"),
            ("", ""),
        ],
    )
    def test_text_is_the_visible_text(self, html: Any, expected: str) -> None:
        assert readable(html, HERE) == (expected, True)

    @given(st.text(alphabet="<>/!-[]&;#x \"'=ascriptvg\n", max_size=300))
    def test_hostile_html_is_read(self, html: str) -> None:
        read(html.encode(), "text/html")

    @pytest.mark.parametrize(
        "piece",
        [
            "<",
            "<a",
            "<a ",
            "<a b=",
            "<a b='",
            "<!--",
            "<!",
            "<![",
            "<?",
            "</",
            "</a ",
            "&",
            "&#",
            "<script>",
            "<svg>",
            "<li>",
            "<script></s",
            "<a/",
            "]]>",
            "<!DOCTYPE [",
            "<div>",
            "<a href=x>",
            " ",
            "\n",
            "<pre> ",
        ],
    )
    def test_the_reading_time_is_linear_in_the_length(self, piece: str) -> None:
        html = piece * (300_000 // len(piece))
        began = time.process_time()
        _, is_whole = readable(html, HERE, most_seconds=60.0)
        assert time.process_time() - began < 20  # the square of it would be hours
        assert is_whole or piece == "<a href=x>"

    def test_links_do_not_make_much_of_little(self) -> None:
        base = parse_url("https://example.com/" + "a" * 4000)
        text, is_whole = readable("<a href=x>" * 50_000, base)
        assert not is_whole
        assert len(text) < 600_000

    def test_slow_reading_is_cut(self) -> None:
        assert readable("<p>a" * 100_000, HERE, most_seconds=-1.0) == ("", False)


class TestCharacters:
    @pytest.mark.parametrize(
        ("content", "content_type", "expected"),
        [
            ("ä€".encode(), "text/plain", "ä€"),
            ("ä€".encode("cp1252"), "text/plain", "ä€"),
            ("ä€".encode("cp1252"), "text/plain; charset=ISO-8859-1", "ä€"),
            ("日本".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "日本"),
            ("日本".encode("euc-jp"), "text/plain;charset=euc-jp", "日本"),
            ("\ufeffä".encode(), "text/plain; charset=latin1", "ä"),
            ("\ufeffä".encode("utf-16-le"), "text/plain", "ä"),
            ("<?xml version='1.0' encoding='windows-1251'?>да".encode("cp1251"), "text/xml", "да"),
            ("<meta charset=koi8-r><p>да".encode("koi8-r"), "text/html", "да"),
            ("<meta http-equiv=x content='text/html; charset=koi8-r'><p>да".encode("koi8-r"), "text/html", "да"),
            ("<meta charset=utf-16><p>ä".encode(), "text/html", "ä"),
            (b"a+AGEAYg-", "text/plain; charset=utf-7", "a+AGEAYg-"),
            (b"616263", "text/plain; charset=hex", "616263"),
            (b"a\x1b[2Jb\x07", "text/plain", "a [2Jb "),
            (b"\xff\xfeg\x00", "text/plain; charset=nonsense", "g"),
        ],
    )
    def test_charset_is_from_mark_header_or_document(self, content: Any, content_type: str, expected: str) -> None:
        assert read(content, content_type).content.endswith(expected)

    def test_half_a_character_at_a_cut_end_is_left_out(self) -> None:
        cut = read("aä".encode()[:-1], is_whole=False)
        assert (cut.content, cut.is_whole) == ("a", False)

    @given(st.binary(max_size=200), st.sampled_from(["utf-8", "utf-16", "gb18030", "iso-2022-jp", "big5", "x", ""]))
    def test_hostile_body_is_read(self, content: bytes, charset: str) -> None:
        for content_type in (f"text/html; charset={charset}", f"application/xml;charset={charset}"):
            try:
                content_value = read(content, content_type, is_whole=bool(len(content) % 2)).content
            except NotText:
                continue
            content_value.encode()
            assert "\x1b" not in content_value

    @pytest.mark.parametrize(
        "content_type", ["", "text/csv", "Application/JSON; a=b", "application/ld+json", "image/svg+xml"]
    )
    def test_text_types_are_read(self, content_type: str) -> None:
        assert reads(content_type)

    @pytest.mark.parametrize("content_type", ["image/png", "application/zip", "json", "video/mp4", "application/x-sh2"])
    def test_other_types_are_refused(self, content_type: str) -> None:
        assert not reads(content_type)


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({}, "allow"),
        ({"allow": "*"}, "allow"),
        ({"allow": ["http://example.com"]}, "allow.0.host"),
        ({"allow": ["example.com:80"]}, "allow.0.host"),
        ({"allow": ["exa*mple.com"]}, "allow.0.host"),
        ({"allow": ["127.1"]}, "allow.0.host"),
        ({"allow": [{"host": "e.example", "ports": [0]}]}, "allow.0.ports.0"),
        ({"allow": [{"host": "e.example", "paths": ["docs"]}]}, "allow.0.paths"),
        ({"allow": [{"host": "e.example", "paths": ["/a/../b"]}]}, "allow.0.paths"),
        ({"allow": [{"host": "e.example", "paths": ["/a?b"]}]}, "allow.0.paths"),
        ({"allow": ["*"], "allowed_networks": ["10.0.0.1/8"]}, "allowed_networks"),
        ({"allow": ["*"], "user_agent": "a\r\nb"}, "user_agent"),
        ({"allow": ["*"], "max_bytes": 5 << 20}, "max_bytes"),
        ({"allow": ["*"], "ca_file": "/nowhere/ca.pem"}, "ca_file"),
        ({"allow": ["*"], "allow_private": True}, "allow_private"),
    ],
)
def test_wrong_setting_is_named(section: Any, place: str) -> None:
    with pytest.raises(ValidationError) as raised:
        HttpFetchSettings.model_validate(section)
    assert [".".join(map(str, error["loc"])) for error in raised.value.errors()] == [place]
