"""Streams of frames: each request of each frame is held against the caller's certificate, not only the first."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from tenure.domain.access import Role
from tenure.runtime.security.signing import Signer
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import tool_service_pb2 as tools
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.security.access_table import authority_of, issued, tenure_channel
from tests.security.guarded import Guarded
from tests.security.test_matrix_tokens import Forger, Token, claims_of, commit, execute
from tests.support.patience import CALL_SECONDS

OTHERS_TAGS: Final = (2, 3)


def commit_frames(own: Token, other: Token) -> list[ledger.CommitStreamRequest]:
    """A frame with a commit of the caller's own and one of another holder, and a second frame with another one."""
    frames = [[(1, own), (2, other)], [(3, other)]]
    return [
        ledger.CommitStreamRequest(commits=[ledger.TaggedCommit(tag=tag, commit=commit(token)) for tag, token in frame])
        for frame in frames
    ]


def execute_frames(own: Token, other: Token) -> list[tools.ExecuteStreamRequest]:
    """The same with calls."""
    frames = [[(1, own), (2, other)], [(3, other)]]
    return [
        tools.ExecuteStreamRequest(calls=[tools.TaggedExecute(tag=tag, call=execute(token)) for tag, token in frame])
        for frame in frames
    ]


async def refusals_by_tag(stream: Any) -> dict[int, str]:
    """The reasons of the refused requests of a stream of frames."""
    answers = [each async for answer in stream for each in (getattr(answer, "results", None) or answer.events)]
    return {each.tag: each.refusal.reason for each in answers if each.HasField("refusal")}


async def test_each_request_of_a_stream_needs_the_callers_token(guarded: Guarded, tmp_path: Path) -> None:
    forger = Forger(signer := Signer.load(guarded.stack.layout.signing_key), signer)
    own = forger.own(claims_of("stranger"))
    other = forger.own(claims_of("worker-1"))
    tls = issued(tmp_path, authority_of(guarded.stack), Role.WORKER, guarded.ca_file, name="stranger")
    async with AsyncExitStack() as opened:
        services = guarded.stack.services
        checkpoint = await opened.enter_async_context(tenure_channel(services["checkpoint"], tls))
        tool_service = await opened.enter_async_context(tenure_channel(services["tools"], tls))
        commits = CheckpointServiceStub(checkpoint).CommitStream(iter(commit_frames(own, other)), timeout=CALL_SECONDS)
        calls = ToolServiceStub(tool_service).ExecuteStream(iter(execute_frames(own, other)), timeout=CALL_SECONDS)
        by_tag = [await refusals_by_tag(commits), await refusals_by_tag(calls)]
    for refusals in by_tag:
        assert {tag: refusals[tag] for tag in OTHERS_TAGS} == dict.fromkeys(OTHERS_TAGS, "OTHER_HOLDER")
        assert refusals.get(1) != "OTHER_HOLDER"
