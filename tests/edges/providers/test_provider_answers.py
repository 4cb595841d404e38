"""What is made of the ways in which a provider's call can end, and of providers that do not keep to the contract."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from edges.providers.provider import Caller, Provider
from edges.providers.settings import ProviderSettings
from edges.tools_config import ToolsConfig
from services.tools.answer_files import AnswerParts
from services.tools.calls.effects import NeverBegan
from services.tools.registry import ToolRegistry
from services.tools.tool import CallContext, ToolAnswer, ToolInDoubt
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import Claims
from tenure.domain.texts import kept_as
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.status import to_status
from tenure.v1 import tool_pb2
from tenure.v1 import tool_provider_service_pb2 as pb
from tenure.v1.tool_provider_service_pb2_grpc import (
    ToolProviderServiceServicer,
    add_ToolProviderServiceServicer_to_server,
)
from tenure.validators import validate
from tests.support.answer_parts import NO_PARTS, parts_in
from tests.support.certificates import issue
from tests.support.fix_time import PassSeconds
from tests.support.images import png
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

DONE, FAILED = OutcomeStatus.SUCCEEDED, OutcomeStatus.FAILED
TASK = "00000000-0000-7000-8000-000000000000"
Answering = Callable[[pb.CallToolRequest, Any], AsyncIterator[pb.CallToolResponse]]


class Scripted(ToolProviderServiceServicer):
    """`answering` is each call's handler, the last one again and again."""

    def __init__(self, *answering: Answering) -> None:
        self.answering = answering
        self.requests: list[pb.CallToolRequest] = []
        self.metadata: dict[str, Any] = {}
        self.tools = [tool_pb2.ToolDefinition(name="t", input_schema_json="{}")]
        self.cancelled = asyncio.Event()

    async def DescribeTools(self, request: Any, context: Any) -> pb.DescribeToolsResponse:
        return pb.DescribeToolsResponse(tools=self.tools)

    async def CallTool(self, request: pb.CallToolRequest, context: Any) -> AsyncIterator[pb.CallToolResponse]:
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        try:
            async for response in self.answering[min(len(self.requests), len(self.answering)) - 1](request, context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def outcome(
    status: pb.ProviderStatus.ValueType, content: str = "", detail: str = "", parts: Sequence[pb.ProviderPart] = ()
) -> Answering:
    async def answer(_request: Any, _context: Any) -> AsyncIterator[pb.CallToolResponse]:
        yield pb.CallToolResponse(output="on its way")
        yield pb.CallToolResponse(
            outcome=pb.ProviderOutcome(status=status, content=content, detail=detail, parts=parts)
        )

    return answer


def ends(code: grpc.StatusCode, words: str = "because", *details: Any) -> Answering:
    async def answer(_request: Any, context: Any) -> AsyncIterator[pb.CallToolResponse]:
        status = status_pb2.Status(code=code.value[0], message=words)
        for detail in details:
            status.details.add().Pack(detail)
        await context.abort_with_status(rpc_status.to_status(status))
        yield pb.CallToolResponse()

    return answer


async def stale(_request: Any, context: Any) -> AsyncIterator[pb.CallToolResponse]:
    await context.abort_with_status(to_status(StaleEpoch(presented=7, current=9)))
    yield pb.CallToolResponse()


async def nothing(_request: Any, _context: Any) -> AsyncIterator[pb.CallToolResponse]:
    responses: tuple[pb.CallToolResponse, ...] = ()
    for response in responses:
        yield response


async def too_much(_request: Any, _context: Any) -> AsyncIterator[pb.CallToolResponse]:
    yield pb.CallToolResponse(outcome=pb.ProviderOutcome(content="x" * (5 * 1024 * 1024)))


async def too_much_metadata(_request: Any, context: Any) -> AsyncIterator[pb.CallToolResponse]:
    await context.abort(grpc.StatusCode.INTERNAL, "a trace " + "x" * 20_000)
    yield pb.CallToolResponse()


async def never(_request: Any, _context: Any) -> AsyncIterator[pb.CallToolResponse]:
    await asyncio.Event().wait()
    yield pb.CallToolResponse()


WAIT = error_details_pb2.RetryInfo(retry_delay=Duration(nanos=1000))
GOOD = outcome(pb.PROVIDER_STATUS_SUCCEEDED, "done")


@asynccontextmanager
async def serving(scripted: Scripted, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_ToolProviderServiceServicer_to_server(scripted, server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def context(emit: Callable[[str], None] = lambda _text: None, timeout_seconds: float = CALL_SECONDS) -> CallContext:
    return CallContext("acme", TASK, "1.0", f"{TASK}/1.0", 7, emit, b"", timeout_seconds=timeout_seconds)


async def called(
    scripted: Scripted,
    effect_class: EffectClass = EffectClass.KEYED,
    call_context: CallContext | None = None,
    parts: AnswerParts = NO_PARTS,
    **fields: Any,
) -> ToolAnswer:
    async with serving(scripted) as address:
        settings = ProviderSettings(address=address, **fields)
        async with open_channel(address) as channel, Caller("shop", settings, channel, parts) as caller:
            tool = caller.tool("t", ToolDefinition("shop__t", "", "{}", effect_class))
            return await tool.run(call_context or context(), {"half": "\ud800", "é": 1})


async def test_parts_of_an_outcome_are_kept_and_images_are_shown(tmp_path: Path) -> None:
    picture = png(4, 5)
    drawing = pb.ProviderPart(content=picture, mime_type="image/png")
    sound = pb.ProviderPart(content=b"sound", mime_type="audio/wav")
    with parts_in(tmp_path) as kept_parts:
        good = outcome(pb.PROVIDER_STATUS_SUCCEEDED, "drawn", parts=[drawing, sound])
        answer = await called(Scripted(good), parts=kept_parts)
    [image] = answer.images
    said, shown, kept = answer.content.splitlines()
    assert (said, image.kept, image.width) == ("drawn", kept_as(picture), 4)
    assert shown == f"[part (image/png), {len(picture)} bytes: kept in the workspace's file {image.kept.path}]"
    assert (tmp_path / "acme" / TASK / kept.partition("file ")[2].removesuffix("]")).read_bytes() == b"sound"


async def test_a_call_is_within_the_contract_and_its_output_is_shown() -> None:
    scripted = Scripted(outcome(pb.PROVIDER_STATUS_SUCCEEDED, "done", "FINE"))
    shown: list[Any] = []
    answer = await called(scripted, call_context=context(shown.append), bearer_token="secret", headers={"x-shop": "1"})
    assert (answer.status, answer.content, answer.detail, shown) == (DONE, "done", "FINE", ["on its way"])
    (request,) = scripted.requests
    validate(request)
    assert (request.tool, request.epoch, request.tenant) == ("t", 7, "acme")
    assert request.arguments_json == '{"half": "\\ud800", "\\u00e9": 1}'
    assert not request.HasField("token")
    values = {"idempotency-key": f"{TASK}/1.0", "x-fencing-epoch": "7", "authorization": "Bearer secret", "x-shop": "1"}
    assert values.items() <= scripted.metadata.items()
    assert scripted.metadata["x-tenure-tenant"] == "acme"


@pytest.mark.parametrize(
    ("answering", "detail", "words"),
    [
        (outcome(pb.PROVIDER_STATUS_FAILED, "no tea", "NO_TEA"), "NO_TEA", "no tea"),
        (outcome(cast("Any", 99), "newer", "not a detail"), "", "newer"),
        (outcome(pb.PROVIDER_STATUS_STALE_EPOCH, "11"), "STALE_EPOCH", "Nothing was done: 11"),
        (stale, "STALE_EPOCH", "epoch 7 is fenced"),
        (ends(grpc.StatusCode.ABORTED), "STALE_EPOCH", "Nothing was done: because"),
        (ends(grpc.StatusCode.INVALID_ARGUMENT), "INVALID_REQUEST", "Nothing was done: because"),
        (ends(grpc.StatusCode.NOT_FOUND), "NOT_FOUND", "Nothing was done: because"),
        (ends(grpc.StatusCode.FAILED_PRECONDITION), "WRONG_STATE", "Nothing was done: because"),
        (ends(grpc.StatusCode.PERMISSION_DENIED), "PERMISSION_DENIED", "Nothing was done: because"),
        (ends(grpc.StatusCode.UNIMPLEMENTED), "UNIMPLEMENTED", "Nothing was done: because"),
        (ends(grpc.StatusCode.RESOURCE_EXHAUSTED), "LIMIT_REACHED", "Nothing was done: because"),
    ],
)
@pytest.mark.parametrize("effect_class", [EffectClass.KEYED, EffectClass.UNSAFE])
async def test_a_refusal_is_an_answer_for_every_class(
    answering: Any, detail: str, words: str, effect_class: Any
) -> None:
    scripted = Scripted(answering)
    answer = await called(scripted, effect_class)
    assert (answer.status, answer.detail, len(scripted.requests)) == (FAILED, detail, 1)
    assert words in answer.content
    assert answer.no_effect == ("Nothing was done" in answer.content)


@pytest.mark.parametrize(
    "first",
    [
        ends(grpc.StatusCode.UNAVAILABLE),
        ends(grpc.StatusCode.RESOURCE_EXHAUSTED, "later", WAIT),
        outcome(pb.PROVIDER_STATUS_IN_DOUBT, "who knows"),
    ],
)
async def test_repeatable_call_is_sent_again_with_its_key(first: Any) -> None:
    scripted = Scripted(first, GOOD)
    assert (await called(scripted)).content == "done"
    assert [one.idempotency_key for one in scripted.requests] == [f"{TASK}/1.0"] * 2


@pytest.mark.parametrize(
    "answering",
    [
        ends(grpc.StatusCode.UNAVAILABLE),
        ends(grpc.StatusCode.INTERNAL),
        ends(grpc.StatusCode.UNKNOWN),
        outcome(pb.PROVIDER_STATUS_IN_DOUBT, "who knows"),
        nothing,
        too_much,
        too_much_metadata,
    ],
)
async def test_an_unsafe_call_without_an_answer_is_in_doubt(answering: Any) -> None:
    scripted = Scripted(answering)
    with pytest.raises(ToolInDoubt, match="The provider shop was sent the call, and its answer was lost"):
        await called(scripted, EffectClass.UNSAFE)
    assert len(scripted.requests) == 1


async def test_a_fenced_runner_calls_no_provider() -> None:
    scripted = Scripted(never)
    async with (
        serving(scripted) as address,
        open_channel(address) as channel,
        Caller("shop", ProviderSettings(address=address), channel, NO_PARTS) as caller,
    ):
        tool = caller.tool("t", ToolDefinition("shop__t", "", "{}", EffectClass.UNSAFE))
        with pytest.raises(NeverBegan):
            await tool.run(replace(context(), check_may_begin=Mock(side_effect=NeverBegan)), {})
    assert scripted.requests == []


@pytest.mark.parametrize("answering", [ends(grpc.StatusCode.INTERNAL), nothing, too_much, too_much_metadata])
async def test_a_provider_with_a_bug_is_not_asked_again(answering: Any) -> None:
    scripted = Scripted(answering)
    with pytest.raises(ToolInDoubt):
        await called(scripted)
    assert len(scripted.requests) == 1


async def test_stale_epoch_after_a_lost_answer_is_in_doubt() -> None:
    with pytest.raises(ToolInDoubt, match="The call was sent before, and that answer was lost") as doubt:
        await called(Scripted(ends(grpc.StatusCode.UNAVAILABLE), stale))
    assert doubt.value.detail == "STALE_EPOCH"


async def test_a_stopped_or_late_call_is_cancelled_at_the_provider(pass_seconds: PassSeconds) -> None:
    scripted = Scripted(never)
    async with (
        serving(scripted) as address,
        open_channel(address) as channel,
        Caller("shop", ProviderSettings(address=address), channel, NO_PARTS) as caller,
    ):
        tool = caller.tool("t", ToolDefinition("shop__t", "", "{}", EffectClass.KEYED))
        calling = asyncio.ensure_future(tool.run(context(), {}))
        await _until(lambda: len(scripted.requests) == 1)
        pass_seconds(CALL_SECONDS)
        with pytest.raises(ToolInDoubt) as doubt:
            await calling
        assert (doubt.value.status, doubt.value.detail) == (OutcomeStatus.TIMED_OUT, "TIMEOUT")
        await asyncio.wait_for(scripted.cancelled.wait(), PATIENCE_SECONDS)
        scripted.cancelled.clear()
        calling = asyncio.ensure_future(tool.run(context(), {}))
        await _until(lambda: len(scripted.requests) == 2)
        calling.cancel()
        await asyncio.wait({calling})
        await asyncio.wait_for(scripted.cancelled.wait(), PATIENCE_SECONDS)


async def test_a_providers_tools_are_refreshed(caplog: pytest.LogCaptureFixture) -> None:
    scripted, registry = Scripted(GOOD), ToolRegistry([])
    scripted.tools += [
        tool_pb2.ToolDefinition(name="a b", input_schema_json="{}"),
        tool_pb2.ToolDefinition(name="schema", input_schema_json="["),
        tool_pb2.ToolDefinition(name="other", input_schema_json="{}", effect_class=tool_pb2.EFFECT_CLASS_PURE),
    ]
    async with serving(scripted) as address:
        settings = ProviderSettings(address=address, refresh_seconds=1, effects={"t": "KEYED", "none": "PURE"})
        async with Provider("shop", settings, registry, NO_PARTS) as provider:
            watching = asyncio.create_task(provider.watch())
            with caplog.at_level(logging.WARNING):
                await provider.reached()
            assert classes(registry) == {"shop__t": "KEYED", "shop__other": "PURE"}
            problems = [record.problem for record in caplog.records if hasattr(record, "problem")]
            assert [problem.partition(":")[0] for problem in problems] == [
                "'a b' is left out",
                "'none' is named in the config file, but there is no such tool",
                "shop__schema",
            ]
            del scripted.tools[1:]
            await _until(lambda: classes(registry) == {"shop__t": "KEYED"})
            watching.cancel()
            await asyncio.wait({watching})


async def test_a_provider_may_authenticate_its_caller_and_itself(tmp_path: Path) -> None:
    authority = issue("authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    server = issue("server", ("127.0.0.1",), authority).write(tmp_path / "server.pem")
    client = issue("client", ("client",), authority).write(tmp_path / "client.pem")
    pem, ca = server.read_bytes(), (tmp_path / "ca.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([(pem, pem)], ca, require_client_auth=True)
    for tls, reached in (
        ({"ca_file": tmp_path / "ca.pem", "cert_file": client, "key_file": client}, True),
        ({"ca_file": tmp_path / "ca.pem"}, False),
        (None, False),
    ):
        registry = ToolRegistry([])
        async with serving(Scripted(GOOD), credentials) as address:
            settings = ProviderSettings(address=address, tls=tls, connect_seconds=60 if reached else 0.3)
            async with Provider("shop", settings, registry, NO_PARTS) as provider:
                watching = asyncio.create_task(provider.watch())
                await provider.reached()
                assert (classes(registry) == {"shop__t": "UNSAFE"}) is reached
                watching.cancel()
                await asyncio.wait({watching})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"address": "nowhere"}, "not host:port"),
        ({"address": "stock.internal:8490"}, "use TLS, or set allow_insecure: true"),
        ({"address": "127.0.0.1:1,10.0.0.1:1"}, "use TLS, or set allow_insecure: true"),
        ({"address": "a:1,b:2"}, "must be IP addresses"),
        ({"headers": {"authorization": "x"}}, "is reserved"),
        ({"headers": {"x-tenure-y": "x"}}, "is reserved"),
        ({"bearer_token": "ü"}, "printable ASCII"),
        ({"tls": {"cert_file": "/nowhere"}}, "set both cert_file and key_file"),
        ({"tls": {"ca_file": "/nowhere"}}, "does not exist"),
        ({"effects": {"t": "HARMLESS"}}, "Input should be"),
        ({"tenants": ["No Such"]}, "should match pattern"),
    ],
)
def test_an_unreachable_provider_is_a_config_error(fields: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ProviderSettings(**{"address": "127.0.0.1:1", **fields})


def test_a_sources_name_is_short_and_unique() -> None:
    provider, server = {"address": "127.0.0.1:1"}, {"command": "true"}
    for name in ("built-in", "a__b", "a_", "", "a b"):
        with pytest.raises(ValueError, match=r"pattern|built-in"):
            ToolsConfig.model_validate({"providers": {name: provider}})
    with pytest.raises(ValueError, match="cannot have the same name"):
        ToolsConfig.model_validate({"providers": {"shop": provider}, "mcp_servers": {"shop": server}})


def classes(registry: ToolRegistry) -> dict[str, str]:
    definitions = registry.definitions(Claims("tasks/t", "default", 1, "c", "w"))
    return {definition.name: definition.effect_class.value for definition in definitions}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)
