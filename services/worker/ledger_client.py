"""The worker's client of the checkpoint service: Open reads a stream of pages, commits travel in frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from services.worker.frame_client import FrameClient, FrameShape, Tagged
from tenure.domain.entries import Entry
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.usage_reports import UsageReport
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc as grpc_pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import token_pb2
from tenure.wire.checkpoint_service import REPORT_TIMEOUT_SECONDS, usage_report_to_wire
from tenure.wire.ledger import read_entries
from tenure.wire.opened import LONG_OPENS, OPEN_SECONDS, OpenStream, Take

COMMIT_TIMEOUT_SECONDS: Final = 10.0
LIST_TIMEOUT_SECONDS: Final = 30.0
LIST_PAGE: Final = 1000


class LedgerClient:
    """Raises domain errors: Fenced when the claim is stale, TryLater when a later try may succeed.

    `joins_model_calls`: this worker joins the call of an attempt that outlived its former owner.
    """

    def __init__(self, channel: TenureChannel, *, joins_model_calls: bool = False) -> None:
        self._joins_model_calls = joins_model_calls
        self._stub: Any = grpc_pb.CheckpointServiceStub(channel)
        shape = FrameShape("checkpoint", channel, self._stub.CommitStream, build_frame, _events)
        self._frames = FrameClient(shape)
        self._long_opens = asyncio.Semaphore(LONG_OPENS)

    async def run(self) -> None:
        """Keeps the commit stream open, as a duty."""
        await self._frames.run()

    @property
    def in_reach(self) -> bool:
        """False while the commit stream is broken and no connection is ready."""
        return self._frames.in_reach

    def open(self, token: token_pb2.FencingToken, take: Take) -> OpenStream:
        """Returns the stream that opens the task and passes its history on. A repeat under the same claim is safe.

        Its `read` raises WrongState when the task cannot be opened.
        """

        def start(after: int) -> Any:
            request = pb.OpenRequest(token=token, joins_model_calls=self._joins_model_calls, after_sequence=after)
            return self._stub.Open(request, timeout=OPEN_SECONDS)

        return OpenStream(start, take, self._long_opens)

    async def commit(
        self, request: pb.CommitRequest, timeout_seconds: float = COMMIT_TIMEOUT_SECONDS
    ) -> pb.CommitResponse:
        """Commits; the commit is durable when this returns.

        After Unavailable its outcome is unknown: send the same request again.
        """
        answer: asyncio.Future[pb.TaggedCommitResult] = asyncio.get_running_loop().create_future()
        tag = self._frames.send(request, partial(_settle, answer))
        late = "the ledger did not answer a commit"
        result: pb.TaggedCommitResult = await self._frames.last_event(tag, answer, timeout_seconds, late)
        return result.response

    async def entries_after(self, task_id: str, sequence: int) -> tuple[list[Entry], bool]:
        """Returns a page of the entries after a sequence, and whether more follow."""
        request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, after_sequence=sequence, page_size=LIST_PAGE)
        page = await self._stub.ListTaskEntries(request, timeout=LIST_TIMEOUT_SECONDS)
        return read_entries(page.entries), page.more

    async def report_usage(self, report: UsageReport) -> None:
        """Reports the usage of a call that the ledger settled as lost. A stale token is enough. A repeat is safe."""
        await self._stub.ReportUsage(usage_report_to_wire(report), timeout=REPORT_TIMEOUT_SECONDS)


def _settle(answer: asyncio.Future[pb.TaggedCommitResult], result: pb.TaggedCommitResult) -> None:
    if not answer.done():
        answer.set_result(result)


def build_frame(batch: list[Tagged]) -> pb.CommitStreamRequest:
    return pb.CommitStreamRequest(commits=[pb.TaggedCommit(tag=tag, commit=commit) for tag, commit in batch])


def _events(frame: pb.CommitStreamResponse) -> Iterator[Tagged]:
    return ((result.tag, result) for result in frame.results)
