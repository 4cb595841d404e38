"""HTTP tools against a server that answers, breaks and lies: what is sent, and what is made of what comes back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import serialization

from edges.http_tools.http_tool import MAX_ANSWER_BYTES, HttpTool
from edges.http_tools.settings import HttpToolSettings
from services.tools.answer_files import AnswerParts
from services.tools.tool import CallContext, ToolAnswer, ToolFailure, ToolInDoubt
from tenure.domain.texts import kept_as
from tenure.domain.tools import EffectClass, OutcomeStatus
from tests.support.answer_parts import NO_PARTS, parts_in
from tests.support.certificates import issue
from tests.support.fix_tools import Grants, StartTools
from tests.support.images import png
from tests.support.patience import CALL_SECONDS
from tests.support.scripted_http import answer, scripted_http
from tests.support.sweeps import first, one_of_each

DONE, FAILED = OutcomeStatus.SUCCEEDED, OutcomeStatus.FAILED
REPEATABLE = [EffectClass.KEYED, EffectClass.PURE, EffectClass.IDEMPOTENT]
ID = {"type": "object", "properties": {"id": {}}, "required": ["id"]}


async def call(
    url: str,
    arguments: dict[str, Any],
    *,
    timeout_seconds: float = CALL_SECONDS,
    parts: AnswerParts = NO_PARTS,
    mark_not_sent: Callable[[], None] = lambda: None,
    **fields: Any,
) -> ToolAnswer:
    settings = HttpToolSettings(**{"url": url, "description": "d", "effect_class": "KEYED", **fields})
    context = CallContext(
        "default", "t", "1.0", "t/1.0", 7, lambda _text: None, b"token", timeout_seconds=timeout_seconds
    )
    context = replace(context, mark_not_sent=mark_not_sent)
    async with HttpTool("crm", settings, parts) as http_tool:
        return await http_tool.tool.run(context, arguments)


async def test_arguments_are_the_body_and_headers_name_the_call() -> None:
    async with scripted_http(answer(200, '{"ok": true}', content_type="application/json")) as http:
        done = await call(f"{http.url}/notes", {"text": "é"}, headers={"Authorization": "Bearer x"}, send_token=True)
    assert (done.status, done.content) == (DONE, '{"ok": true}')
    (request,) = http.requests
    assert (request.line, json.loads(request.body)) == ("POST /notes HTTP/1.1", {"text": "é"})
    values = {"authorization": "Bearer x", "idempotency-key": "t/1.0", "x-fencing-epoch": "7"}
    values |= {"x-fencing-token": base64.b64encode(b"token").decode(), "content-type": "application/json"}
    assert values.items() <= request.headers.items()


async def test_token_is_sent_only_with_send_token() -> None:
    async with scripted_http(answer(200)) as http:
        await call(http.url, {})
    assert "x-fencing-token" not in http.requests[0].headers


async def test_url_arguments_are_escaped() -> None:
    async with scripted_http(answer(200)) as http:
        arguments = {"id": "a b/ü?x=1&y#z", "tags": ["p&q", 2], "flag": True, "none": None}
        await call(f"{http.url}/customers/{{id}}?v=1", arguments, method="GET", input_schema=ID)
    path = "/customers/a%20b%2F%C3%BC%3Fx%3D1%26y%23z?v=1&tags=p%26q&tags=2&flag=true"
    assert (http.requests[0].line, http.requests[0].body) == (f"GET {path} HTTP/1.1", b"")


@pytest.mark.parametrize("value", first(["../../admin", "..", ".", "", "a/../b", "..\\b"]))
async def test_argument_that_changes_the_path_is_refused(value: str) -> None:
    vouch = Mock()
    async with scripted_http(answer(200)) as http:
        with pytest.raises(ToolFailure, match="cannot be put into"):
            await call(f"{http.url}/customers/{{id}}", {"id": value}, input_schema=ID, mark_not_sent=vouch)
    assert (http.requests, vouch.call_count) == ([], 1)


@pytest.mark.parametrize(
    ("raw", "detail", "expected"),
    one_of_each(
        [
            (answer(404, "no such customer"), "HTTP_404", "The server of crm answered HTTP 404: no such customer"),
            (answer(501, "what?"), "HTTP_501", "The server of crm answered HTTP 501: what?"),
            (answer(425, "too early"), "HTTP_425", "HTTP 425: too early"),
            (answer(429, "busy"), "HTTP_429", "HTTP 429: busy"),
            (answer(307, location="http://127.0.0.1:1/"), "HTTP_307", "redirects are not followed"),
            (answer(409, "other"), "HTTP_409", "HTTP 409: other"),
            (answer(409, '{"reason": "STALE_EPOCH"}'), "STALE_EPOCH", "Nothing was done."),
            (answer(412, x_fencing_refusal="STALE_EPOCH"), "STALE_EPOCH", "it has seen a newer claim of this task"),
            (answer(400, '{"reason": "STALE_EPOCH"}'), "HTTP_400", "STALE_EPOCH"),
        ],
        kind=lambda case: case[1][:5],
    ),
)
@pytest.mark.parametrize("effect_class", [EffectClass.KEYED, EffectClass.UNSAFE])
async def test_a_refusal_is_an_answer(raw: Any, detail: str, expected: str, effect_class: Any) -> None:
    async with scripted_http(raw) as http:
        refused = await call(http.url, {}, effect_class=effect_class)
    assert (refused.status, refused.detail) == (FAILED, detail)
    assert expected in refused.content
    assert len(http.requests) == 1


@pytest.mark.parametrize("status", first([500, 302, 303]))
@pytest.mark.parametrize("effect_class", list(EffectClass))
async def test_an_ambiguous_answer_is_taken_where_repeats_do_no_harm(status: int, effect_class: Any) -> None:
    async with scripted_http(answer(status, "bug")) as http:
        if effect_class in {EffectClass.KEYED, EffectClass.UNSAFE}:
            with pytest.raises(ToolInDoubt, match=f"HTTP {status}: bug"):
                await call(http.url, {}, effect_class=effect_class)
        else:
            refused = await call(http.url, {}, effect_class=effect_class)
            assert (refused.status, refused.detail) == (FAILED, f"HTTP_{status}")
    assert len(http.requests) == 1


@pytest.mark.parametrize("effect_class", first(REPEATABLE))
@pytest.mark.parametrize("lost", [None, answer(503, retry_after="0"), answer(429, retry_after="0"), answer(502)])
async def test_repeatable_call_is_sent_again_with_its_key(effect_class: Any, lost: Any) -> None:
    async with scripted_http(lost, answer(200, "done")) as http:
        done = await call(http.url, {"a": 1}, effect_class=effect_class)
    assert (done.status, done.content) == (DONE, "done")
    assert [one.headers["idempotency-key"] for one in http.requests] == ["t/1.0", "t/1.0"]
    assert http.requests[0].body == http.requests[1].body


CUT_OFF = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nx"


@pytest.mark.parametrize("lost", [None, CUT_OFF])
async def test_an_unsafe_call_with_a_lost_answer_is_in_doubt(lost: Any) -> None:
    async with scripted_http(lost) as http:
        with pytest.raises(ToolInDoubt, match="its answer was lost"):
            await call(http.url, {}, effect_class="UNSAFE")
    assert len(http.requests) == 1


@pytest.mark.parametrize("headers", [{}, {"retry_after": "0"}])
@pytest.mark.parametrize(
    "status", one_of_each([302, 303, 408, 499, 500, 502, 503, 504, 520, 524], lambda status: status // 100)
)
async def test_unsafe_call_with_an_ambiguous_status_is_in_doubt(status: int, headers: Any) -> None:
    async with scripted_http(answer(status, "half of it is done", **headers)) as http:
        expected = f"does not show whether the call was carried out: HTTP {status}: half of it"
        with pytest.raises(ToolInDoubt, match=expected):
            await call(http.url, {}, effect_class="UNSAFE")
    assert len(http.requests) == 1


async def test_rate_limited_unsafe_call_failed() -> None:
    async with scripted_http(answer(429, "busy", retry_after="0")) as http:
        response = await call(http.url, {}, effect_class="UNSAFE")
    assert (response.status, response.detail, len(http.requests)) == (FAILED, "HTTP_429", 1)


async def test_retry_after_beyond_the_timeout_is_not_waited_for() -> None:
    async with scripted_http(answer(503, "busy", retry_after="3600")) as http:
        response = await call(http.url, {}, effect_class="IDEMPOTENT")
        assert (response.status, response.detail, len(http.requests)) == (FAILED, "HTTP_503", 1)
        with pytest.raises(ToolInDoubt, match="HTTP 503: busy"):  # a gateway may have passed it on before
            await call(http.url, {}, effect_class="KEYED")
    async with scripted_http(answer(429, "busy", retry_after="3600")) as http:
        assert (await call(http.url, {}, effect_class="KEYED")).detail == "HTTP_429"


async def test_resends_of_a_failing_call_are_bounded() -> None:
    async with scripted_http(None) as http:
        with pytest.raises(ToolInDoubt, match="its answer was lost"):
            await call(http.url, {}, effect_class="KEYED")
    assert len(http.requests) == 5


@pytest.mark.parametrize("effect_class", [EffectClass.KEYED, EffectClass.UNSAFE])
async def test_unreachable_server_got_no_request(effect_class: Any, closed_port: int) -> None:
    with pytest.raises(ToolFailure, match="Nothing was done") as failed:
        await call(f"http://127.0.0.1:{closed_port}/", {}, effect_class=effect_class, connect_seconds=5.0)
    assert (failed.value.detail, failed.value.no_effect) == ("UNREACHABLE", True)


async def test_an_unsafe_call_never_uses_a_kept_connection() -> None:
    settings = HttpToolSettings(url="http://127.0.0.1", description="d")
    async with scripted_http(answer(200)) as http:
        for effect_class, connections in ((EffectClass.KEYED, 1), (EffectClass.UNSAFE, 3)):
            used = settings.model_copy(update={"url": http.url, "effect_class": effect_class})
            context = CallContext("default", "t", "1.0", "t/1.0", 7, lambda _text: None)
            async with HttpTool("crm", used, NO_PARTS) as http_tool:
                for _ in range(2):
                    assert (await http_tool.tool.run(context, {})).status is DONE
            assert http.connections == connections


async def test_images_and_other_files_of_an_answer_are_kept(tmp_path: Path) -> None:
    picture, folder = png(4, 5), tmp_path / "default" / "t"
    with parts_in(tmp_path) as parts:
        async with scripted_http(answer(200, picture, content_type="image/png; q=1")) as http:
            shown = await call(http.url, {}, parts=parts)
        async with scripted_http(answer(200, b"%PDF-1", content_type="application/pdf")) as http:
            kept = await call(http.url, {}, parts=parts)
    [image] = shown.images
    assert (image.kept, image.width, image.height) == (kept_as(picture), 4, 5)
    assert (
        shown.content == f"[answer (image/png), {len(picture)} bytes: kept in the workspace's file {image.kept.path}]"
    )
    assert (folder / image.kept.path).read_bytes() == picture
    assert kept.images == ()
    what, _, path = kept.content.removesuffix("]").partition(" kept in the workspace's file ")
    assert (what, Path(path).suffix) == ("[answer (application/pdf), 6 bytes:", ".pdf")
    assert (folder / path).read_bytes() == b"%PDF-1"


async def test_long_answer_is_cut() -> None:
    async with scripted_http(answer(200, b"x" * (MAX_ANSWER_BYTES + 1))) as http:
        done = await call(http.url, {})
    assert (done.truncated, len(done.content)) == (True, MAX_ANSWER_BYTES)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer(200, "é".encode("latin-1"), content_type="text/plain; charset=iso-8859-1"), "é"),
        (answer(200, b"\xff", content_type="text/plain; charset=utf-7"), "�"),
        (
            answer(200, b"\x1f\x8b", content_encoding="gzip"),
            "[2 bytes, encoded as gzip, which the request did not accept]",
        ),
        (answer(204), ""),
    ],
)
async def test_binary_answer_is_described(raw: Any, expected: str) -> None:
    async with scripted_http(raw) as http:
        assert (await call(http.url, {})).content == expected


async def test_private_addresses_are_the_operators_to_forbid() -> None:
    async with scripted_http(answer(200)) as http:
        with pytest.raises(ToolFailure) as refused:
            await call(http.url, {}, allow_private=False)
    assert refused.value.detail == "ADDRESS_REFUSED"
    assert http.requests == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"url": "http://{id}.example/", "input_schema": ID}, "must not contain arguments"),
        ({"url": "http://crm.example/{id}"}, "list them under required"),
        ({"url": "http://crm.example/{a b}"}, "space"),
        ({"url": "http://crm.example/%7B{"}, "a brace"),
        ({"url": "http://crm.example/"}, "use TLS, or set allow_insecure: true"),
        ({"url": "ftp://crm.example/"}, "Only http and https"),
        ({"url": "http://crm.example/", "headers": {"Idempotency-Key": "x"}}, "is reserved"),
        ({"url": "http://crm.example/", "headers": {"X-A": "a\r\nb"}}, "printable ASCII"),
        ({"url": "http://crm.example/", "headers": {"X-A": "a "}}, "blanks"),
        ({"url": "http://crm.example/", "input_schema": {"$ref": "http://127.0.0.1/"}}, "another document"),
    ],
)
def test_invalid_http_tool_is_refused(fields: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        HttpToolSettings(**{"description": "d", **fields})


async def test_the_tool_service_has_it_and_records_its_doubts(
    tool_service: StartTools, grants: Grants, tools_sections: Callable[..., Path]
) -> None:
    async with scripted_http(answer(200, "noted"), None) as http:
        tool = {"url": http.url, "description": "Take a note.", "max_calls": 1, "tenants": ["default"]}
        tools = await tool_service(config_file=tools_sections(http_tools={"crm_note": tool}))
        owner = grants.claim(epoch=12)
        assert (await tools.outcome(owner, "1.0", "crm_note", text="x")).content == "noted"
        assert (await tools.outcome(owner, "1.1", "crm_note", text="x")).status is OutcomeStatus.IN_DOUBT
        response = await tools.outcome(grants.claim(tenant="other"), "1.0", "crm_note", text="x")
        assert response.status is OutcomeStatus.INVALID_ARGUMENTS
    assert [one.headers["idempotency-key"] for one in http.requests] == [f"{owner.task_id}/1.0", f"{owner.task_id}/1.1"]
    assert {one.headers["x-fencing-epoch"] for one in http.requests} == {"12"}


async def test_an_unreadable_answer_leaves_an_unsafe_call_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with us or with it: it was asked."""

    def fails(*_asked: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr("edges.http_tools.http_tool.read_response", fails)
    async with scripted_http(answer(200)) as http:
        with pytest.raises(ToolInDoubt, match="KeyError"):
            await call(http.url, {}, effect_class="UNSAFE")


@pytest.mark.parametrize("host", ["127.0.0.1", "other.invalid"])
async def test_server_certificate_is_verified(host: str, tmp_path: Path) -> None:
    """With the operator's own authority; nothing is sent to another."""
    authority = issue("authority")
    authority_file = tmp_path / "ca.pem"
    authority_file.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    context = issue("127.0.0.1", (host,), authority).server(tmp_path)
    async with scripted_http(answer(200, "done"), tls=context) as http:
        if host == "127.0.0.1":
            assert (await call(http.url, {}, ca_file=authority_file)).content == "done"
        else:
            with pytest.raises(ToolFailure, match="Nothing was done"):
                await call(http.url, {}, ca_file=authority_file, connect_seconds=0.2)
    assert len(http.requests) == (host == "127.0.0.1")
