"""Laws of our servers and channels, over real sockets; the service is generic, its messages are bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tenure.domain import errors
from tenure.runtime.listening import CannotListen
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import as_tenant, current_tenant, traceparent, within_trace
from tenure.runtime.rpc import server as rpc_server
from tenure.runtime.rpc.client import TenureChannel, open_channel, target_of
from tenure.runtime.rpc.server import RpcServer, draining
from tenure.runtime.rpc.status import PeerFailed
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

SERVICE = "tenure.test.Echo"
ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Echo:
    """Answers every message with `<tenant>:<message>`; a message `raise` makes it raise `self.error`."""

    def __init__(self) -> None:
        self.error: Exception = errors.StaleEpoch(presented=1, current=2)
        self.server: RpcServer
        self.hanging = asyncio.Event()

    def answer(self, request: bytes) -> bytes:
        if request == b"raise":
            raise self.error
        return current_tenant().encode() + b":" + request

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        if request == b"until stopping":
            self.hanging.set()
            await self.server.stopping.wait()
        return self.answer(request)

    async def unary_stream(self, request: bytes, context: Any) -> Any:
        yield b"first"
        if request == b"until stopping":
            await self.server.stopping.wait()
            raise draining()
        if request == b"forever":
            self.hanging.set()
            await asyncio.Event().wait()
        yield self.answer(request)

    async def stream_unary(self, requests: Any, context: Any) -> bytes:
        return b",".join([self.answer(request) async for request in requests])

    async def stream_stream(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            yield self.answer(request)

    async def written(self, request: bytes, context: Any) -> None:
        await context.write(b"first")
        await context.write(self.answer(request))


def register(echo: Echo, server: grpc.aio.Server) -> None:
    handlers = {arity: getattr(grpc, f"{arity}_rpc_method_handler")(getattr(echo, arity)) for arity in ARITIES}
    for arity in ARITIES:
        build = getattr(grpc, f"{arity}_rpc_method_handler")
        handlers[f"parsed_{arity}"] = build(getattr(echo, arity), health_pb2.HealthCheckRequest.FromString)
    handlers["written"] = grpc.unary_stream_rpc_method_handler(echo.written)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def refuse_bad(message: bytes, _size_bytes: int) -> None:
    if message == b"bad":
        raise errors.InvalidRequest(violations=[("payload", "must not be bad")])


@asynccontextmanager
async def echoing(*, grace_seconds: float = 2.0, **options: Any) -> AsyncGenerator[Any]:
    echo = Echo()
    server = RpcServer("127.0.0.1:0", validate=refuse_bad, grace_seconds=grace_seconds, **options)
    server.add(SERVICE, echo, register)
    echo.server = server
    async with server, open_channel(server.address, default_timeout_seconds=CALL_SECONDS) as channel:
        yield echo, channel


async def talk(channel: TenureChannel, arity: str, *messages: bytes) -> list[bytes]:
    """Send the messages, return all answers."""
    method = getattr(channel, arity.replace("written", "unary_stream"))(f"/{SERVICE}/{arity}")
    requests: Any = iter(messages) if arity.startswith("stream") else messages[0]
    call = method(requests, timeout=CALL_SECONDS)
    return [await call] if arity.endswith("unary") else [message async for message in call]


@pytest.mark.parametrize("arity", [*ARITIES, "written"])
async def test_a_domain_error_crosses_the_wire_in_every_arity(arity: Any) -> None:
    async with echoing() as (echo, channel):
        echo.error = errors.Unavailable("no room", reason="STORAGE_FULL", retry_after_seconds=1.5, metadata={"a": "b"})
        with pytest.raises(errors.Unavailable) as caught:
            await talk(channel, arity, b"raise")
        assert (caught.value.reason, caught.value.message) == ("STORAGE_FULL", "no room")
        assert (caught.value.retry_after_seconds, caught.value.metadata) == (1.5, {"a": "b"})


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("no_message", [b"\x0a\x03\xed\xa0\xbd", b"\xff\xff\xff", b"\x0a\x7f"])
async def test_malformed_messages_are_refused_with_a_reason(
    arity: Any, no_message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a surrogate pair in a text, a field that does not exist, a length beyond the end."""
    async with echoing() as (_, channel):
        method = getattr(channel, arity)(f"/{SERVICE}/parsed_{arity}")
        call = method(iter([no_message]) if arity.startswith("stream") else no_message, timeout=CALL_SECONDS)
        with caplog.at_level(logging.ERROR), pytest.raises(errors.InvalidRequest) as caught:
            _ = await call if arity.endswith("unary") else [message async for message in call]
    assert caught.value.reason == "UNREADABLE_MESSAGE"
    assert caplog.text == ""


@pytest.mark.parametrize("arity", [*ARITIES, "written"])
async def test_an_internal_error_has_its_details_in_the_log_only(arity: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with echoing() as (echo, channel):
        echo.error = ValueError("secret detail")
        with caplog.at_level(logging.ERROR), pytest.raises(PeerFailed) as caught:
            await talk(channel, arity, b"raise")
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    assert "secret detail" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("arity", [*ARITIES, "written"])
async def test_the_validator_sees_every_request_message(arity: Any) -> None:
    async with echoing() as (_, channel):
        messages = (b"good", b"bad") if arity.startswith("stream") else (b"bad",)
        with pytest.raises(errors.InvalidRequest) as caught:
            await talk(channel, arity, *messages)
        assert caught.value.violations == (("payload", "must not be bad"),)


@pytest.mark.parametrize("arity", ARITIES)
async def test_calls_carry_the_tenant(arity: Any) -> None:
    async with echoing() as (_, channel):
        assert (await talk(channel, arity, b"x"))[-1] == b"default:x"
        with as_tenant("acme-1"):
            assert (await talk(channel, arity, b"x"))[-1] == b"acme-1:x"


@pytest.mark.parametrize("arity", ARITIES)
async def test_calls_carry_the_trace(arity: Any) -> None:
    header = f"00-{'a' * 32}-{'b' * 16}-01"
    async with echoing() as (echo, channel):
        echo.answer = lambda _request: b"within " + traceparent().encode()
        assert (await talk(channel, arity, b"x"))[-1] == b"within "
        with within_trace(header):
            assert (await talk(channel, arity, b"x"))[-1] == b"within " + header.encode()


@pytest.mark.parametrize("named", [["Acme"], ["a" * 64], [""], ["a", "b"]])
async def test_a_malformed_tenant_is_refused(named: Any) -> None:
    async with echoing() as (_, channel):
        call = channel.raw.unary_unary(f"/{SERVICE}/unary_unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x", timeout=CALL_SECONDS, metadata=[("x-tenure-tenant", name) for name in named])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_calls_are_counted_by_method_and_code() -> None:
    def handled(code: str) -> float:
        return metrics.read("grpc_server_handled_total", grpc_method="stream_stream", grpc_code=code)

    ok, aborted = handled("OK"), handled("ABORTED")
    received = metrics.read("grpc_server_msg_received_total", grpc_method="stream_stream")
    async with echoing() as (_, channel):
        await talk(channel, "stream_stream", b"1", b"2", b"3")
        with pytest.raises(errors.StaleEpoch):
            await talk(channel, "stream_stream", b"raise")
    assert (handled("OK"), handled("ABORTED")) == (ok + 1, aborted + 1)
    assert metrics.read("grpc_server_msg_received_total", grpc_method="stream_stream") == received + 4


async def test_a_client_that_disconnects_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def cancelled() -> float:
        return metrics.read("grpc_server_handled_total", grpc_method="unary_stream", grpc_code="CANCELLED")

    before = cancelled()
    async with echoing() as (echo, channel):
        call = channel.unary_stream(f"/{SERVICE}/unary_stream")(b"forever", timeout=CALL_SECONDS)
        assert await call.read() == b"first"
        await echo.hanging.wait()
        call.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while cancelled() == before:
                await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_unary_call_without_a_deadline_is_refused() -> None:
    async with RpcServer("127.0.0.1:0") as server, open_channel(server.address) as channel:
        with pytest.raises(TypeError, match="timeout"):
            channel.unary_unary(f"/{SERVICE}/unary_unary")(b"x")


async def test_a_deadline_that_passes_leaves_the_outcome_unknown() -> None:
    async with echoing() as (_, channel):
        call = channel.unary_stream(f"/{SERVICE}/unary_stream")(b"forever", timeout=0.2)
        with pytest.raises(errors.Unavailable) as caught:
            _ = [message async for message in call]
        assert (caught.value.reason, caught.value.metadata) == ("DEADLINE_EXCEEDED", {"outcome": "unknown"})


async def test_a_closed_port_is_unavailable(closed_port: int) -> None:
    async with open_channel(f"127.0.0.1:{closed_port}") as channel:
        with pytest.raises(errors.Unavailable):
            await channel.unary_unary("/x/Y")(b"", timeout=CALL_SECONDS)


async def test_an_unimplemented_method_is_a_failure_of_the_peer() -> None:
    async with echoing() as (_, channel):
        with pytest.raises(PeerFailed) as caught:
            await channel.unary_unary(f"/{SERVICE}/nothing")(b"")
        assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_beyond_the_limit_is_refused_for_good() -> None:
    async with echoing() as (_, channel):
        with pytest.raises(errors.InvalidRequest) as caught:
            await talk(channel, "unary_unary", b"x" * (4 * 1024 * 1024 + 1))
        assert caught.value.reason == "MESSAGE_TOO_LARGE"


async def test_the_writer_of_a_stream_gets_its_status() -> None:
    async with echoing() as (_, channel):
        call = channel.stream_stream(f"/{SERVICE}/stream_stream")()
        await call.write(b"raise")
        with pytest.raises(errors.StaleEpoch):
            await call.read()
        with pytest.raises(errors.StaleEpoch) as caught:
            await call.write(b"more")
        assert caught.value.current == 2


async def test_a_draining_server_is_not_serving_and_streams_end() -> None:
    async with echoing(grace_seconds=2 * PATIENCE_SECONDS) as (echo, channel):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stream = channel.unary_stream(f"/{SERVICE}/unary_stream")(b"until stopping")
        assert await stream.read() == b"first"
        async with asyncio.timeout(PATIENCE_SECONDS):  # less than the grace: nothing waits it out
            await echo.server.drain()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        with pytest.raises(errors.Unavailable) as caught:
            await stream.read()
        assert caught.value.reason == "DRAINING"


async def test_a_call_in_progress_is_answered_during_a_drain() -> None:
    async with echoing(grace_seconds=2 * PATIENCE_SECONDS) as (echo, channel):
        call = asyncio.ensure_future(talk(channel, "unary_unary", b"until stopping"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await echo.hanging.wait()
            await echo.server.drain()
            assert await call == [b"default:until stopping"]


async def test_health_is_served_for_the_server_and_each_service() -> None:
    async with echoing() as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(errors.NotFound):
            await health.Check(health_pb2.HealthCheckRequest(service="absent"))
        listed = await health.List(health_pb2.HealthListRequest())
        assert set(listed.statuses) == {"", SERVICE, "grpc.health.v1.Health"}


async def test_streams_of_health_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "MAX_HEALTH_WATCHES", 1)
    async with echoing() as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        first = health.Watch(health_pb2.HealthCheckRequest())
        await first.read()
        with pytest.raises(errors.LimitReached) as refused:
            await health.Watch(health_pb2.HealthCheckRequest()).read()
        assert refused.value.reason == "HEALTH_WATCHES"
        first.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await ends_at_once(health.Watch(health_pb2.HealthCheckRequest())):
                await asyncio.sleep(0.01)


async def ends_at_once(call: Any) -> bool:
    try:
        await call.read()
    except errors.LimitReached:
        return True
    call.cancel()
    return False


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_lists_the_services(version: str) -> None:
    async with echoing() as (_, channel):
        method = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = method(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=CALL_SECONDS)
        answers = [answer async for answer in call]
        assert SERVICE in {service.name for service in answers[0].list_services_response.service}


async def test_two_servers_never_share_a_port() -> None:
    async with RpcServer("127.0.0.1:0") as first:
        with pytest.raises(CannotListen, match=f"cannot listen on {first.address}: the port is in use"):
            await RpcServer(first.address).start()


async def test_calls_use_several_addresses_and_skip_a_lost_one() -> None:
    first, second = (RpcServer("127.0.0.1:0", grace_seconds=0.1) for _ in range(2))
    for name, server in (("first", first), ("second", second)):

        async def tell(_request: bytes, _context: Any, name: str = name) -> bytes:
            return name.encode()

        handler = grpc.method_handlers_generic_handler("t.Who", {"Ask": grpc.unary_unary_rpc_method_handler(tell)})
        server.add("t.Who", handler, lambda h, s: s.add_generic_rpc_handlers((h,)))
    async with (
        first,
        second,
        open_channel([first.address, second.address], default_timeout_seconds=CALL_SECONDS) as channel,
    ):
        ask = channel.unary_unary("/t.Who/Ask")
        heard: set[bytes] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while heard != {b"first", b"second"}:
                heard.add(await ask(b"", wait_for_ready=True))
        await first.drain()
        assert {await ask(b"", wait_for_ready=True) for _ in range(10)} == {b"second"}


@pytest.mark.parametrize(
    ("addresses", "target"),
    [
        (["checkpoint:8472"], "checkpoint:8472"),
        (["localhost:1", "127.0.0.1:2"], "ipv4:127.0.0.1:1,127.0.0.1:2"),
        (["[::1]:1", "[::1]:2"], "ipv6:[::1]:1,[::1]:2"),
    ],
)
def test_the_target_of_addresses(addresses: Any, target: str) -> None:
    assert target_of(addresses) == target


@pytest.mark.parametrize("addresses", [[], ["a:1", "b:2"], ["127.0.0.1:1", "[::1]:2"]])
def test_addresses_that_cannot_share_a_channel_are_refused(addresses: Any) -> None:
    with pytest.raises(ValueError, match=r"address|mixed"):
        target_of(addresses)


async def test_the_details_are_readable_by_any_client_of_google_rpc() -> None:
    """What grpcurl prints: not our classes, but google.rpc.Status with ErrorInfo."""
    from google.rpc import error_details_pb2, status_pb2

    async with echoing() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.raw.unary_unary(f"/{SERVICE}/unary_unary")(b"raise", timeout=CALL_SECONDS)
        trailer = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        info = error_details_pb2.ErrorInfo()
        assert status_pb2.Status.FromString(trailer).details[0].Unpack(info)
        assert (info.reason, info.domain) == ("STALE_EPOCH", "tenure")
        assert dict(info.metadata) == {"presented": "1", "current": "2"}
