"""What strangers send is read in a time that grows with its length, not with the square of it."""

from __future__ import annotations

import re
import time
from typing import Any

import h11
import pytest
from h11 import _abnf, _readers
from hypothesis import given
from hypothesis import strategies as st

from tenure.runtime.http.h11_patterns import read_in_one_pass

MAX_CPU_SECONDS = 2.0
"""It takes milliseconds now, and took 9 to 18 seconds on a quick machine."""
BLANKS = b" " * 95_000
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
AS_SHIPPED = {"header_field_re": _abnf.header_field, "chunk_header_re": _abnf.chunk_header}
PIECES = st.sampled_from(["a", "x:", ":", " ", "\t", "  ", ";", "\0", "\r", "\n", "\r\n", "1", "fF", "é"])


def reading() -> Any:
    read_in_one_pass()
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=100 * 1024)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    return connection


def read_all(connection: Any, content: Any) -> None:
    for start in range(0, len(content), 65536):
        connection.receive_data(content[start : start + 65536])
        while connection.next_event() is not h11.NEED_DATA:
            pass


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b"x:" + BLANKS + b"\0\r\n\r\n",
        HEAD + b"x:a" + BLANKS + b"\0\r\n\r\n",
        CHUNKED + b"1\r\nx\r\n0\r\nx:" + BLANKS + b"\0\r\n\r\n",
        CHUNKED + b"1;" + BLANKS + b"\nx\r\n",
        CHUNKED + b"1" + BLANKS + b"\nx\r\n",
        b"HTTP/1.1 200 " + BLANKS + b"\0\r\n\r\n",
    ],
    ids=["header", "value", "trailer", "extension", "chunk", "status"],
)
def test_hostile_lines_are_matched_in_linear_time(content: Any) -> None:
    connection = reading()
    began = time.process_time()
    with pytest.raises(h11.RemoteProtocolError):
        read_all(connection, content)
    assert time.process_time() - began < MAX_CPU_SECONDS


@pytest.mark.parametrize("name", AS_SHIPPED)
@given(pieces=st.lists(PIECES, max_size=12))
def test_patched_patterns_match_the_same_lines(name: Any, pieces: list[Any]) -> None:
    read_in_one_pass()
    line = "".join(pieces).encode("latin-1")
    for tried in (line, b"x:" + line, b"1" + line + b"\r\n"):
        before = re.fullmatch(AS_SHIPPED[name].encode("ascii"), tried)
        after = getattr(_readers, name).fullmatch(tried)
        assert (after is None) == (before is None)
        if before is not None:
            kept = ("field_name", "field_value", "chunk_size")
            seen = [
                {key: violation[key] for key in kept if key in violation.re.groupindex} for violation in (before, after)
            ]
            assert seen[0] == seen[1]
