"""Coordinators as processes over a real etcd and a real ledger, and a small scripted worker that speaks to them.

replica = await fleet.coordinator()
worker = await fleet.worker(replica, slots=2)
task_id = await fleet.submit()
grant = await worker.next_grant()
await worker.open(grant)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.checkpoint.queries import MIGRATIONS
from tenure.dev.etcd_process import EtcdProcess
from tenure.domain.errors import TenureError
from tenure.runtime.etcd.client import EtcdClient
from tenure.runtime.rpc_channel import open_channel
from tenure.runtime.signing import write_key_pair
from tenure.runtime.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.wire.token import read_claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPOSITORY = Path(__file__).parents[1]
PATIENCE_SECONDS = 20.0
# Quick, but in the proportions of the defaults.
SETTINGS = {
    "TTL_SECONDS": "3",
    "RENEW_INTERVAL_SECONDS": "0.5",
    "START_TIMEOUT_SECONDS": "2",
    "RECONCILE_INTERVAL_SECONDS": "1",
}


class ServiceProcess:
    """`python -m services.<name>`, from its start to its end."""

    def __init__(self, name: str, settings: dict[str, str], *, failpoints: str = "") -> None:
        self._name = name
        given = {f"TENURE_{name.upper()}_{key}": value for key, value in settings.items()}
        own = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
        self._environment = {**own, **given, "TENURE_FAILPOINTS": failpoints}
        self.address = ""
        self.lines: list[dict[str, Any]] = []
        self._log_grew = asyncio.Event()

    async def start(self) -> ServiceProcess:
        """Returns once it serves."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"services.{self._name}",
            env=self._environment,
            cwd=REPOSITORY,
            stderr=asyncio.subprocess.PIPE,
            limit=1024 * 1024,
        )
        self._reading = asyncio.create_task(self._read_log())
        self.address = (await self.logged("listening"))["address"]
        return self

    async def logged(self, message: str) -> dict[str, Any]:
        """The first line with this message, waited for."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for line in self.lines:
                    if line["message"] == message:
                        return line
                assert not self._reading.done(), f"{self._name} ended:\n{self.log_text()}"
                self._log_grew.clear()
                await self._log_grew.wait()

    def log_text(self) -> str:
        return "\n".join(json.dumps(line) for line in self.lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self._process.returncode is None:
            self._process.terminate()
        return await self.wait()

    async def wait(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            code = await self._process.wait()
            await self._reading
        return code

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"message": line.decode(errors="replace"), "level": "RAW"})
            self._log_grew.set()
        self._log_grew.set()


class ScriptedWorker:
    """One attachment of a worker. Renews by itself until it is frozen; everything else the test says."""

    def __init__(self, address: str, ledger: CheckpointServiceStub, **hello: Any) -> None:
        self.hello = pb.Hello(**hello)
        self.session_id = ""
        self.lost: list[str] = []
        self.held: dict[str, pb.Grant] = {}
        self.progress: dict[str, pb.Progress] = {}
        self.heard: list[pb.SessionResponse] = []
        self.ended_with: BaseException | None = None
        self.named = True
        self._address = address
        self._ledger = ledger
        self._grants: asyncio.Queue[pb.Grant] = asyncio.Queue()
        self._grants_read = 0
        self._heard_more = asyncio.Condition()
        self._frozen = False
        self._tasks: list[asyncio.Task[None]] = []
        self._writing = asyncio.Lock()

    async def attach(self) -> ScriptedWorker:
        """Say Hello and hear Welcome; from then on it renews."""
        self._channel = open_channel(self._address)
        self._call = CoordinatorServiceStub(self._channel).Session()
        await self._write(pb.SessionRequest(hello=self.hello))
        async with asyncio.timeout(PATIENCE_SECONDS):
            welcome = (await self._call.read()).welcome
        self.session_id, self.lost = welcome.session_id, list(welcome.lost_claim_ids)
        interval = welcome.renew_interval.ToTimedelta().total_seconds()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._renew(interval))]
        return self

    async def reattach(self, address: str = "") -> ScriptedWorker:
        """The same worker over another stream, with what it holds."""
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.session_id = self.session_id
        hello.ClearField("holdings")
        hello.holdings.extend(self._holdings())
        other = ScriptedWorker(address or self._address, self._ledger)
        other.hello, other.held, other.progress = hello, dict(self.held), dict(self.progress)
        return await other.attach()

    def freeze(self) -> None:
        """It stops renewing; its stream stays."""
        self._frozen = True

    async def break_off(self) -> None:
        """Its stream breaks, as when it is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()
        await self._channel.close()

    async def close(self) -> None:
        """The stream ends in order."""
        await self._call.done_writing()

    async def next_grant(self, within_seconds: float = PATIENCE_SECONDS) -> pb.Grant:
        async with asyncio.timeout(within_seconds):
            return await self._grants.get()

    async def next_grants(self, count: int) -> list[pb.Grant]:
        return [await self.next_grant() for _ in range(count)]

    @property
    def grants_waiting(self) -> int:
        return self._grants.qsize()

    async def hears(self, kind: str, within_seconds: float = PATIENCE_SECONDS) -> Any:
        """The first message of a kind, waited for."""

        def found() -> list[Any]:
            return [getattr(each, kind) for each in self.heard if each.WhichOneof("message") == kind]

        async with asyncio.timeout(within_seconds), self._heard_more:
            await self._heard_more.wait_for(lambda: found() or self.ended_with is not None)
        assert found(), f"the stream ended with {self.ended_with!r}"
        return found()[0]

    async def ends(self, within_seconds: float = PATIENCE_SECONDS) -> BaseException:
        """How the stream ended, waited for."""
        async with asyncio.timeout(within_seconds), self._heard_more:
            await self._heard_more.wait_for(lambda: self.ended_with is not None)
        assert self.ended_with is not None
        return self.ended_with

    async def open(self, grant: pb.Grant) -> ledger_pb.OpenHeader:
        header = ledger_pb.OpenHeader()
        async for part in self._ledger.Open(ledger_pb.OpenRequest(token=grant.token), timeout=10.0):
            if part.HasField("header"):
                header = part.header
        return header

    async def commit(self, grant: pb.Grant, number: int, **content: Any) -> ledger_pb.CommitResponse:
        request = ledger_pb.CommitRequest(
            token=grant.token, commit_id=str(uuid.uuid4()), commit_number=number, **content
        )
        return await self._ledger.Commit(request, timeout=10.0)

    async def succeed(self, grant: pb.Grant) -> None:
        """Open, close out and release: a whole task."""
        header = await self.open(grant)
        ended = ledger_pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
        await self.commit(grant, header.next_commit_number, transition=ended)
        await self.release(grant, "CLOSED")

    async def release(self, grant: pb.Grant, reason: str) -> None:
        self.held.pop(grant.claim_id, None)
        release = pb.Release(task_id=grant.task_id, claim_id=grant.claim_id, reason=reason)
        await self._write(pb.SessionRequest(release=release))

    async def tell_slots(self, free_slots: int) -> None:
        slots = pb.Slots(free_slots=free_slots, grants_read=self._grants_read)
        self.hello.free_slots = free_slots
        await self._write(pb.SessionRequest(slots=slots))

    async def drain(self) -> None:
        await self._write(pb.SessionRequest(drain=pb.Drain()))

    async def _write(self, request: pb.SessionRequest) -> None:
        async with self._writing:
            await self._call.write(request)

    def _holdings(self) -> list[pb.Holding]:
        if not self.named:
            return []
        return [
            pb.Holding(task_id=grant.task_id, claim_id=claim_id, progress=self.progress.get(claim_id))
            for claim_id, grant in self.held.items()
        ]

    async def _renew(self, interval_seconds: float) -> None:
        number = 0
        with contextlib.suppress(TenureError, PeerFailed):
            while not self._frozen:
                number += 1
                free_slots = max(0, self.hello.free_slots - len(self.held))
                renew = pb.Renew(
                    renew_number=number,
                    holdings=self._holdings(),
                    free_slots=free_slots,
                    grants_read=self._grants_read,
                )
                await self._write(pb.SessionRequest(renew=renew))
                await asyncio.sleep(interval_seconds)

    async def _read(self) -> None:
        ended: BaseException = EOFError("in order")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                await self._hear(response)
        except (TenureError, PeerFailed) as error:
            ended = error
        async with self._heard_more:
            self.ended_with = ended
            self._heard_more.notify_all()

    async def _hear(self, response: pb.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "grant":
                self._grants_read += 1
                self.held[response.grant.claim_id] = response.grant
                self._grants.put_nowait(response.grant)
            case "revoke":
                self.held.pop(response.revoke.claim_id, None)
        async with self._heard_more:
            self.heard.append(response)
            self._heard_more.notify_all()


class Fleet:
    """One ledger, one etcd, and the coordinators and workers a test starts on them."""

    def __init__(self, etcd_endpoint: str, dsn: str, directory: Path) -> None:
        self.etcd_endpoint = etcd_endpoint
        self._dsn = dsn
        self.signing_key, self.verifying_keys = directory / "signing.json", directory / "verifying.json"
        self._services: list[ServiceProcess] = []
        self._workers: list[ScriptedWorker] = []

    async def start(self) -> None:
        """The ledger."""
        write_key_pair(self.signing_key, self.verifying_keys, "test-1")
        settings = {
            "LISTEN": "127.0.0.1:0",
            "POSTGRES_DSN": self._dsn,
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
        for service in reversed(self._services):
            await service.kill()
            sys.stdout.write(f"{service.log_text()}\n")  # pytest shows it with a failure

    async def coordinator(self, *, failpoints: str = "", **settings: str) -> ServiceProcess:
        """Another replica. Settings by their names without prefix, in small letters."""
        given = {
            "LISTEN": "127.0.0.1:0",
            "ETCD_ENDPOINTS": self.etcd_endpoint,
            "CHECKPOINT_ADDRESS": self.checkpoint.address,
            "SIGNING_KEY_FILE": str(self.signing_key),
            "VERIFYING_KEYS_FILE": str(self.verifying_keys),
            **SETTINGS,
            **{key.upper(): value for key, value in settings.items()},
        }
        return await self._start(ServiceProcess("coordinator", given, failpoints=failpoints))

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
        return (await self.ledger.CreateTask(request, timeout=10.0)).task.task_id

    async def submit_many(self, count: int) -> set[str]:
        return set(await asyncio.gather(*(self.submit() for _ in range(count))))

    async def task(self, task_id: str) -> task_pb2.Task:
        request = ledger_pb.CheckpointServiceGetTaskRequest(task_id=task_id)
        return (await self.ledger.GetTask(request, timeout=10.0)).task

    async def task_where(self, task_id: str, holds: Callable[[task_pb2.Task], bool]) -> task_pb2.Task:
        """The task once this holds of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(task := await self.task(task_id)):
                await asyncio.sleep(0.05)
        return task

    async def entries(self, task_id: str) -> list[ledger_pb2.Entry]:
        request = ledger_pb.ListEntriesRequest(task_id=task_id)
        return list((await self.ledger.ListEntries(request, timeout=10.0)).entries)

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
        await self.ledger.AppendForeign(request, timeout=10.0)

    async def claims(self, replica: ServiceProcess, task_id: str = "") -> list[pb.Claim]:
        async with open_channel(replica.address) as channel:
            request = pb.CoordinatorServiceListClaimsRequest(task_id=task_id)
            return list((await CoordinatorServiceStub(channel).ListClaims(request, timeout=10.0)).claims)

    async def workers(self, replica: ServiceProcess) -> list[pb.Worker]:
        async with open_channel(replica.address) as channel:
            request = pb.CoordinatorServiceListWorkersRequest()
            return list((await CoordinatorServiceStub(channel).ListWorkers(request, timeout=10.0)).workers)

    async def _start(self, service: ServiceProcess) -> ServiceProcess:
        self._services.append(service)
        return await service.start()


def epoch_of(token: token_pb2.FencingToken) -> int:
    return read_claims(token).epoch


async def make_fleet(etcd: EtcdProcess, dsn: str, directory: Path) -> Fleet:
    async with EtcdClient([etcd.endpoint]) as client:
        await client.delete_prefix(b"/tenure/")
    fleet = Fleet(etcd.endpoint, dsn, directory)
    await fleet.start()
    return fleet


@pytest.fixture
async def fleet(etcd_process: EtcdProcess, fresh_database: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A ledger of the test's own, over the session's etcd emptied of what Tenure keeps in it."""
    made = await make_fleet(etcd_process, await fresh_database(MIGRATIONS), tmp_path)
    yield made
    await made.aclose()


@pytest.fixture
async def own_fleet(own_etcd: EtcdProcess, fresh_database: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """The same over an etcd of the test's own (`own_etcd`), to be paused, killed and replaced."""
    made = await make_fleet(own_etcd, await fresh_database(MIGRATIONS), tmp_path)
    yield made
    await made.aclose()
