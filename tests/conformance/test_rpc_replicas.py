"""Laws of several replicas behind one address: a call goes to one that lives, and a stream that is lost begins again.

Replicas are servers behind a proxy each, which makes them fall silent (a frozen process) or vanish (a killed one).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from tenure.domain.errors import Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.options import Keepalive, ServerLimits
from tenure.runtime.rpc.server import RpcServer
from tests.support.fix_proxy import MakeProxy, TcpProxy
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

QUICK = Keepalive(interval_seconds=1.0, timeout_seconds=2.0)
"""Long enough that a peer on a busy machine is not taken for a frozen one."""
AGAIN = RetryPolicy(max_attempts=5, initial_seconds=0.05, factor=2.0, cap_seconds=1.0)


class Replica:
    """Answers with its own name; its stream says the name and stays open."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        limits = ServerLimits(min_ping_interval_seconds=0.1)
        self.server = RpcServer("127.0.0.1:0", limits=limits, grace_seconds=0.1)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Ask": grpc.unary_unary_rpc_method_handler(self.ask),
            "Hold": grpc.unary_stream_rpc_method_handler(self.hold),
        }
        handler = grpc.method_handlers_generic_handler("t.Who", methods)
        self.server.add("t.Who", handler, lambda one, to: to.add_generic_rpc_handlers((one,)))
        self.proxy: TcpProxy

    async def ask(self, _request: bytes, _context: Any) -> bytes:
        return self.name

    async def hold(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield self.name
        await self.server.stopping.wait()


class Replicas:
    """Two of them and a client of both."""

    def __init__(self, replicas: list[Replica], channel: TenureChannel) -> None:
        self.both, self._channel = replicas, channel

    async def ask(self, timeout: float = 5.0) -> bytes:
        return bytes(await self._channel.unary_unary("/t.Who/Ask")(b"", timeout=timeout))

    async def ask_patiently(self) -> bytes:
        """As our services do: repeatable calls are repeated."""
        return await retrying(self.ask, AGAIN, on=(Unavailable,))

    async def hold(self) -> tuple[bytes, Any]:
        """A stream that has begun, and by whom."""
        call = self._channel.unary_stream("/t.Who/Hold")(b"")
        return bytes(await call.read()), call

    async def until_all_answer(self) -> None:
        heard: set[bytes] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while heard != {replica.name for replica in self.both}:
                heard.add(await self.ask_patiently())

    def named(self, name: bytes) -> Replica:
        return next(replica for replica in self.both if replica.name == name)


@asynccontextmanager
async def two_replicas(tcp_proxy: MakeProxy) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as opened:
        both = [Replica(b"first"), Replica(b"second")]
        for replica in both:
            await opened.enter_async_context(replica.server)
            replica.proxy = await tcp_proxy("127.0.0.1", replica.server.port)
        text = ",".join(replica.proxy.address for replica in both)
        channel = await opened.enter_async_context(open_channel(text, keepalive=QUICK))
        replicas = Replicas(both, channel)
        await replicas.until_all_answer()
        yield replicas


async def test_calls_are_balanced_and_survive_a_killed_replica(tcp_proxy: MakeProxy) -> None:
    async with two_replicas(tcp_proxy) as replicas:
        assert {await replicas.ask() for _ in range(4)} == {b"first", b"second"}
        await replicas.both[0].proxy.stop()
        assert {await replicas.ask_patiently() for _ in range(20)} == {b"second"}


async def test_a_replica_that_is_back_is_used_again(tcp_proxy: MakeProxy) -> None:
    async with two_replicas(tcp_proxy) as replicas:
        await replicas.both[0].proxy.stop()
        assert await replicas.ask_patiently() == b"second"
        await replicas.both[0].proxy.start()
        await replicas.until_all_answer()


async def test_a_frozen_replica_is_left_before_the_deadline(
    tcp_proxy: MakeProxy,
) -> None:
    async with two_replicas(tcp_proxy) as replicas:
        replicas.both[0].proxy.deaf()
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(
                *(replicas.ask(timeout=2 * PATIENCE_SECONDS) for _ in range(4)),
                return_exceptions=True,
            )
        broken = [answer for answer in answers if isinstance(answer, BaseException)]
        assert broken
        assert all(isinstance(error, Unavailable) for error in broken)
        assert {answer for answer in answers if not isinstance(answer, BaseException)} == {b"second"}
        # Calls may still meet the connection while it is being closed; after that it is out of the rotation.
        async with asyncio.timeout(CALL_SECONDS):
            assert {await replicas.ask_patiently() for _ in range(10)} == {b"second"}


async def test_streams_are_balanced_and_restart_elsewhere(tcp_proxy: MakeProxy) -> None:
    async with two_replicas(tcp_proxy) as replicas:
        streams = dict([await replicas.hold(), await replicas.hold()])
        assert set(streams) == {b"first", b"second"}
        replicas.named(b"first").proxy.deaf()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Unavailable):
                await streams[b"first"].read()
        # A new stream may still meet the connection as it is being closed.
        again, call = await retrying(replicas.hold, AGAIN, on=(Unavailable,))
        assert again == b"second"
        for stream in (call, *streams.values()):
            stream.cancel()


async def test_a_new_client_uses_the_healthy_replica(
    tcp_proxy: MakeProxy,
) -> None:
    async with two_replicas(tcp_proxy) as replicas:
        frozen, alive = replicas.both
        for make_silent in (frozen.proxy.deaf, frozen.proxy.stop):
            if (going := make_silent()) is not None:
                await going
            addresses = [frozen.proxy.address, alive.proxy.address]
            async with open_channel(addresses, keepalive=QUICK, default_timeout_seconds=CALL_SECONDS) as channel:
                ask = channel.unary_unary("/t.Who/Ask")
                assert {await ask(b"") for _ in range(4)} == {b"second"}


def test_a_frozen_peer_is_noticed_before_default_deadlines() -> None:
    from services.gateway.peers import CALL_TIMEOUT_SECONDS as GATEWAY_SECONDS
    from services.worker.ledger_client import COMMIT_TIMEOUT_SECONDS
    from tenure.client.retries import CALL_TIMEOUT_SECONDS as CLIENT_SECONDS

    noticed_seconds = Keepalive().interval_seconds + Keepalive().timeout_seconds
    assert noticed_seconds < min(GATEWAY_SECONDS, COMMIT_TIMEOUT_SECONDS, CLIENT_SECONDS)
    assert ServerLimits().min_ping_interval_seconds * 2 <= Keepalive().interval_seconds  # room for an early ping
