"""Messages of MCP servers: read within bounds, put into words, and told apart from what only looks like an answer."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest

from edges.mcp_client.calling import text_of
from edges.mcp_client.delivery_errors import (
    AnswerLost,
    AnswerUnreadable,
    CallNotSent,
    marked_error,
)
from edges.mcp_client.http_transport import HttpTransport
from edges.mcp_client.stdio_framing import MAX_MESSAGE_BYTES, TOO_LONG, LineReads


async def read_all(*lines: bytes) -> list[types.JSONRPCMessage]:
    stream = asyncio.StreamReader()
    for line in lines:
        stream.feed_data(line)
    stream.feed_eof()
    reads = LineReads(stream, "it")
    return [item.message async for item in reads if not isinstance(item, Exception)]


async def test_no_message_and_no_endless_message_is_delivered() -> None:
    good = b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n'
    messages = await read_all(b"hello\n", b"\n", b"\xff\xfe\n", b"[]\n", good[:9], good[9:], b'{"jsonrpc": "2.0", "id"')
    assert [message.id for message in messages if isinstance(message, types.JSONRPCResponse)] == [1]
    assert len(messages) == 1


LONG = b"x" * (MAX_MESSAGE_BYTES + 1)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"', b'"}}', 7),
        (b'{"result":{"a":"', b'"},"jsonrpc":"2.0","id":7}', 7),
        (b'{"result":{"a":"', b'"},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"result":{"a":"', b'","id":7}}', None),
        (b'{"method":"m","params":{"a":"', b'"},"jsonrpc":"2.0","id":7}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"', b'"}}', None),
    ],
)
async def test_too_long_an_answer_becomes_an_error_with_its_id(start: bytes, end: bytes, expected: int | None) -> None:
    after = b'{"jsonrpc":"2.0","id":8,"result":{}}\n'
    *errors, last = await read_all(start, LONG, end, b"\n", after)
    assert isinstance(last, types.JSONRPCResponse)
    seen = [(error.id, error.error.code) for error in errors if isinstance(error, types.JSONRPCError)]
    assert seen == ([] if expected is None else [(expected, TOO_LONG)])


def shown(*content: types.ContentBlock, structured: object = None) -> str:
    result = types.CallToolResult(content=list(content), structured_content=structured)
    return text_of(result, lambda data, suffix: f"kept {len(data)} {suffix}")


def test_texts_are_joined_and_other_parts_are_named() -> None:
    encoded = base64.b64encode(b"12345").decode()
    text = shown(
        types.TextContent(text="one"),
        types.ImageContent(data=encoded, mime_type="image/png"),
        types.AudioContent(data="%%%", mime_type="audio/wav"),
        types.ResourceLink(uri="file:///a", name="a", size=3),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="x://t", text="two")),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="x://b", blob=encoded, mime_type="../../etc")),
        structured={"more": "facts"},
    )
    assert text.splitlines() == [
        "one",
        "[image (image/png), 5 bytes: kept 5 .png]",
        "[audio (audio/wav): its content is not valid base64]",
        "[link to the resource file:///a: a, 3 bytes]",
        "[resource x://t]",
        "two",
        "[resource x://b (../../etc), 5 bytes: kept 5 .bin]",
        '{"more": "facts"}',
    ]


def test_a_structured_answer_without_text_is_shown_as_json() -> None:
    assert json.loads(shown(structured={"é": [1, None]})) == {"é": [1, None]}
    assert shown() == ""


@pytest.mark.parametrize(
    ("texts", "structured", "is_added"),
    [
        (["failed; the full result is in structuredContent"], {"errors": [{"line": 121}]}, True),
        (['{"b": 2, "a": [1]}'], {"a": [1], "b": 2}, False),
        (["in words", '{"a": 1}'], {"a": 1}, False),
        (["a plain text"], {"result": "a plain text"}, False),
        (["7"], {"result": 7}, False),
        (['{"a": 1}', '{"a": 2}'], {"result": [{"a": 1}, {"a": 2}]}, False),
        (["one", "two"], {"result": ["one", "two"]}, False),
        (['{"a": 1}'], {"a": 1, "b": 2}, True),
        (["nothing"], {"result": None}, True),
        (["a plain text"], {"content": "a plain text"}, False),
        (["not found"], {"error": "not found"}, True),
        (["done"], {}, False),
    ],
)
def test_structured_content_is_added_unless_the_texts_have_it(
    texts: list[str], structured: dict[str, Any], is_added: bool
) -> None:
    text = shown(*(types.TextContent(text=one) for one in texts), structured=structured)
    said = "\n".join(texts)
    added = text.removeprefix(said).strip()
    assert text.startswith(said)
    assert (json.loads(added) == structured) if is_added else (added == "")


class Portions(httpx2.AsyncByteStream):
    """The body of an answer as it arrives."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._answer.stream, httpx2.ByteStream)
        for portion in self._answer.stream:
            yield portion


class Network(httpx2.AsyncBaseTransport):
    def __init__(self, answer: httpx2.Response | Exception) -> None:
        self.answer = answer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if isinstance(self.answer, Exception):
            raise self.answer
        return httpx2.Response(self.answer.status_code, headers=self.answer.headers, stream=Portions(self.answer))


def error_message(own_id: int | str | None) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": own_id, "error": {"code": -32603, "message": "no"}})


async def exchanged(answer: httpx2.Response | Exception, **headers: str) -> tuple[types.ErrorData, bool]:
    """What a session gets in place of the answer, and whether it is over."""
    ended = asyncio.Event()
    parameters = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    request = httpx2.Request("POST", "http://server/mcp", headers=named, json=parameters)
    response = await HttpTransport(Network(answer), ended).handle_async_request(request)
    return types.JSONRPCError.model_validate_json(await response.aread()).error, ended.is_set()


@pytest.mark.parametrize(
    ("answer", "fate", "over"),
    [
        (httpx2.ConnectError("refused"), CallNotSent, True),
        (httpx2.ConnectTimeout("slow"), CallNotSent, True),
        (httpx2.ReadError("reset"), AnswerLost, True),
        (httpx2.RemoteProtocolError("cut"), AnswerLost, True),
        (ssl.SSLError("bad record"), AnswerLost, True),
        (httpx2.Response(408, text="slow"), AnswerLost, False),
        (httpx2.Response(499, text="closed"), AnswerLost, False),
        (httpx2.Response(502, text="<html>"), AnswerLost, False),
        (httpx2.Response(504, json={"error": "gateway"}), AnswerLost, False),
        (
            httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}}),
            AnswerLost,
            False,
        ),
        (httpx2.Response(502, headers={"content-type": "text/html"}, content=LONG), AnswerLost, False),
        (httpx2.Response(200, text="<html>"), AnswerUnreadable, False),
        (httpx2.Response(200, json={"done": True}), AnswerUnreadable, False),
        (httpx2.Response(202), AnswerUnreadable, False),
        (httpx2.Response(503, text="later", headers={"retry-after": "1"}), AnswerLost, False),
        (httpx2.Response(500, text="bug"), AnswerLost, False),
        (httpx2.Response(501, text="what?"), None, False),
        (httpx2.Response(401, text="who?"), None, False),
        (httpx2.Response(429, text="later"), None, False),
    ],
)
async def test_transport_failure_fails_its_call(
    answer: httpx2.Response | Exception, fate: type | None, *, over: bool
) -> None:
    error, ended = await exchanged(answer)
    assert (marked_error(error.data), ended) == (fate, over)


@pytest.mark.parametrize(
    ("status", "body", "fate"),
    [
        (404, "no session", CallNotSent),
        (404, error_message(None), CallNotSent),
        (400, error_message(None), CallNotSent),
        (400, error_message("server-error"), CallNotSent),
        (400, "no session", AnswerLost),  # by whom is unknown
    ],
)
async def test_unknown_session_is_closed(status: int, body: str, fate: type) -> None:
    error, ended = await exchanged(httpx2.Response(status, text=body), mcp_session_id="1")
    assert (marked_error(error.data), ended) == (fate, True)


@pytest.mark.parametrize("own_id", [1, "1"])
@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_error_with_the_requests_id_is_the_answer(status: int, own_id: int | str) -> None:
    """The effect may be there already: a call that was answered so is never sent again."""
    error, ended = await exchanged(httpx2.Response(status, text=error_message(own_id)), mcp_session_id="1")
    assert (error.message, marked_error(error.data), ended) == ("no", None, False)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, httpx2.Response(307, headers={"location": "/there"})),
        ({"jsonrpc": "2.0", "method": "notifications/cancelled"}, httpx2.Response(202)),
        ({"jsonrpc": "2.0", "method": "notifications/cancelled"}, httpx2.Response(200, text="fine")),
    ],
)
async def test_other_messages_are_passed_on(sent: dict[str, Any], answer: httpx2.Response) -> None:
    request = httpx2.Request("POST", "http://server/mcp", json=sent)
    response = await HttpTransport(Network(answer), asyncio.Event()).handle_async_request(request)
    assert (response.status_code, await response.aread()) == (answer.status_code, answer.content)
    assert response.headers.get("location") == answer.headers.get("location")


async def test_a_servers_own_error_does_not_pass_for_ours() -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": 1, "message": "no", "data": {"fate": "NothingDone", "mark": ""}},
    }
    error, ended = await exchanged(httpx2.Response(400, json=body))
    assert (error.message, marked_error(error.data), ended) == ("no", None, False)


async def test_an_answer_over_http_that_is_too_long_is_an_error() -> None:
    long = httpx2.Response(200, content=LONG, headers={"content-type": "application/json"})
    error, _ = await exchanged(long)
    assert error.code == TOO_LONG


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_encoded_answer_is_bounded_or_refused(content_type: str) -> None:
    """A server may encode what the request did not accept encoded; 64 KiB of gzip unpack to 64 MiB."""
    bomb = gzip.compress(b"x" * (64 << 20), mtime=0)
    headers = {"content-type": content_type, "content-encoding": "gzip"}
    tracemalloc.start()
    error, ended = await exchanged(httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(bomb)))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4 * MAX_MESSAGE_BYTES
    assert not ended
    if content_type == "application/json":
        assert error.code == TOO_LONG
    else:
        assert marked_error(error.data) is AnswerUnreadable


async def test_encoded_answer_is_read() -> None:
    body = gzip.compress(error_message(1).encode())
    answer = httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(body))
    error, _ = await exchanged(answer)
    assert error.message == "no"


async def test_reading_past_the_end_is_the_end() -> None:
    stream = asyncio.StreamReader()
    stream.feed_eof()
    with pytest.raises(anyio.EndOfStream):
        await LineReads(stream, "it").receive()
