"""A body becomes text: its type, its characters, and of HTML what a reader would see."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from services.tools.http_fetch.readable import readable

if TYPE_CHECKING:
    from tenure.domain.urls import Url
    from tenure.runtime.outgoing import Body

_HTML: Final = frozenset(("text/html", "application/xhtml+xml"))
_TEXTS: Final = frozenset(
    f"application/{kind}"
    for kind in ("json", "xml", "javascript", "x-javascript", "ecmascript", "yaml", "x-yaml", "x-ndjson", "toml", "sql")
)
_TEXT_ENDINGS: Final = ("+json", "+xml", "+yaml")
_CHARSET: Final = re.compile(r"""charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_META: Final = re.compile(rb"""<meta\s[^>]{0,300}?charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_XML: Final = re.compile(rb"""<\?xml\s[^>]{0,300}?encoding\s{0,9}=\s{0,9}["']([A-Za-z0-9._:-]{1,40})""")
_LOOKED_AT_BYTES: Final = 4096
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# By Python's names. Its registry holds more that is no character set, or takes the square of the time.
_KNOWN: Final = frozenset(
    [
        "utf-8",
        "utf-16",
        "utf-16-le",
        "utf-16-be",
        "big5",
        "gbk",
        "gb2312",
        "gb18030",
        "euc_jp",
        "shift_jis",
        "cp932",
        "iso2022_jp",
        "euc_kr",
        "cp949",
        "koi8-r",
        "koi8-u",
        "mac-roman",
        "cp866",
        "cp874",
        "tis-620",
        "cp1250",
        "cp1251",
        "cp1252",
        "cp1253",
        "cp1254",
        "cp1255",
        "cp1256",
        "cp1257",
        "cp1258",
        "iso8859-2",
        "iso8859-3",
        "iso8859-4",
        "iso8859-5",
        "iso8859-6",
        "iso8859-7",
        "iso8859-8",
        "iso8859-10",
        "iso8859-13",
        "iso8859-14",
        "iso8859-15",
        "iso8859-16",
    ]
)
_AS_BROWSERS_DO: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gbk",
    "utf-16": "utf-16-le",
}
_UNPRINTED: Final = {code: " " for code in range(32) if chr(code) not in "\t\n\r"} | {127: " "}


class NotText(ValueError):  # noqa: N818  it says what the body is
    """The body is none, whatever its type says."""


class Text(NamedTuple):
    """`is_whole`: nothing of the body is missing in it."""

    content: str
    is_whole: bool
    size_bytes: int


def reads(content_type: str) -> bool:
    """Whether a body of this type is text. One without a type may be."""
    media = _media(content_type)
    return not media or media.startswith("text/") or media in _HTML | _TEXTS or media.endswith(_TEXT_ENDINGS)


def read_text(body: Body, content_type: str, url: Url) -> Text:
    """Raises NotText."""
    is_html = _media(content_type) in _HTML
    decoded = _decoded(body, _charset(body.content, content_type, is_html=is_html))
    if "\0" in decoded:
        raise NotText
    is_whole = body.is_whole
    if is_html:
        decoded, is_read = readable(decoded, url)
        is_whole = is_whole and is_read
    return Text(decoded.translate(_UNPRINTED), is_whole, len(body.content))


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _charset(content: bytes, content_type: str, *, is_html: bool) -> str:
    """By mark, header, or what the document says of itself, in this order; "" when nothing is said that is known."""
    for mark, name in _BOMS:
        if content.startswith(mark):
            return name
    beginning = content[:_LOOKED_AT_BYTES]
    header = _CHARSET.search(content_type)
    inside = (_META if is_html else _XML).search(beginning)
    said = [header[1]] if header else []
    if inside:  # who can read it so far can read no UTF-16 in it
        said.append(re.sub("(?i)^utf-?16.*", "utf-8", inside[1].decode("ascii")))
    return next((name for name in map(_known, said) if name), "")


def _known(label: str) -> str:
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    name = _AS_BROWSERS_DO.get(name, name)
    return name if name in _KNOWN else ""


def _decoded(body: Body, charset: str) -> str:
    """Without a word on it UTF-8 if it can be, else the western set that browsers take. Half a character at a cut end
    is left out.
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
