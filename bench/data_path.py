"""Real processes (Postgres, the checkpoint service, the tool service), and tasks whose claims the bench holds."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import uuid_utils

from devstack.options import Layout, StackAddresses, StackOptions, choose_address, environment_of
from devstack.postgres_process import PostgresProcess
from devstack.service_process import ServiceProcess
from devstack.stores import DATABASE, ensure_database, open_postgres
from services.checkpoint.queries import SCHEMA
from services.coordinator.lease_store.claim_keys import MAX_BATCH
from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.domain.fencing import TASK_PREFIX, Claims, compose_epoch
from tenure.runtime.process import Duties
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.security.certificate_files import CertificateFiles, PeerTls
from tenure.runtime.security.signing import Signer
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.token import sign_task_claims

PROCESSES: Final = {Role.WORKER: "worker-1", Role.COORDINATOR: "coordinator", Role.GATEWAY: "gateway"}
"""The processes whose certificates the bench uses."""


class DataPath:
    """Runs Postgres and the services of `kinds` inside its `async with`.

    `web_search` has no search service here, so it answers at once. `tls`: with mutual TLS. `postgres`: a server that
    runs already, in which it creates the database `database`; without it, it starts its own.
    """

    def __init__(
        self,
        folder: Path,
        *kinds: str,
        tls: bool = False,
        postgres: PostgresProcess | None = None,
        database: str = DATABASE,
    ) -> None:
        self.layout, self.tls = Layout(folder), tls
        self.services: dict[str, ServiceProcess] = {}
        self.dsn = ""
        self.pool: Pool
        self._kinds = kinds
        self._postgres, self._database = postgres, database
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.layout.prepare()
        async with AsyncExitStack() as opening:
            options = StackOptions(data_dir=self.layout.data_dir, tls=self.tls)
            if self.tls:
                self.layout.make_certificates(options)
            if self._postgres is None:
                _, self._postgres = await open_postgres(options, self.layout, opening)
            assert self._postgres is not None, "no option names another server"
            await ensure_database(self._postgres.dsn(), self._database)
            self.dsn = self._postgres.dsn(self._database)
            for kind in self._kinds:
                await self._start(kind, options, opening)
            pool = open_pool(self.dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2))
            self.pool = await opening.enter_async_context(pool)
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    @property
    def signer(self) -> Signer:
        return Signer.load(self.layout.signing_key)

    def channel(self, kind: str, role: Role = Role.WORKER) -> TenureChannel:
        """Returns a channel to a service; with TLS, as a process of the role."""
        if not self.tls:
            return open_channel(self.address(kind))
        name = PROCESSES[role]
        folder = self.layout.certificates
        settings = MutualTlsSettings(
            certificate_file=folder / f"{name}.pem", key_file=folder / f"{name}.key.pem", ca_file=folder / "ca.pem"
        )
        return open_channel(self.address(kind), tls=PeerTls(CertificateFiles(settings), Role[kind.upper()]))

    def address(self, kind: str) -> str:
        """Returns the address of a service."""
        return self.services[kind].address

    def pids(self) -> dict[str, int]:
        """Returns the process ids by name. Postgres is the parent of all its processes."""
        assert self._postgres is not None, "it was started"
        assert self._postgres.pid is not None, "it runs"
        return {**{name: service.pid for name, service in self.services.items()}, "Postgres": self._postgres.pid}

    async def _start(self, kind: str, options: StackOptions, opening: AsyncExitStack) -> None:
        address = choose_address(kind, usual=False, avoid={service.address for service in self.services.values()})
        environment = environment_of(kind, kind, address, options, self.layout, StackAddresses(postgres_dsn=self.dsn))
        service = ServiceProcess(kind, f"services.{kind}", address, environment, self.layout.logs / f"{kind}.log")
        self.services[kind] = service
        opening.push_async_callback(service.drain)
        service.start()
        await service.wait_ready()


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
        """Creates tasks, each RUNNING under a claim of the bench.

        Registers the claims as a coordinator does: one request at a time, with all tasks that wait by then.
        """
        limit = asyncio.Semaphore(_AT_ONCE)
        grants: Batcher[str, token_pb2.FencingToken] = Batcher(
            "grants", self._claim, key=str, size=len, limits=BatchLimits(max_items=MAX_BATCH)
        )

        async def one() -> HeldTask:
            async with limit:
                task_id = await self._create(limits)
                return await self._open(task_id, await grants.submit(task_id))

        async with Duties() as duties:
            duties.start("grants", grants.run)
            return list(await asyncio.gather(*(one() for _ in range(count))))

    async def _claim(self, task_ids: Sequence[str]) -> list[token_pb2.FencingToken]:
        """Registers grants with newer epochs than all before, and returns their tokens. The claims are not opened."""
        claims = []
        for task_id in task_ids:
            self._revision += 1
            epoch = compose_epoch(GENERATION, self._revision)
            resource, claim_id = f"{TASK_PREFIX}{task_id}", str(uuid.uuid4())
            claims.append(Claims(resource, DEFAULT_TENANT, epoch, claim_id, **self._claims))
        grants = [
            pb.RegisterGrantsRequest.Grant(task_id=each.task_id, epoch=each.epoch, claim_id=each.claim_id)
            for each in claims
        ]
        await self._coordinator.RegisterGrants(pb.RegisterGrantsRequest(grants=grants), timeout=_TIMEOUT_SECONDS)
        now = datetime.now(UTC)
        return [sign_task_claims(self._signer, each, now) for each in claims]

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
