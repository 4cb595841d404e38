"""Coordinators as processes over a real etcd and a real ledger, and a small scripted worker that speaks to them.

replica = await fleet.coordinator()
worker = await fleet.worker(replica, slots=2)
task_id = await fleet.submit()
grant = await worker.next_grant()
await worker.open(grant)
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devstack.etcd import EtcdProcess
from services.checkpoint.queries import MIGRATIONS
from services.coordinator.etcd.client import EtcdClient
from tenure.domain.errors import TenureError
from tenure.domain.fencing import Claims
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import write_key_pair
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import lease_service_pb2 as lease_pb
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.wire.token import read_claims
from tests.support.fix_etcd import own_prefix
from tests.support.fix_tools import Owner
from tests.support.patience import AGAIN, CALL_SECONDS, LONG_LIFE_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.scripted_worker import ScriptedWorker
from tests.support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# Quick in what is waited for, and patient with those who live: a busy machine lets no lease run out by itself.
SETTINGS = {
    "TTL_SECONDS": str(LONG_LIFE_SECONDS),
    "RENEW_INTERVAL_SECONDS": "0.5",
    "START_TIMEOUT_SECONDS": "15",
    "RECONCILE_INTERVAL_SECONDS": "1",
}
SHORT_LIFE = {"ttl_seconds": str(SHORT_LIFE_SECONDS), "start_timeout_seconds": str(SHORT_LIFE_SECONDS)}
"""For the tests that wait until a lease has run out, or until a claim was not named for too long."""
WAITED_FOR = str(SHORT_LIFE_SECONDS)
"""`start_timeout_seconds` where it has to pass before another worker gets the task, who then has so long to name it."""


USUAL_PREFIX = "/tenure/"


class Fleet:
    """One ledger, one etcd, and the coordinators and workers a test starts on them."""

    def __init__(self, etcd_endpoint: str, dsn: str, directory: Path, key_prefix: str = USUAL_PREFIX) -> None:
        self.etcd_endpoint, self.key_prefix = etcd_endpoint, key_prefix
        self.dsn = dsn
        self.signing_key, self.verifying_keys = directory / "signing.json", directory / "verifying.json"
        self.services: list[ServiceProcess] = []
        self._workers: list[ScriptedWorker] = []

    async def start(self) -> None:
        """The ledger."""
        write_key_pair(self.signing_key, self.verifying_keys, "test-1")
        settings = {
            "LISTEN": "127.0.0.1:0",
            "POSTGRES_DSN": self.dsn,
            "VERIFYING_KEYS_FILE": str(self.verifying_keys),
            "ALLOW_UNSAFE_POSTGRES": "true",
            "SWEEP_INTERVAL_SECONDS": "0.2",
        }
        self.checkpoint = await self._start(ServiceProcess("checkpoint", settings))
        self._channel = open_channel(self.checkpoint.address)
        self.ledger = CheckpointServiceStub(self._channel)

    async def aclose(self) -> None:
        for worker in self._workers:
            await worker.break_off()
        await self._channel.close()
        for service in reversed(self.services):
            await service.kill()
            sys.stdout.write(f"{service.log_text()}\n")  # pytest shows it with a failure

    async def coordinator(self, *, failpoints: str = "", mutation: str = "", **settings: str) -> ServiceProcess:
        """Another replica. Settings by their names without prefix, in small letters."""
        given = {
            "LISTEN": "127.0.0.1:0",
            "ETCD_ENDPOINTS": self.etcd_endpoint,
            "ETCD_KEY_PREFIX": self.key_prefix,
            "CHECKPOINT_ADDRESS": self.checkpoint.address,
            "SIGNING_KEY_FILE": str(self.signing_key),
            "VERIFYING_KEYS_FILE": str(self.verifying_keys),
            **SETTINGS,
            **{key.upper(): value for key, value in settings.items()},
        }
        return await self._start(ServiceProcess("coordinator", given, failpoints=failpoints, mutation=mutation))

    def etcd(self) -> EtcdClient:
        """A client for the keys of this fleet, to be closed."""
        endpoints = self.etcd_endpoint.split(",")
        return EtcdClient(endpoints, namespace=self.key_prefix.encode(), timeout_seconds=CALL_SECONDS)

    async def worker(
        self, replica: ServiceProcess, *, slots: int = 1, worker_id: str = "", **hello: Any
    ) -> ScriptedWorker:
        """A worker attached to this replica, as soon as it takes sessions."""
        name = worker_id or f"worker-{len(self._workers) + 1}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                worker = ScriptedWorker(replica.address, self.ledger, worker_id=name, free_slots=slots, **hello)
                try:
                    await worker.attach()
                except TenureError:  # the replica has just started: its generation is being settled
                    await worker.break_off()
                    await asyncio.sleep(0.05)
                    continue
                return self.keep(worker)

    def keep(self, worker: ScriptedWorker) -> ScriptedWorker:
        """End it with the test."""
        self._workers.append(worker)
        return worker

    async def submit(self, **spec: Any) -> str:
        """A queued task; its id."""
        request = ledger_pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="go", **spec))
        created = await retrying(lambda: self.ledger.CreateTask(request, timeout=CALL_SECONDS), AGAIN)
        return created.task.task_id

    async def submit_many(self, count: int) -> set[str]:
        return set(await asyncio.gather(*(self.submit() for _ in range(count))))

    async def task(self, task_id: str) -> task_pb2.Task:
        request = tasks_pb.GetTaskRequest(task_id=task_id)
        return (await self.ledger.GetTask(request, timeout=CALL_SECONDS)).task

    async def task_where(self, task_id: str, holds: Callable[[task_pb2.Task], bool]) -> task_pb2.Task:
        """The task once this holds of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(task := await self.task(task_id)):
                await asyncio.sleep(0.05)
        return task

    async def entries(self, task_id: str) -> list[ledger_pb2.Entry]:
        entries: list[ledger_pb2.Entry] = []
        while True:
            request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, after_sequence=len(entries))
            page = await self.ledger.ListTaskEntries(request, timeout=CALL_SECONDS)
            entries.extend(page.entries)
            if not page.more:
                return entries

    async def transitions(self, task_id: str) -> list[ledger_pb2.StateTransition]:
        entries = await self.entries(task_id)
        return [entry.body.transition for entry in entries if entry.body.HasField("transition")]

    async def cancel(self, task_id: str) -> None:
        request = ledger_pb.AppendForeignRequest(
            task_id=task_id,
            request_id=str(uuid.uuid4()),
            actor="tester",
            cancel_request=ledger_pb2.CancelRequest(reason="enough"),
        )
        await self.ledger.AppendForeign(request, timeout=CALL_SECONDS)

    async def interrupt(self, task_id: str) -> None:
        message = ledger_pb2.UserMessage(text="stop", interrupt=True)
        request = ledger_pb.AppendForeignRequest(
            task_id=task_id, request_id=str(uuid.uuid4()), actor="tester", user_message=message
        )
        await self.ledger.AppendForeign(request, timeout=CALL_SECONDS)

    async def requeue_by_operator(self, task_id: str) -> None:
        operator_request = ledger_pb2.OperatorRequest(reason="go on", requeue=ledger_pb2.OperatorRequest.Requeue())
        request = ledger_pb.AppendForeignRequest(
            task_id=task_id, request_id=str(uuid.uuid4()), actor="operator", operator_request=operator_request
        )
        await self.ledger.AppendForeign(request, timeout=CALL_SECONDS)

    async def claims(self, replica: ServiceProcess, task_id: str = "") -> list[admin_pb.Claim]:
        async with open_channel(replica.address) as channel:
            request = admin_pb.ListClaimsRequest(task_id=task_id)
            return list((await CoordinatorServiceStub(channel).ListClaims(request, timeout=CALL_SECONDS)).claims)

    async def workers(self, replica: ServiceProcess) -> list[admin_pb.Worker]:
        async with open_channel(replica.address) as channel:
            request = admin_pb.ListWorkersRequest()
            return list((await CoordinatorServiceStub(channel).ListWorkers(request, timeout=CALL_SECONDS)).workers)

    async def signing_keys(self, replica: ServiceProcess) -> list[lease_pb.SigningKey]:
        async with open_channel(replica.address) as channel:
            request = lease_pb.ListSigningKeysRequest()
            return list((await LeaseServiceStub(channel).ListSigningKeys(request, timeout=CALL_SECONDS)).keys)

    async def _start(self, service: ServiceProcess) -> ServiceProcess:
        self.services.append(service)
        return await service.start()


def epoch_of(token: token_pb2.FencingToken) -> int:
    return read_claims(token).epoch


async def make_fleet(etcd: EtcdProcess, dsn: str, directory: Path, key_prefix: str = USUAL_PREFIX) -> Fleet:
    fleet = Fleet(etcd.endpoint, dsn, directory, key_prefix)
    await fleet.start()
    return fleet


@pytest.fixture
async def fleet(etcd_process: EtcdProcess, fresh_database: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A ledger of the test's own, over the shared etcd with a prefix of the test's own."""
    made = await make_fleet(etcd_process, await fresh_database(MIGRATIONS), tmp_path, own_prefix())
    yield made
    await made.aclose()


@pytest.fixture
async def own_fleet(own_etcd: EtcdProcess, fresh_database: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """The same over an etcd of the test's own (`own_etcd`), to be paused, killed and replaced."""
    made = await make_fleet(own_etcd, await fresh_database(MIGRATIONS), tmp_path)
    yield made
    await made.aclose()


async def outcome_statuses(fleet: Fleet, task_id: str) -> dict[str, Any]:
    entries: list[ledger_pb2.Entry] = await fleet.entries(task_id)
    outcomes = [entry.body.tool_outcome for entry in entries if entry.body.HasField("tool_outcome")]
    return {outcome.call_id: outcome.outcome.status for outcome in outcomes}


def claim_owner(grant: pb.Grant) -> Owner:
    claims: Claims = read_claims(grant.token)
    return Owner(claims.task_id, claims.epoch, grant.token)
