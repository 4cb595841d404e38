"""Tasks whose claims the bench holds: it creates, grants and opens them as a coordinator and a worker do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import uuid_utils

from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import TASK_PREFIX, Claims, compose_epoch
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc_client import TenureChannel
from tenure.runtime.signing import Signer
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.token import sign_task_claims

HOLDER: Final = "bench"
GENERATION: Final = 1
_TIMEOUT_SECONDS: Final = 30.0
_AT_ONCE: Final = 16


@dataclass(slots=True)
class HeldTask:
    """A held task: its claim, and the numbers of its next commit."""

    task_id: str
    token: token_pb2.FencingToken
    sequence: int
    commit_number: int = 1
    step: int = 1

    def commit(
        self,
        entries: Sequence[ledger_pb2.NewEntry],
        reserve: pb.Reserve | None = None,
        transition: pb.Transition | None = None,
    ) -> pb.CommitRequest:
        """Returns the request of the next commit."""
        return pb.CommitRequest(
            token=self.token,
            commit_id=str(uuid.uuid4()),
            commit_number=self.commit_number,
            known_sequence=self.sequence,
            entries=entries,
            reserve=reserve,
            transition=transition,
        )

    def acknowledged(self, response: pb.CommitResponse) -> None:
        """Advances the numbers after the commit is durable."""
        self.commit_number += 1
        self.sequence = response.sequence


class TaskMaker:
    """Creates and claims tasks. Each claim has a greater epoch, as with etcd's revisions.

    `gateway`, `coordinator`: channels with the certificates of these roles, where the ledger demands them. `claims`:
    fields of all tokens.
    """

    def __init__(
        self,
        channel: TenureChannel,
        signer: Signer,
        *,
        gateway: TenureChannel | None = None,
        coordinator: TenureChannel | None = None,
        **claims: Any,
    ) -> None:
        self._stub: Any = CheckpointServiceStub(channel)
        self._gateway: Any = CheckpointServiceStub(gateway or channel)
        self._coordinator: Any = CheckpointServiceStub(coordinator or channel)
        self._signer, self._claims = signer, {"holder": HOLDER, "installation": DEFAULT_INSTALLATION, **claims}
        self._revision = 0

    async def held(self, count: int, limits: task_pb2.Limits | None = None) -> list[HeldTask]:
        """Creates tasks, each RUNNING under a claim of the bench."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one() -> HeldTask:
            async with limit:
                task_id = await self._create(limits)
                return await self._open(task_id, await self.claim(task_id))

        return list(await asyncio.gather(*(one() for _ in range(count))))

    async def claim(self, task_id: str) -> token_pb2.FencingToken:
        """Registers a grant with a newer epoch than all before, and returns its token. The claim is not opened."""
        self._revision += 1
        claims = Claims(
            resource=f"{TASK_PREFIX}{task_id}",
            tenant=DEFAULT_TENANT,
            epoch=compose_epoch(GENERATION, self._revision),
            claim_id=str(uuid.uuid4()),
            **self._claims,
        )
        grant = pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=claims.epoch, claim_id=claims.claim_id)
        await self._coordinator.RegisterGrants(pb.RegisterGrantsRequest(grants=[grant]), timeout=_TIMEOUT_SECONDS)
        return sign_task_claims(self._signer, claims, datetime.now(UTC))

    async def _create(self, limits: task_pb2.Limits | None) -> str:
        # The default cap in money would end the measurement; a model without a price has none.
        agent = task_pb2.AgentSpec(model="bench-null")
        spec = task_pb2.TaskSpec(goal="measure", agent=agent, limits=limits)
        request = pb.CreateTaskRequest(request_id=str(uuid_utils.uuid7()), spec=spec)
        task_id: str = (await self._gateway.CreateTask(request, timeout=_TIMEOUT_SECONDS)).task.task_id
        return task_id

    async def _open(self, task_id: str, token: token_pb2.FencingToken) -> HeldTask:
        parts = [part async for part in self._stub.Open(pb.OpenRequest(token=token), timeout=_TIMEOUT_SECONDS)]
        header = parts[0].header
        return HeldTask(task_id, token, header.task.sequence, header.next_commit_number)
