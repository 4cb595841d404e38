"""What one service raises is what the other catches: every leaf, over a real call and inside a frame."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import errors
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.rpc.status import from_plain, to_plain
from tests.support.patience import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


def examples() -> Iterator[errors.TenureError]:
    """Each leaf with its own reason and with another's shape of reason, with metadata and without."""
    for kind in errors.LEAVES:
        yield kind("plain")
        yield kind("precise: ü, 日本", reason="MORE_PRECISE", metadata={"task": "t-1", "empty": ""})
    yield errors.StaleEpoch(presented=2**40 + 33, current=2**41)
    yield errors.InvalidRequest(violations=[("goal", "must not be empty"), ("limits.timeout", "too long")])
    yield errors.Unavailable("disk full", reason="STORAGE_FULL", retry_after_seconds=0.25)
    yield errors.LimitReached("queue full", retry_after_seconds=30, metadata={"subject": "tenant:acme"})


@asynccontextmanager
async def failing(raised: Sequence[errors.TenureError]) -> AsyncIterator[tuple[RpcServer, Any]]:
    """A server and a channel to it. The request is the number of the error that the call raises."""

    async def fail(request: bytes, _context: Any) -> bytes:
        raise raised[int(request)]

    handler = grpc.method_handlers_generic_handler("t.Fail", {"Now": grpc.unary_unary_rpc_method_handler(fail)})
    server = RpcServer("127.0.0.1:0")
    server.add("t.Fail", handler, lambda one, to: to.add_generic_rpc_handlers((one,)))
    async with server, open_channel(server.address) as channel:
        yield server, channel.unary_unary("/t.Fail/Now")


async def test_an_error_survives_a_call_and_a_frame() -> None:
    raised = list(examples())
    async with failing(raised) as (server, call):
        for number, error in enumerate(raised):
            with pytest.raises(errors.TenureError) as caught:
                await call(b"%d" % number, timeout=CALL_SECONDS)
            with pytest.raises(errors.TenureError) as in_process:
                await server.in_process(CALL_SECONDS).unary_unary("/t.Fail/Now", bytes, bytes)(b"%d" % number)
            assert_same(caught.value, error)
            assert_same(in_process.value, error)
            assert_same(from_plain(*to_plain(error)), error)


MAX_OF_ALL = (
    errors.InvalidRequest(
        "€" * 100_000,
        violations=[(f"labels['{'€' * 5000}']", "€" * 5000)] * 3000,
        reason="MORE_PRECISE",
        metadata={"task": "€" * 5000, "call": "€" * 5000},
    ),
    errors.LimitReached("€" * 100_000, retry_after_seconds=3, metadata={"subject": "€" * 5000}),
)


@pytest.mark.parametrize("raised", MAX_OF_ALL, ids=lambda error: type(error).__name__)
async def test_an_error_of_any_size_arrives_with_its_reason(raised: Any) -> None:
    """gRPC refuses trailers above a limit, some of them already above half of it: so it is done often."""
    async with failing([raised]) as (_, call):
        for _ in range(100):
            with pytest.raises(type(raised)) as caught:
                await call(b"0", timeout=CALL_SECONDS)
            assert caught.value.reason == raised.reason
            assert caught.value.message.startswith("€€€")
            assert set(caught.value.metadata) == set(raised.metadata)
    in_frame = from_plain(*to_plain(raised))
    assert isinstance(in_frame, type(raised))
    assert (in_frame.reason, in_frame.message) == (caught.value.reason, caught.value.message)


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    response = from_plain(*to_plain(errors.NotFound("half of \ud83d", metadata={"name": "\udc00"})))
    assert response.message == "half of ?"


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(
    kind=st.sampled_from(errors.LEAVES),
    message=words.filter(bool),
    reason=st.from_regex(r"[A-Z][A-Z_]{0,20}", fullmatch=True),
    metadata=st.dictionaries(words.filter(lambda word: not word.startswith("tenure-")), words, max_size=3),
)
def test_no_reason_or_metadata_confuses_the_class(kind: Any, message: Any, reason: Any, metadata: Any) -> None:
    raised = kind(message, reason=reason, metadata=metadata)
    assert_same(from_plain(*to_plain(raised)), raised)


def assert_same(caught: object, raised: errors.TenureError) -> None:
    assert type(caught) is type(raised)
    assert vars(caught) == vars(raised)
