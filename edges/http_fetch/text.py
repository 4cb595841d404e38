"""Turns response bodies into text: finds the character set, decodes, and renders HTML as text with its links.

Libraries that render HTML are not used: on 300 kB of `<a ` or `<div>`, html2text, markdownify and selectolax worked for
more than 4 s and could not be ended, because they run in a thread. This reader stops at MAX_SECONDS.
"""

from __future__ import annotations

import codecs
import re
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urljoin

from tenure.domain.outbound import Url

if TYPE_CHECKING:
    from tenure.runtime.http.outbound_http import Body

MAX_SECONDS: Final = 5.0
"""The time limit for one document. The text that was read until then is returned."""

_CHUNK_CHARACTERS: Final = 64 * 1024
_LONGEST_LINK: Final = 1000
_EXTRA_CHARACTERS: Final = 16 * 1024  # resolved links are longer than in the document, but bounded
_SKIPPED: Final = frozenset(("script", "style", "template", "svg", "iframe", "object"))
# How many line breaks a tag adds before the text that follows.
_BREAKS: Final = {
    **dict.fromkeys(("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "pre", "blockquote", "title"), 2),
    **dict.fromkeys(("div", "section", "article", "header", "footer", "main", "nav", "aside", "form", "tr", "dt"), 1),
    **dict.fromkeys(("dd", "li", "br", "hr", "option", "figure", "figcaption", "summary", "details", "address"), 1),
}
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
# A character reference has at most 7 digits. Python raises an error for one with thousands of digits.
_ENDLESS_NUMBER: Final = re.compile(r"&#[0-9]{40,};?")
_SPACE: Final = re.compile(r"[ \t\r\n\f]+")


def readable(html: str, url: Url, most_seconds: float = MAX_SECONDS) -> tuple[str, bool]:
    """Returns the text of a document, and whether it is complete. Resolves links against `url`, the document's URL."""
    reader = _Reader(str(url))
    most_characters = len(html) + _EXTRA_CHARACTERS
    deadline = time.monotonic() + most_seconds
    # The parser asserts that a name follows `<![`. Browsers treat it as a comment up to the next bracket.
    html = _ENDLESS_NUMBER.sub("\ufffd", html.replace("<![", "<! ["))
    try:
        for start in range(0, len(html), _CHUNK_CHARACTERS):
            if time.monotonic() > deadline or reader.size > most_characters:
                return reader.text()[:most_characters], False
            reader.feed(html[start : start + _CHUNK_CHARACTERS])
        # Never call close(): it parses an unfinished tag as text, in quadratic time in older Python releases.
        reader.feed("</p>")
    except AssertionError:  # the parser raises it for input that it does not handle
        return reader.text(), False
    return reader.text()[:most_characters], reader.size <= most_characters


class _Reader(HTMLParser):
    """Collects text and line breaks while it is fed."""

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.size = 0
        self._base, self._parts = base, list[str]()
        self._skipping, self._verbatim, self._breaks = 0, 0, 0
        self._link = ""

    def text(self) -> str:
        """Returns the text without trailing spaces and with at most one empty line in a row."""
        lines: list[str] = []
        for line in "".join(self._parts).split("\n"):
            kept = line.rstrip()
            if kept or (lines and lines[-1]):
                lines.append(kept)
        return "\n".join(lines).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipping += 1
        if self._skipping:
            return
        self._break(tag)
        self._add(_HEADINGS.get(tag, "- " if tag == "li" else ""))
        if tag == "pre":
            self._verbatim += 1
        elif tag in {"td", "th"}:
            self._add(" | ")
        elif tag == "a":
            self._end_link()
            self._begin_link(dict(attrs).get("href") or "")
        elif tag == "img":
            self._add(dict(attrs).get("alt") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif not self._skipping:
            if tag == "a":
                self._end_link()
            elif tag == "pre":
                self._verbatim = max(0, self._verbatim - 1)
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._add(data.replace("\r\n", "\n") if self._verbatim else _SPACE.sub(" ", data))

    def _begin_link(self, href: str) -> None:
        """Begins a link, if it can be fetched and leads to another document."""
        href = href.strip()
        if not href or href.startswith("#") or len(href) > _LONGEST_LINK:
            return
        try:
            target = urljoin(self._base, href)
        except ValueError:
            return
        if target.startswith(("http://", "https://")):
            self._link = target
            self._add("[")

    def _end_link(self) -> None:
        if self._link:
            self._add(f"]({self._link})")
            self._link = ""

    def _break(self, tag: str) -> None:
        self._breaks = max(self._breaks, _BREAKS.get(tag, 0))

    def _add(self, text: str) -> None:
        if self._breaks and not self._verbatim:
            text = text.lstrip()
        if text:
            self._parts.append("\n" * self._breaks + text)
            self.size += self._breaks + len(text)
            self._breaks = 0


# From a body to text: its type, its character set, and the rendered text of HTML.

_HTML: Final = frozenset(("text/html", "application/xhtml+xml"))
_TEXTS: Final = frozenset(
    f"application/{kind}"
    for kind in ("json", "xml", "javascript", "x-javascript", "ecmascript", "yaml", "x-yaml", "x-ndjson", "toml", "sql")
)
_TEXT_ENDINGS: Final = ("+json", "+xml", "+yaml")
_CHARSET: Final = re.compile(r"""charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_META: Final = re.compile(rb"""<meta\s[^>]{0,300}?charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_XML: Final = re.compile(rb"""<\?xml\s[^>]{0,300}?encoding\s{0,9}=\s{0,9}["']([A-Za-z0-9._:-]{1,40})""")
_DECLARATION_BYTES: Final = 4096
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# Python's codec names. Its registry also has codecs that are not character sets or that take quadratic time.
_KNOWN: Final = frozenset(
    (
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman", "tis-620"),
        *("big5", "gbk", "gb2312", "gb18030", "euc_jp", "euc_kr", "shift_jis", "iso2022_jp"),
        *(f"cp{page}" for page in (866, 874, 932, 949, *range(1250, 1259))),
        *(f"iso8859-{part}" for part in (*range(2, 9), 10, *range(13, 17))),
    )
)
_AS_BROWSERS_DO: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gbk",
    "utf-16": "utf-16-le",
}
_UNPRINTED: Final = {code: " " for code in range(32) if chr(code) not in "\t\n\r"} | {127: " "}


class NotText(ValueError):  # noqa: N818  a fact about the body
    """The body is not text, although its content type says so."""


class ExtractedText(NamedTuple):
    """The text of a body. `is_whole`: whether it has all of the body. `size_bytes`: the size of the body."""

    content: str
    is_whole: bool
    size_bytes: int


def reads(content_type: str) -> bool:
    """Whether a body with this content type is text. True also without a content type."""
    media = _media(content_type)
    return not media or media.startswith("text/") or media in _HTML | _TEXTS or media.endswith(_TEXT_ENDINGS)


def read_text(body: Body, content_type: str, url: Url) -> ExtractedText:
    """Returns the text of a body. Raises NotText for a body with NUL characters."""
    is_html = _media(content_type) in _HTML
    decoded = _decoded(body, _charset(body.content, content_type, is_html=is_html))
    if "\0" in decoded:
        raise NotText
    is_whole = body.is_whole
    if is_html:
        decoded, is_read = readable(decoded, url)
        is_whole = is_whole and is_read
    return ExtractedText(decoded.translate(_UNPRINTED), is_whole, len(body.content))


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _charset(content: bytes, content_type: str, *, is_html: bool) -> str:
    """Returns the character set by byte order mark, header or document, in this order; "" if none is known."""
    for mark, name in _BOMS:
        if content.startswith(mark):
            return name
    beginning = content[:_DECLARATION_BYTES]
    header = _CHARSET.search(content_type)
    inside = (_META if is_html else _XML).search(beginning)
    labels = [header[1]] if header else []
    if inside:  # a declaration that is readable as ASCII cannot be in UTF-16
        labels.append(re.sub("(?i)^utf-?16.*", "utf-8", inside[1].decode("ascii")))
    return next((name for name in map(_known, labels) if name), "")


def _known(label: str) -> str:
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    name = _AS_BROWSERS_DO.get(name, name)
    return name if name in _KNOWN else ""


def _decoded(body: Body, charset: str) -> str:
    """Decodes a body. Without a character set: UTF-8 if that is valid, else Windows-1252, as browsers do.

    Drops an incomplete character at the end of a body that was cut.
    """
    if not charset:
        try:
            return _decode(body, "utf-8", "strict")
        except UnicodeDecodeError:
            charset = "cp1252"
    return _decode(body, charset, "replace")


def _decode(body: Body, charset: str, errors: str) -> str:
    return (
        codecs.getincrementaldecoder(charset)(errors).decode(body.content, final=body.is_whole).removeprefix("\ufeff")
    )
