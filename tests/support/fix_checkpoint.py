"""The checkpoint service for tests: in this process on a free port, or a process of its own that can be killed.

async def test_…(replica: Checkpoint)                # shared by the tests of a module: each has tasks of its own
replica = await checkpoint()                         # over a fresh database
other = await checkpoint(dsn=replica.dsn)            # a second replica over the same
task = await replica.create(goal="…")
owner = await replica.claim(task.task_id)            # granted and opened
await owner.commit([…])
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from edges.notifications.notifier import PeopleNotifier
from services.checkpoint.approvals.issuing import LinkSettings
from services.checkpoint.main import CheckpointSettings, assemble
from services.checkpoint.queries import MIGRATIONS
from services.checkpoint.standby import StandbySettings
from services.checkpoint.traces.settings import TraceSettings
from services.checkpoint.webhooks.sending import WebhookSettings
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import Claims
from tenure.runtime.process import Process
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.security.signing import Signer, write_key_pair
from tenure.runtime.service import CommonSettings
from tenure.runtime.settings import Address, Secret
from tenure.serve import command_line
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc, ledger_pb2, task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.token import sign_task_claims
from tests.support import forked
from tests.support.fix_postgres import databases
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from devstack.postgres_process import PostgresProcess
    from tests.support.fix_postgres import FreshDatabase

TIMEOUT_SECONDS = CALL_SECONDS
_epochs = itertools.count((1 << 40) + 1)
_tenants = itertools.count(1)


@dataclass(slots=True)
class Owner:
    """A claim as its holder sees it: counts commits and knows where the ledger ended."""

    replica: Checkpoint
    token: token_pb2.FencingToken
    claims: Claims
    task: task_pb2.Task
    entries: list[ledger_pb2.Entry]
    next_number: int
    known_sequence: int

    def request(self, *entries: ledger_pb2.NewEntry, **fields: Any) -> pb.CommitRequest:
        """The next commit; `fields` overrides what it would hold."""
        return pb.CommitRequest(
            **{
                "token": self.token,
                "commit_id": str(uuid4()),
                "commit_number": self.next_number,
                "known_sequence": self.known_sequence,
                "entries": entries,
                **fields,
            }
        )

    async def commit(self, *entries: ledger_pb2.NewEntry, **fields: Any) -> pb.CommitResponse:
        """Send the next commit and count on."""
        return await self.send(self.request(*entries, **fields))

    async def send(self, request: pb.CommitRequest) -> pb.CommitResponse:
        response: pb.CommitResponse = await self.replica.stub.Commit(request, timeout=TIMEOUT_SECONDS)
        self.next_number = request.commit_number + 1
        self.known_sequence = response.sequence
        return response

    async def end(
        self, state: task_pb2.TaskState.ValueType = task_pb2.TASK_STATE_SUCCEEDED, result: str = "done"
    ) -> pb.CommitResponse:
        return await self.commit(transition=pb.Transition(to_state=state, reason="FINAL_ANSWER", result=result))


@dataclass
class Checkpoint:
    """A running replica, its database, and the key its tokens are signed with."""

    address: str
    dsn: str
    keys: Path
    channel: TenureChannel
    tenant: str = "default"
    stub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.stub = checkpoint_service_pb2_grpc.CheckpointServiceStub(self.channel)

    @asynccontextmanager
    async def of_tenant(self, tenant: str) -> AsyncIterator[Checkpoint]:
        """The same replica, called by another tenant."""
        async with open_channel(self.address, tenant=tenant) as channel:
            yield replace(self, channel=channel, tenant=tenant)

    async def create(self, request_id: str = "", **spec: Any) -> task_pb2.Task:
        """A queued task."""
        request = pb.CreateTaskRequest(
            request_id=request_id or str(uuid4()), spec=task_pb2.TaskSpec(**{"goal": "do it", **spec})
        )
        response: pb.CreateTaskResponse = await self.stub.CreateTask(request, timeout=TIMEOUT_SECONDS)
        return response.task

    async def get(self, task_id: str) -> task_pb2.Task:
        request = tasks_pb.GetTaskRequest(task_id=task_id)
        response: tasks_pb.GetTaskResponse = await self.stub.GetTask(request, timeout=TIMEOUT_SECONDS)
        return response.task

    def sign(
        self, task_id: str, epoch: int, claim_id: str, holder: str = "worker-1", tenant: str = ""
    ) -> tuple[token_pb2.FencingToken, Claims]:
        """A token, registered or not."""
        claims = Claims(
            f"tasks/{task_id}", tenant or self.tenant, epoch, claim_id, holder, installation=DEFAULT_INSTALLATION
        )
        return sign_task_claims(Signer.load(self.keys / "signing.json"), claims, datetime.now(UTC)), claims

    async def grant(
        self, task_id: str, *, epoch: int = 0, holder: str = "worker-1"
    ) -> tuple[token_pb2.FencingToken, Claims]:
        """A registered claim and its token; epochs grow by themselves."""
        epoch, claim_id = epoch or next(_epochs), str(uuid4())
        grants = [pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=epoch, claim_id=claim_id)]
        answer = await self.stub.RegisterGrants(pb.RegisterGrantsRequest(grants=grants), timeout=TIMEOUT_SECONDS)
        assert list(answer.claim_ids) == [claim_id]
        return self.sign(task_id, epoch, claim_id, holder)

    async def open(self, token: token_pb2.FencingToken, claims: Claims, *, joins: bool = False) -> Owner:
        """Open under a token, and read the whole history."""
        header: pb.OpenHeader | None = None
        entries: list[ledger_pb2.Entry] = []
        async for part in self.stub.Open(pb.OpenRequest(token=token, joins_model_calls=joins), timeout=TIMEOUT_SECONDS):
            if part.HasField("header"):
                header = part.header
            entries.extend(part.page.entries)
        assert header is not None
        return Owner(self, token, claims, header.task, entries, header.next_commit_number, header.task.sequence)

    async def claim(self, task_id: str, holder: str = "worker-1", *, joins: bool = False) -> Owner:
        """Granted and opened."""
        return await self.open(*await self.grant(task_id, holder=holder), joins=joins)

    async def cancel(self, task_id: str, request_id: str = "", reason: str = "enough") -> task_pb2.Task:
        request = pb.AppendForeignRequest(
            task_id=task_id,
            request_id=request_id or str(uuid4()),
            actor="alice",
            cancel_request=ledger_pb2.CancelRequest(reason=reason),
        )
        response: pb.AppendForeignResponse = await self.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
        return response.task

    async def say(self, task_id: str, text: str, request_id: str = "", *, interrupt: bool = False) -> task_pb2.Task:
        request = pb.AppendForeignRequest(
            task_id=task_id,
            request_id=request_id or str(uuid4()),
            actor="alice",
            user_message=ledger_pb2.UserMessage(text=text, interrupt=interrupt),
        )
        response: pb.AppendForeignResponse = await self.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
        return response.task

    async def requeue(self, owner: Owner, reason: str = "LEASE_EXPIRED", output_tokens: int = 0) -> list[str]:
        """`output_tokens`: what the worker reported of its newest model call."""
        task_id = owner.task.task_id
        lost = pb.RequeueLostRequest.Lost(task_id=task_id, claim_id=owner.claims.claim_id, reason=reason)
        if output_tokens:
            attempt = "select model_step, model_attempt from ledger.tasks where task_id = %b::text::uuid"
            [(step, number)] = await self.query(attempt, task_id)
            usage = task_pb2.TokenUsage(output_tokens=output_tokens)
            lost.heard_call.CopyFrom(ledger_pb2.HeardCall(step=step, attempt_number=number, usage=usage))
        answer = await self.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=TIMEOUT_SECONDS)
        return list(answer.task_ids)

    async def entries(self, task_id: str) -> list[ledger_pb2.Entry]:
        """The whole ledger of a task."""
        entries: list[ledger_pb2.Entry] = []
        while True:
            after = entries[-1].sequence if entries else 0
            request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, after_sequence=after)
            page = await self.stub.ListTaskEntries(request, timeout=TIMEOUT_SECONDS)
            entries.extend(page.entries)
            if not page.more:
                return entries

    async def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as postgres:
            cursor = await postgres.execute(statement.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []


async def until_a_session_waits_for_a_lock(replica: Checkpoint, *, sessions: int = 1) -> None:
    """Returns when so many sessions of its database wait for a lock."""
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await replica.query(waiting)) < sessions:
            await asyncio.sleep(0.005)


class CheckpointProcess:
    """The service as a process of its own."""

    def __init__(self, process: forked.Process, replica: Checkpoint, log: asyncio.Task[None]) -> None:
        self.process = process
        self.replica = replica
        self._log = log

    async def wait_until_dead(self) -> int:
        return await self.process.wait()

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()
        await self._log


class MakeCheckpoint(Protocol):
    """Starts a replica in this process, over a fresh database unless given one."""

    async def __call__(
        self,
        *,
        dsn: str = "",
        stopping: asyncio.Event | None = None,
        max_schedules_per_tenant: int = 1000,
        webhook: WebhookSettings | None = None,
        smtp: SmtpSettings | None = None,
        answer_link: LinkSettings | None = None,
        encryption_keys_file: Path | None = None,
        prices_file: Path | None = None,
        default_model: str = "",
        default_max_usd: float = 10.0,
        lower_tier_share: float = 0.05,
        traces: TraceSettings | None = None,
        standby: StandbySettings | None = None,
    ) -> Checkpoint: ...


class MakeCheckpointProcess(Protocol):
    """Starts a replica as a process."""

    async def __call__(
        self, *, dsn: str = "", failpoints: str = "", environment: Mapping[str, str] = MappingProxyType({})
    ) -> CheckpointProcess: ...


@pytest.fixture(scope="session")
def signing_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with signing.json and verifying.json."""
    keys = tmp_path_factory.mktemp("keys")
    write_key_pair(keys / "signing.json", keys / "verifying.json", "test")
    return keys


def pytest_itemcollected(item: pytest.Item) -> None:
    """Runs a test that shares a replica in the loop of its module, where the replica is."""
    if isinstance(item, pytest.Function) and "shared_ledger" in item.fixturenames and iscoroutinefunction(item.obj):
        item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_ledger(
    postgres_server: PostgresProcess, worker_id: str, signing_keys: Path
) -> AsyncIterator[Checkpoint]:
    """One replica and one database for the tests of a module that ask for `replica`."""
    async with (
        databases(postgres_server, worker_id) as fresh_database,
        _served(await fresh_database(MIGRATIONS), signing_keys) as shared,
    ):
        yield shared


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_second_replica(shared_ledger: Checkpoint) -> AsyncIterator[Checkpoint]:
    """Another replica over the same database, for the tests that ask for `other_replica`."""
    async with _served(shared_ledger.dsn, shared_ledger.keys) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def replica(request: pytest.FixtureRequest, shared_ledger: Checkpoint) -> AsyncIterator[Checkpoint]:
    """The replica that the tests of a module share, as a tenant of the test's own: that of its claims at the module's
    other services, if it has any.

    It costs a tenth of a replica of the test's own, which is for tests that stop it or count what all tenants have.
    Async fixtures of a test that asks for it need `loop_scope="module"`, too; `checkpoint` has not.
    """
    has_others = "shared_tool_service" in request.fixturenames
    tenant = request.getfixturevalue("tenant") if has_others else f"tenant-{next(_tenants)}"
    async with shared_ledger.of_tenant(tenant) as view:
        yield view


@pytest_asyncio.fixture(loop_scope="module")
async def other_replica(replica: Checkpoint, shared_second_replica: Checkpoint) -> AsyncIterator[Checkpoint]:
    """A second replica over the same database, as the same tenant."""
    async with shared_second_replica.of_tenant(replica.tenant) as view:
        yield view


@asynccontextmanager
async def _served(dsn: str, keys: Path) -> AsyncIterator[Checkpoint]:
    async with AsyncExitStack() as stack:
        address = await _start_here(stack, dsn, keys, None, {})
        channel = await stack.enter_async_context(open_channel(address))
        yield Checkpoint(address, dsn, keys, channel)


@pytest.fixture
async def checkpoint(fresh_database: FreshDatabase, signing_keys: Path) -> AsyncIterator[MakeCheckpoint]:
    """Makes replicas for this test; they drain at its end."""
    async with AsyncExitStack() as stack:

        async def make(
            *,
            dsn: str = "",
            stopping: asyncio.Event | None = None,
            max_schedules_per_tenant: int = 1000,
            webhook: WebhookSettings | None = None,
            smtp: SmtpSettings | None = None,
            answer_link: LinkSettings | None = None,
            encryption_keys_file: Path | None = None,
            prices_file: Path | None = None,
            default_model: str = "",
            default_max_usd: float = 10.0,
            lower_tier_share: float = 0.05,
            traces: TraceSettings | None = None,
            standby: StandbySettings | None = None,
        ) -> Checkpoint:
            dsn = dsn or await fresh_database(MIGRATIONS)
            changes = {
                "max_schedules_per_tenant": max_schedules_per_tenant,
                "webhook": webhook or WebhookSettings(),
                "smtp": smtp or SmtpSettings(),
                "answer_link": answer_link or LinkSettings(),
                "encryption_keys_file": encryption_keys_file,
                "prices_file": prices_file,
                "default_model": default_model,
                "default_max_usd": default_max_usd,
                "lower_tier_share": lower_tier_share,
                "traces": traces or TraceSettings(),
                "standby": standby or StandbySettings(),
            }
            address = await _start_here(stack, dsn, signing_keys, stopping, changes)
            channel = await stack.enter_async_context(open_channel(address))
            return Checkpoint(address, dsn, signing_keys, channel)

        yield make


async def _start_here(
    stack: AsyncExitStack, dsn: str, keys: Path, stopping: asyncio.Event | None, changes: dict[str, Any]
) -> str:
    """The real composition, in this process."""
    process = Process()
    settings = CheckpointSettings(
        listen=Address("127.0.0.1:0"),
        postgres_dsn=Secret(dsn),
        verifying_keys_file=keys / "verifying.json",
        sweep_interval_seconds=0.2,
        **changes,
        common=CommonSettings(),
    )
    if stopping is not None:
        process.stopping = stopping
    stack.push_async_callback(process.close)
    server = await process.open(await assemble(process, settings, PeopleNotifier))
    return server.address


@pytest.fixture
async def checkpoint_process(fresh_database: FreshDatabase, signing_keys: Path) -> AsyncIterator[MakeCheckpointProcess]:
    """Makes processes for this test; they are stopped at its end."""
    async with AsyncExitStack() as stack:

        async def make(
            *, dsn: str = "", failpoints: str = "", environment: Mapping[str, str] = MappingProxyType({})
        ) -> CheckpointProcess:
            dsn = dsn or await fresh_database(MIGRATIONS)
            variables = {
                **os.environ,
                "TENURE_CHECKPOINT_LISTEN": "127.0.0.1:0",
                "TENURE_CHECKPOINT_POSTGRES_DSN": dsn,
                "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(signing_keys / "verifying.json"),
                "TENURE_FAILPOINTS": failpoints,
                **environment,
            }
            process = await forked.start_program(command_line("checkpoint"), environment=variables)
            address, log = await _listening(process)
            channel = await stack.enter_async_context(open_channel(address))
            started = CheckpointProcess(process, Checkpoint(address, dsn, signing_keys, channel), log)
            stack.push_async_callback(started.stop)
            return started

        yield make


async def _listening(process: forked.Process) -> tuple[str, asyncio.Task[None]]:
    """The address from the log; the rest of the log is read along, so that the process never waits for its reader."""
    assert process.stderr is not None
    seen: list[bytes] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while line := await process.stderr.readline():
            seen.append(line)
            if b'"listening"' in line:
                log = asyncio.create_task(_drain(process.stderr))
                return str(json.loads(line)["address"]), log
    raise AssertionError(b"".join(seen).decode())


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


def entry(step: int = 1, **body: Any) -> ledger_pb2.NewEntry:
    """`entry(1, user_message=UserMessage(text="…"))`."""
    return ledger_pb2.NewEntry(step=step, body=ledger_pb2.EntryBody(**body))


def words(text: str = "…", step: int = 1) -> ledger_pb2.NewEntry:
    """A fact without consequences."""
    return entry(step, user_message=ledger_pb2.UserMessage(text=text))


def answer(attempt: int = 1, step: int = 1, text: str = "ok", tokens: int = 10) -> ledger_pb2.NewEntry:
    """A model's answer that settles its attempt with as many output tokens."""
    message = ledger_pb2.AssistantMessage(
        attempt_number=attempt,
        content_json=json.dumps([{"type": "text", "text": text}]),
        stop_reason="end_turn",
        usage=task_pb2.TokenUsage(output_tokens=tokens),
    )
    return entry(step, assistant_message=message)


def reserve(
    step: int = 1,
    attempt: int = 1,
    input_tokens: int = 100,
    output: int = 100,
    least: int = 1,
    model: str = "m",
    *,
    outlives: bool = False,
) -> pb.Reserve:
    return pb.Reserve(
        step=step,
        attempt_number=attempt,
        model=model,
        input_tokens=input_tokens,
        max_output_tokens=output,
        min_output_tokens=least,
        outlives_worker=outlives,
    )


def kinds(entries: Sequence[ledger_pb2.Entry]) -> list[str]:
    """Returns the kinds of the entries; transitions as "FROM>TO"."""
    return [_kind(one) for one in entries]


def _kind(one: ledger_pb2.Entry) -> str:
    kind = one.body.WhichOneof("body") or ""
    if kind != "transition":
        return kind
    name = task_pb2.TaskState.Name
    moved = one.body.transition
    ends = (name(moved.from_state), name(moved.to_state))
    return ">".join(end.removeprefix("TASK_STATE_").replace("UNSPECIFIED", "") for end in ends)
