"""A stack with certificates and a file of pools, and scripted workers that show certificates of their own.

worker = await pooled.worker("acme-1", "acme-1", slots=4)
await pooled.set_pools(acme={"identities": ["acme-1"], "tenants": ["acme"]})
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Role, server_name
from tenure.domain.errors import TenureError, Unavailable, WrongState
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tests.support.lives import LONG_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

CHANGED: Final = "the pools of workers changed"
BROKEN: Final = "the file of pools cannot be used; the former pools stay in use"
Pools = dict[str, dict[str, list[str]]]


class PooledStack:
    """A stack whose coordinators read a file of pools."""

    def __init__(self, stack: Stack, pools_file: Path, folder: Path) -> None:
        self.stack = stack
        self._pools_file, self._folder = pools_file, folder
        certificates = stack.layout.certificates
        self._authority = Authority.load(certificates / "ca.pem", certificates / "ca.key.pem")
        self._workers: list[ScriptedWorker] = []
        self._channels: list[TenureChannel] = []
        self._submitted: dict[str, list[str]] = {}

    def client(self, tenant: str) -> Client:
        """An operator's client that acts for the tenant."""
        folder = self.stack.layout.certificates
        tls = ClientTls(folder / "ca.pem", folder / "operator.pem", folder / "operator.key.pem")
        return Client(self.stack.gateway_address, tenant=tenant, tls=tls)

    async def submit(self, tenant: str, count: int = 1, **fields: Any) -> list[str]:
        """Queued tasks; their ids."""
        async with self.client(tenant) as client:
            request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(**fields))
            task_ids = [(await client.submit("go", request=request)).task_id for _ in range(count)]
        self._submitted.setdefault(tenant, []).extend(task_ids)
        return task_ids

    async def task(self, tenant: str, task_id: str) -> task_pb2.Task:
        async with self.client(tenant) as client:
            return await client.get(task_id)

    async def reasons(self, tenant: str, task_id: str) -> list[str]:
        """The reasons of the task's transitions."""
        async with self.client(tenant) as client:
            entries = [entry async for entry in client.entries(task_id)]
        return [entry.body.transition.reason for entry in entries if entry.body.HasField("transition")]

    async def task_left(self, tenant: str, task_id: str, reason: str) -> None:
        """Waits until the task has a transition with this reason."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while reason not in await self.reasons(tenant, task_id):
                await asyncio.sleep(0.1)

    async def worker(self, certificate: str, worker_id: str = "", *, slots: int = 1, **hello: Any) -> ScriptedWorker:
        """An attached worker with the certificate of this name."""
        tls = self._issued(certificate)
        ledger = CheckpointServiceStub(self._channel("checkpoint", tls))
        coordinator = self.stack.services["coordinator"]
        while True:
            worker = ScriptedWorker(
                coordinator.address,
                ledger,
                tls=_named(tls, Role.COORDINATOR),
                worker_id=worker_id or certificate,
                free_slots=slots,
                **hello,
            )
            try:
                return await self.keep(worker).attach()
            except Unavailable:  # the generation is being settled
                await worker.break_off()
                await asyncio.sleep(0.05)

    async def register_agents(self, certificate: str, *names: str, tenants: Sequence[str] = ()) -> list[str]:
        """Registers functions as the worker with the certificate of this name does. Returns the revisions."""
        stub: Any = CoordinatorServiceStub(self._channel("coordinator", self._issued(certificate)))
        definition = agent_pb.AgentDefinition(kind=agent_pb.AGENT_KIND_FUNCTION)
        agents = [coordinator_pb.WorkerAgent(name=name, definition=definition) for name in names]
        request = coordinator_pb.RegisterWorkerAgentsRequest(
            worker_id=certificate, build="b1", tenants=tenants, agents=agents
        )
        revisions = (await stub.RegisterWorkerAgents(request)).revisions
        return [f"{each.agent}@{each.revision}" for each in revisions]

    async def set_pools(self, **pools: dict[str, list[str]]) -> None:
        """Replaces the file, and waits until the coordinator has taken it."""
        await self._replace_file(json.dumps({"pools": pools}), CHANGED)

    async def break_pools(self, content: str) -> None:
        """Writes a broken file, and waits until the coordinator has noticed."""
        await self._replace_file(content, BROKEN)

    def keep(self, worker: ScriptedWorker) -> ScriptedWorker:
        """End it with the test."""
        self._workers.append(worker)
        return worker

    async def offered(self, task_ids: list[str]) -> list[str]:
        """Those of the tasks that the ledger has offered to a coordinator."""
        statement = b"select task_id::text from ledger.tasks where task_id = any(%s) and offered_until is not null"
        async with await AsyncConnection.connect(self.stack.stores["Postgres"].where) as postgres:
            rows = await (await postgres.execute(statement, ([UUID(each) for each in task_ids],))).fetchall()
        return [task_id for (task_id,) in rows]

    async def leave_all(self) -> None:
        """Ends all workers in order, and then all tasks."""
        for worker in self._workers:
            with contextlib.suppress(TenureError, PeerFailed, asyncio.InvalidStateError):
                await worker.drain()
                await worker.close()
                await worker.ends()
            await worker.break_off()
        self._workers.clear()
        for tenant, task_ids in self._submitted.items():
            async with self.client(tenant) as client:
                for task_id in task_ids:
                    with contextlib.suppress(WrongState):  # it has ended
                        await client.cancel(task_id)
                    await client.wait(task_id, PATIENCE_SECONDS)
        self._submitted.clear()

    async def aclose(self) -> None:
        for worker in self._workers:
            await worker.break_off()
        for channel in self._channels:
            await channel.close()

    async def _replace_file(self, content: str, message: str) -> None:
        if content == self._pools_file.read_text():
            return
        coordinator = self.stack.services["coordinator"]
        before = coordinator.log().count(message)
        fresh = self._pools_file.with_suffix(".new")
        fresh.write_text(content)
        fresh.replace(self._pools_file)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while coordinator.log().count(message) == before:
                await asyncio.sleep(0.1)

    def _issued(self, name: str) -> ClientTls:
        if not (self._folder / f"{name}.pem").exists():
            certificate, key = self._authority.issue(Role.WORKER, name, DEFAULT_INSTALLATION, 1)
            write_certificate(self._folder, name, certificate, key)
        ca_file = self.stack.layout.certificates / "ca.pem"
        return ClientTls(ca_file, self._folder / f"{name}.pem", self._folder / f"{name}.key.pem")

    def _channel(self, kind: str, tls: ClientTls) -> TenureChannel:
        service = self.stack.services[kind]
        named = _named(tls, Role(kind.upper()))
        self._channels.append(open_channel(service.address, tls=named, default_timeout_seconds=CALL_SECONDS))
        return self._channels[-1]


def _named(tls: ClientTls, role: Role) -> ClientTls:
    return replace(tls, server_name=server_name(DEFAULT_INSTALLATION, role))


@asynccontextmanager
async def open_pooled_stack(
    folder: Path, pools: Pools, options: StackOptions, **settings: str
) -> AsyncIterator[PooledStack]:
    """`settings`: those of the coordinator, by their names without prefix, in small letters."""
    pools_file, certificates = folder / "pools.json", folder / "worker-certificates"
    certificates.mkdir()
    pools_file.write_text(json.dumps({"pools": pools}))
    given = {"pools_file": str(pools_file), **settings}
    environment = {f"TENURE_COORDINATOR_{name.upper()}": value for name, value in given.items()}
    merged = {
        "*": LONG_LIFE,
        **options.environment,
        "coordinator": {**options.environment.get("coordinator", {}), **environment},
    }
    async with Stack(replace(options, environment=merged, tls=True)) as stack:
        pooled = PooledStack(stack, pools_file, certificates)
        try:
            yield pooled
        finally:
            await pooled.aclose()
