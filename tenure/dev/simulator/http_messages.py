"""HTTP/1.1 on bytes: reading the head of a request, writing the head of a response. No I/O."""

from __future__ import annotations

import http
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

REASONS = {status.value: status.phrase for status in http.HTTPStatus} | {529: "Site Overloaded"}


class MalformedRequest(Exception):  # noqa: N818  it is the request that is malformed
    """The bytes are no request that this server takes. Holds the status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """One request, whole. Header names are lower case; of a repeated header the last counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


def parse_head(head: bytes) -> tuple[Request, int]:
    """The request without its body, and the length in bytes of the body that follows. Raises MalformedRequest."""
    request_line, *header_lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = request_line.split(" ")
    except ValueError as error:
        raise MalformedRequest(400, "The request line is malformed") from error
    if version != "HTTP/1.1":
        raise MalformedRequest(505, f"Only HTTP/1.1 is spoken here, not {version}")
    headers = dict(_parse_header(line) for line in header_lines)
    if "transfer-encoding" in headers:
        raise MalformedRequest(411, "A request body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise MalformedRequest(400, "Content-Length is not a number")
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query)), headers), int(length)


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or name != name.strip():
        raise MalformedRequest(400, "A header line is malformed")
    return name.lower(), value.strip()


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a body of unknown length (RFC 9112, 7.1); an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)
