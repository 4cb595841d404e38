"""Live text comes from the worker that holds the claim, and a session belongs to the identity that opened it.

With mutual TLS, over sockets, against processes with certificates of the same installation.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from devstack import ServiceProcess, Stack
from tenure.domain.access import DEFAULT_INSTALLATION, Role, server_name
from tenure.domain.errors import NotFound, PermissionDenied
from tenure.domain.fencing import Claims, holder_proof
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.tls import ClientTls, MutualTlsSettings
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import worker_service_pb2 as worker_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.worker_service_pb2_grpc import WorkerServiceServicer
from tenure.wire.access import access_rules
from tenure.wire.token import read_claims
from tests.support.fix_checkpoint import reserve
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

FINISHED: Final = ledger_pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
pytestmark = pytest.mark.asyncio(loop_scope="package")


@dataclass
class Speaker(WorkerServiceServicer):
    """A worker's service that answers every watch with its proof and its text."""

    text: str
    proof: bytes
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def WatchLive(self, request: Any, _context: Any) -> AsyncIterator[worker_pb.WatchLiveResponse]:
        self.called.set()
        yield worker_pb.WatchLiveResponse(holder_proof=self.proof)
        delta = live_pb2.Delta(epoch=request.epoch, step=1, attempt_number=1, text=self.text)
        yield worker_pb.WatchLiveResponse(delta=delta)
        await asyncio.Event().wait()


class Installation:
    """A stack with mutual TLS, and what a test does with it under certificates of its own."""

    def __init__(self, stack: Stack, folder: Path, opened: AsyncExitStack) -> None:
        self._stack, self._folder, self._opened = stack, folder, opened
        self.coordinators = stack.replicas("coordinator")

    def certificate(self, role: Role, name: str) -> ClientTls:
        """The files of a process of this role, for connections to other services."""
        certificates = self._stack.layout.certificates
        authority = Authority.load(certificates / "ca.pem", certificates / "ca.key.pem")
        certificate, key = authority.issue(role, name, DEFAULT_INSTALLATION, days=1)
        write_certificate(self._folder, name, certificate, key)
        return ClientTls(certificates / "ca.pem", self._folder / f"{name}.pem", self._folder / f"{name}.key.pem")

    async def channel(self, service: str, tls: ClientTls) -> Any:
        process = self._stack.services[service]
        channel = open_channel(process.address, tls=towards(service, tls), default_timeout_seconds=CALL_SECONDS)
        return await self._opened.enter_async_context(channel)

    async def worker(self, name: str, worker_id: str, replica: ServiceProcess, **hello: Any) -> ScriptedWorker:
        """An attached worker with the certificate of this name."""
        worker = await self.stranger(name, replica, worker_id=worker_id, **hello)
        return await worker.attach()

    async def stranger(self, name: str, replica: ServiceProcess, **hello: Any) -> ScriptedWorker:
        """A worker with the certificate of this name, before its Hello."""
        tls = self.certificate(Role.WORKER, name)
        ledger = CheckpointServiceStub(await self.channel("checkpoint", tls))
        worker = ScriptedWorker(replica.address, ledger, tls=towards("coordinator", tls), **hello)
        self._opened.push_async_callback(worker.break_off)
        return worker

    async def serve(self, name: str, speaker: Speaker) -> str:
        """The address of a worker's service with the certificate of this name."""
        tls = self.certificate(Role.WORKER, name)
        settings = MutualTlsSettings(certificate_file=tls.certificate_file, key_file=tls.key_file, ca_file=tls.ca_file)
        server = RpcServer(
            "127.0.0.1:0", security=Security(access_rules, CertificateFiles(settings)), grace_seconds=0.1
        )
        server.add("tenure.v1.WorkerService", speaker)
        await self._opened.enter_async_context(server)
        return server.address

    async def tasks(self) -> Any:
        """TaskService, for an operator."""
        return TaskServiceStub(await self.channel("gateway", self.certificate(Role.OPERATOR, "someone")))

    async def submit(self, queue: str, **spec: Any) -> str:
        request = api.SubmitTaskRequest(
            request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="go", queue=queue, **spec)
        )
        return str((await (await self.tasks()).SubmitTask(request)).task.task_id)

    async def texts(self, task_id: str) -> AsyncGenerator[str]:
        """The live text that a watcher of the task gets, and "." for each heartbeat, until the task ends."""
        request = api.WatchTaskRequest(task_id=task_id, live=True)
        async for event in (await self.tasks()).WatchTask(request, timeout=PATIENCE_SECONDS):
            if event.HasField("delta"):
                yield event.delta.text
            elif event.HasField("heartbeat"):
                yield "."

    async def live_source(self, claims: Claims, tenant: str = "default") -> coordinator_pb.GetLiveSourceResponse:
        """The answer of a coordinator to a gateway."""
        tls = towards("coordinator", self.certificate(Role.GATEWAY, "front"))
        async with open_channel(self.coordinators[0].address, tls=tls, tenant=tenant) as channel:
            request = coordinator_pb.GetLiveSourceRequest(task_id=claims.task_id, epoch=claims.epoch)
            return await CoordinatorServiceStub(channel).GetLiveSource(request, timeout=CALL_SECONDS)


def towards(service: str, tls: ClientTls) -> ClientTls:
    role = Role(service.partition("-")[0].upper())
    return ClientTls(tls.ca_file, tls.certificate_file, tls.key_file, server_name(DEFAULT_INSTALLATION, role))


@pytest_asyncio.fixture(loop_scope="package")
async def installation(stack: Stack, tmp_path: Path) -> AsyncIterator[Installation]:
    async with AsyncExitStack() as opened:
        yield Installation(stack, tmp_path, opened)


async def test_the_text_of_a_real_worker_reaches_a_watcher(installation: Installation) -> None:
    task_id = await installation.submit("default", agent=task_pb2.AgentSpec(model="sim-slow"))
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(installation.texts(task_id)) as texts:
        heard = [text async for text in texts if text != "."]
    assert "I will take my time" in "".join(heard)


async def test_a_second_worker_with_the_same_id_is_not_heard(installation: Installation) -> None:
    """Both have the certificate of one pool, so both may have the id. The sessions differ."""
    queue, secret, replica = uuid.uuid4().hex, os.urandom(32), installation.coordinators[0]
    forger, speaker = Speaker("forged", os.urandom(32)), Speaker("true", holder_proof(secret))
    forged = {
        "free_slots": 0,
        "live_address": await installation.serve("pool", forger),
        "session_secret": os.urandom(32),
    }
    own_address = await installation.serve("pool", speaker)
    for _ in range(3):
        await installation.worker("pool", "pool-1", replica, **forged)
    owner = await installation.worker(
        "pool", "pool-1", replica, free_slots=1, queues=[queue], live_address=own_address, session_secret=secret
    )
    for _ in range(3):
        await installation.worker("pool", "pool-1", installation.coordinators[1], **forged)
    task_id = await installation.submit(queue)
    grant = await owner.next_grant()
    header = await owner.open(grant)
    await owner.commit(grant, header.next_commit_number, reserve=reserve())
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(installation.texts(task_id)) as texts:
        heard = [await anext(texts)]
        while "true" not in heard or len(heard) < 5:
            heard.append(await anext(texts))
    assert set(heard) <= {"true", "."}
    assert not forger.called.is_set()


@pytest.mark.parametrize("proof", [b"", holder_proof(b"o" * 32)], ids=["no proof", "another proof"])
async def test_another_process_at_the_address_is_not_heard(installation: Installation, proof: bytes) -> None:
    """It has a certificate of the role worker, and the address that the holder of the claim has advertised."""
    queue, forger, replica = uuid.uuid4().hex, Speaker("forged", proof), installation.coordinators[0]
    address = await installation.serve("forger", forger)
    owner = await installation.worker(
        "owner", "owner", replica, free_slots=1, queues=[queue], live_address=address, session_secret=os.urandom(32)
    )
    task_id = await installation.submit(queue)
    grant = await owner.next_grant()
    header = await owner.open(grant)
    await owner.commit(grant, header.next_commit_number, reserve=reserve())
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(installation.texts(task_id)) as texts:
        heard = [await anext(texts)]
        await forger.called.wait()
        heard += [await anext(texts) for _ in range(5)]
        await owner.commit(grant, header.next_commit_number + 1, transition=FINISHED)
        heard += [text async for text in texts]
    assert set(heard) == {"."}


async def test_the_gateway_connects_to_no_other_host(installation: Installation) -> None:
    """The worker advertises an address of another host. The listener there sees no connection."""
    connected = asyncio.Event()
    listener = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.2", 0)
    address = f"127.0.0.2:{listener.sockets[0].getsockname()[1]}"
    queue, replica = uuid.uuid4().hex, installation.coordinators[0]
    async with listener:
        owner = await installation.worker("owner", "owner", replica, free_slots=1, queues=[queue], live_address=address)
        task_id = await installation.submit(queue)
        grant = await owner.next_grant()
        header = await owner.open(grant)
        assert (await installation.live_source(read_claims(grant.token))).address == ""
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(installation.texts(task_id)) as texts:
            heard = [await anext(texts) for _ in range(5)]
            await owner.commit(grant, header.next_commit_number, transition=FINISHED)
            heard += [text async for text in texts]
    assert set(heard) == {"."}
    assert not connected.is_set()


async def test_a_claim_of_another_tenant_has_no_source(installation: Installation) -> None:
    queue = uuid.uuid4().hex
    owner = await installation.worker("owner", "owner", installation.coordinators[0], free_slots=1, queues=[queue])
    await installation.submit(queue)
    claims = read_claims((await owner.next_grant()).token)
    with pytest.raises(NotFound):
        await installation.live_source(claims, tenant="other")


async def refusal_of(worker: ScriptedWorker) -> str:
    with pytest.raises(PermissionDenied) as refused:
        await worker.attach()
    return refused.value.reason


async def takers_of(owner: ScriptedWorker, installation: Installation, replica: ServiceProcess) -> list[ScriptedWorker]:
    """Processes that name the session of another one. Both may have its worker_id; the first has even its secret."""
    takers = [await installation.stranger("pool-1", replica), await installation.stranger("pool", replica)]
    for taker in takers:
        taker.hello.CopyFrom(owner.hello)
        taker.hello.session_id = owner.session_id
    takers[1].hello.session_secret = os.urandom(32)
    return takers


async def test_a_session_belongs_to_the_identity_that_opened_it(installation: Installation) -> None:
    """At both replicas, and after both were restarted: the identity is in etcd."""
    first, second = installation.coordinators
    owner = await installation.worker("pool", "pool-1", first, free_slots=0, session_secret=os.urandom(32))
    for restarts in (False, True):
        for replica in (first, second):
            if restarts:
                await replica.restart()
            for taker in await takers_of(owner, installation, replica):
                assert await refusal_of(taker) == "OTHER_HOLDER"
    again = await owner.reattach(second.address)
    try:
        assert again.session_id == owner.session_id
    finally:
        await again.break_off()
