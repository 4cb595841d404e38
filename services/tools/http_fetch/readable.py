"""HTML as a reader would see it: text in lines, with where its links lead."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urljoin

from tenure.domain.urls import Url

MOST_SECONDS: Final = 5.0
"""For one document: what was read until then is told."""

_CHUNK_CHARACTERS: Final = 64 * 1024
_LONGEST_LINK: Final = 1000
_ROOM_CHARACTERS: Final = 16 * 1024  # links become longer than they were; not without end
_SKIPPED: Final = frozenset(("script", "style", "template", "svg", "iframe", "object"))
# How many lines further what follows begins.
_BREAKS: Final = {
    **dict.fromkeys(("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "pre", "blockquote", "title"), 2),
    **dict.fromkeys(("div", "section", "article", "header", "footer", "main", "nav", "aside", "form", "tr", "dt"), 1),
    **dict.fromkeys(("dd", "li", "br", "hr", "option", "figure", "figcaption", "summary", "details", "address"), 1),
}
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
# Characters have 7 digits at most. What Python makes of thousands of them is an error.
_ENDLESS_NUMBER: Final = re.compile(r"&#[0-9]{40,};?")
_SPACE: Final = re.compile(r"[ \t\r\n\f]+")


def readable(html: str, url: Url, most_seconds: float = MOST_SECONDS) -> tuple[str, bool]:
    """The text, and whether it is all of it. Links are resolved against where the document was found."""
    reader = _Reader(str(url))
    most_characters = len(html) + _ROOM_CHARACTERS
    until = time.monotonic() + most_seconds
    # The parser asserts that what follows `<![` is a name; to browsers it is a comment up to the next bracket.
    html = _ENDLESS_NUMBER.sub("\ufffd", html.replace("<![", "<! ["))
    try:
        for start in range(0, len(html), _CHUNK_CHARACTERS):
            if time.monotonic() > until or reader.size > most_characters:
                return reader.text()[:most_characters], False
            reader.feed(html[start : start + _CHUNK_CHARACTERS])
        # It is never closed: then it takes an open end for text, in the square of its length in older releases.
        reader.feed("</p>")
    except AssertionError:  # the parser's own, for what it had not thought of
        return reader.text(), False
    return reader.text()[:most_characters], reader.size <= most_characters


class _Reader(HTMLParser):
    """Notes text and breaks while it is fed."""

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.size = 0
        self._base, self._parts = base, list[str]()
        self._skipping, self._verbatim, self._breaks = 0, 0, 0
        self._link = ""

    def text(self) -> str:
        """Lines without space at their ends, and no more than one empty line in a row."""
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
        """Only one that can be fetched, and that leads to another document."""
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
