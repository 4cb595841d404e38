"""A ledger's stub that remembers its requests and answers, for the checker to compare with the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from checker import history as seen
from checker.collect import body_hash
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import Fence, split_epoch
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.token import read_claims


class RememberedLedger:
    """`grants` are what a coordinator would have made, `stale_commits` counts refusals by task."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.grants: list[seen.Grant] = []
        self.operations: list[seen.Operation] = []
        self.stale_commits: Counter[str] = Counter()

    def __getattr__(self, method: str) -> Any:
        return getattr(self._stub, method)

    async def CreateTask(self, request: pb.CreateTaskRequest, **options: Any) -> pb.CreateTaskResponse:
        response: pb.CreateTaskResponse = await self._stub.CreateTask(request, **options)
        self._note_submit(request.request_id, response.task.task_id)
        return response

    async def UndoTask(self, request: tasks_pb.UndoTaskRequest, **options: Any) -> tasks_pb.UndoTaskResponse:
        response: tasks_pb.UndoTaskResponse = await self._stub.UndoTask(request, **options)
        self._note_submit(request.request_id, response.task.task_id)
        return response

    def _note_submit(self, request_id: str, task_id: str) -> None:
        submitted = seen.Operation(
            client="submitter",
            method=seen.Method.SUBMIT,
            answer=seen.OperationResult.OK,
            request_id=request_id,
            task_id=task_id,
        )
        self.operations.append(submitted)

    async def RegisterGrants(self, request: pb.RegisterGrantsRequest, **options: Any) -> pb.RegisterGrantsResponse:
        response: pb.RegisterGrantsResponse = await self._stub.RegisterGrants(request, **options)
        self.grants += [_granted(each) for each in request.grants if each.claim_id in response.claim_ids]
        return response

    async def AppendForeign(self, request: pb.AppendForeignRequest, **options: Any) -> pb.AppendForeignResponse:
        response: pb.AppendForeignResponse = await self._stub.AppendForeign(request, **options)
        cancelled = seen.Operation(
            client=request.actor,
            method=seen.Method.CANCEL,
            answer=seen.OperationResult.OK,
            request_id=request.request_id,
            task_id=request.task_id,
            sequence=response.task.sequence,
        )
        self.operations.append(cancelled)
        return response

    async def Commit(self, request: pb.CommitRequest, **options: Any) -> pb.CommitResponse:
        claims = read_claims(request.token)
        try:
            response: pb.CommitResponse = await self._stub.Commit(request, **options)
        except StaleEpoch:
            self.stale_commits[claims.task_id] += 1
            raise
        committed = seen.Operation(
            client=claims.holder,
            method=seen.Method.COMMIT,
            answer=seen.OperationResult.OK,
            request_id=request.commit_id,
            task_id=claims.task_id,
            sequence=response.sequence,
            fence=Fence(claims.epoch, claims.claim_id),
            body_hashes=tuple(body_hash(entry.body) for entry in request.entries),
        )
        self.operations.append(committed)
        return response


def without_overlap(grants: list[seen.Grant]) -> tuple[seen.Grant, ...]:
    """As etcd would have had them: each was gone before the next one of its task was made."""
    kept: list[seen.Grant] = []
    for index, grant in enumerate(grants):
        after = next((later for later in grants[index + 1 :] if later.task_id == grant.task_id), None)
        gone = None if after is None else after.created_revision - 1
        kept.append(replace(grant, deleted_revision=gone))
    return tuple(kept)


def _granted(grant: pb.RegisterGrantsRequest.Grant) -> seen.Grant:
    generation, revision = split_epoch(grant.epoch)
    return seen.Grant(task_id=grant.task_id, claim_id=grant.claim_id, generation=generation, created_revision=revision)
