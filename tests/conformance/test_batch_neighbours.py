"""In every batched path one poisoned item harms no neighbour: it alone is refused with its reason, the others are done.

One table, one test. A case sends a batch of good items with one poison in the middle, and returns what became of each.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from devstack.etcd import EtcdProcess
from services.checkpoint.queries import MIGRATIONS
from services.checkpoint.webhooks.sending import WebhookSettings
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.lease_store import ClaimRecord, LeaseStore, SessionRecord
from services.coordinator.lease_store.claim_keys import ClaimResult, NewClaim
from services.coordinator.lease_store.records import GENERATION_KEY
from tenure.domain.errors import TenureError
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2, tool_service_pb2
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.token import read_claims, sign_task_claims
from tests.conformance.test_doubt_waits import put_back, waiting
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import (
    Checkpoint,
    MakeCheckpoint,
    Owner,
    words,
)
from tests.support.fix_coordinator import Fleet, make_fleet
from tests.support.fix_etcd import own_prefix
from tests.support.fix_postgres import FreshDatabase
from tests.support.fix_tools import Grants, StartTools, execute_request
from tests.support.fix_tools import Owner as ToolOwner
from tests.support.fix_webhooks import MakeReceiver, Receiver, Reply
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

pytestmark = pytest.mark.server
GOOD = 6
POISON_AT = GOOD // 2
NOBODYS = "00000000-0000-7000-8000-000000000000"
DONE = "done"


@dataclass
class World:
    """What the paths need, started only by those that use it."""

    checkpoint: MakeCheckpoint
    tool_service: StartTools
    tools_dsn: str
    grants: Grants
    etcd_process: EtcdProcess
    fresh_database: Any
    webhook_receiver: Any
    directory: Path
    stack: AsyncExitStack

    async def etcd(self) -> EtcdClient:
        namespace = own_prefix().encode()
        client = EtcdClient([self.etcd_process.endpoint], namespace=namespace, timeout_seconds=CALL_SECONDS)
        made = await self.stack.enter_async_context(client)
        await made.put(GENERATION_KEY, b"1")
        return made

    async def fleet(self) -> Fleet:
        made = await make_fleet(self.etcd_process, await self.fresh_database(MIGRATIONS), self.directory, own_prefix())
        self.stack.push_async_callback(made.aclose)
        return made

    async def lock(self, dsn: str, statement: str, *parameters: object) -> None:
        """Hold row locks in another transaction until the case ends."""
        postgres = await self.stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
        await postgres.execute(statement.encode(), parameters)


@pytest.fixture
async def world(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    tools_dsn: str,
    grants: Grants,
    etcd_process: EtcdProcess,
    fresh_database: FreshDatabase,
    webhook_receiver: MakeReceiver,
    tmp_path: Path,
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        fixtures = (checkpoint, tool_service, tools_dsn, grants, etcd_process, fresh_database, webhook_receiver)
        yield World(*fixtures, tmp_path, stack)


Ends = list[str]
"""What became of each item in order: DONE, or the reason of its refusal."""


def with_poison(good: list[Any], poison: Any) -> list[Any]:
    return [*good[:POISON_AT], poison, *good[POISON_AT:]]


# Claims: one transaction in etcd.


async def claims(world: World, poison: str) -> Ends:
    store = LeaseStore(await world.etcd())
    record = SessionRecord(worker_id="w", coordinator_id="c", generation=1, started_at=0.0)
    session, other = [await store.sessions.create(str(uuid.uuid4()), record, 60) for _ in range(2)]

    def claim(**changes: Any) -> NewClaim:
        fields = {
            "claim_id": str(uuid.uuid4()),
            "worker_id": "w",
            "session_id": session.session_id,
            "generation": 1,
            "tenant": "default",
            "reason": "SUBMITTED",
            "previous_epoch": 0,
            "tools": (),
        }
        return NewClaim(str(uuid.uuid4()), ClaimRecord(**{**fields, **changes}), session)

    taken = claim()
    poisons: dict[str, Callable[[], NewClaim]] = {
        "taken": lambda: replace(claim(), task_id=taken.task_id),
        "lease gone": lambda: replace(claim(), session=replace(other, lease=1)),
        "session moved": lambda: replace(claim(), session=replace(other, mod_revision=1)),
        "old generation": lambda: claim(generation=2),
    }
    await store.claims.claim_many([taken])
    made: list[ClaimResult] = await store.claims.claim_many(
        with_poison([claim() for _ in range(GOOD)], poisons[poison]())
    )
    return [DONE if each.held is not None else str(each.refusal and each.refusal.name) for each in made]


# Renewals: what one worker holds is renewed by one message; sessions are renewed beside each other.


async def renewals(world: World, poison: str) -> Ends:
    fleet = await world.fleet()
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica, slots=GOOD)
    await fleet.submit_many(GOOD)
    grants = await worker.next_grants(GOOD)
    for grant in grants:
        await worker.open(grant)
        worker.held[grant.claim_id] = grant
    held = list(worker.held.items())
    claim_id, task_id = {"unknown": (str(uuid.uuid4()), NOBODYS), "no ids": ("\u2028", "../x")}[poison]
    bad = coordinator_service_pb2.Grant(task_id=task_id, claim_id=claim_id)
    worker.held = dict(with_poison(held, (claim_id, bad)))
    revoked = await worker.hears("revoke")
    assert revoked.claim_id == claim_id
    await _renewed_again(worker)
    still_held = {claim.claim_id for claim in await fleet.claims(replica)}
    return with_poison([DONE if one in still_held else "gone" for one, _ in held], revoked.reason)


async def sessions(world: World, poison: str) -> Ends:
    assert poison == "lease gone"
    fleet = await world.fleet()
    replica = await fleet.coordinator()
    workers = [await fleet.worker(replica) for _ in range(GOOD + 1)]
    bad = workers[POISON_AT]
    async with fleet.etcd() as etcd:
        store = LeaseStore(etcd)
        held = await store.sessions.find(bad.session_id)
        assert held is not None
        await etcd.revoke(held.lease)
    ended = await bad.ends()
    for worker in workers:
        if worker is not bad:
            await _renewed_again(worker)
    assert isinstance(ended, TenureError)
    return [str(ended.reason) if one is bad else DONE for one in workers]


async def _renewed_again(worker: Any) -> None:
    """Two more answers: one may have been on its way."""

    def count() -> int:
        return sum(each.HasField("renewed") for each in worker.heard)

    before = count()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while count() < before + 2:
            assert worker.ended_with is None
            await asyncio.sleep(0.02)


# Offers, grants, requeues and settled calls: one transaction in the ledger.


async def offers(world: World, poison: str) -> Ends:
    replica = await world.checkpoint()
    ids = [(await replica.create()).task_id for _ in range(GOOD + 1)]
    bad = ids[POISON_AT]
    if poison == "row locked":
        await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", bad)
    elif poison == "cancelled":
        await replica.cancel(bad)
    answer = await replica.stub.ListClaimable(ledger_pb.ListClaimableRequest(limit=100), timeout=CALL_SECONDS)
    offered = {offer.task_id for offer in answer.offers}
    return [DONE if task_id in offered else "left out" for task_id in ids]


async def registrations(world: World, poison: str) -> Ends:
    replica = await world.checkpoint()
    ids = [(await replica.create()).task_id for _ in range(GOOD + 1)]
    bad = ids[POISON_AT]
    epoch = (1 << 40) + 77
    _, registered = await replica.grant(bad, epoch=epoch + 1)
    claim = ledger_pb.RegisterGrantsRequest.Grant
    grants = [claim(task_id=one, epoch=epoch, claim_id=str(uuid.uuid4())) for one in ids]
    if poison == "unknown task":
        grants[POISON_AT].task_id = NOBODYS
    elif poison == "other generation":
        grants[POISON_AT].epoch = 2**63 - 1
    elif poison == "claim of another epoch":
        grants[POISON_AT].epoch, grants[POISON_AT].claim_id = epoch + 2, registered.claim_id
    elif poison == "row locked":
        grants[POISON_AT].epoch = epoch + 2
        await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", bad)
    answer = await replica.stub.RegisterGrants(ledger_pb.RegisterGrantsRequest(grants=grants), timeout=CALL_SECONDS)
    return [DONE if grant.claim_id in answer.claim_ids else "left out" for grant in grants]


async def requeues(world: World, poison: str) -> Ends:
    replica = await world.checkpoint()
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(GOOD + 1)]
    lost = [
        ledger_pb.RequeueLostRequest.Lost(
            task_id=owner.task.task_id, claim_id=owner.claims.claim_id, reason="LEASE_EXPIRED"
        )
        for owner in owners
    ]
    bad = lost[POISON_AT]
    match poison:
        case "row locked":
            await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", bad.task_id)
        case "other claim":
            bad.claim_id = "another \0 claim"
        case "unknown task":
            bad.task_id = NOBODYS
        case "ended":
            await owners[POISON_AT].end()
    answer = await replica.stub.RequeueLost(ledger_pb.RequeueLostRequest(lost=lost), timeout=CALL_SECONDS)
    return [DONE if one.task_id in answer.task_ids else "left out" for one in lost]


async def settlements(world: World, poison: str) -> Ends:
    assert poison == "row locked"
    replica = await world.checkpoint()
    owners = [await waiting(replica) for _ in range(GOOD + 1)]
    bad = owners[POISON_AT].task.task_id
    await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", bad)
    queued = await put_back(replica, *owners)
    return [DONE if owner.task.task_id in queued else "left out" for owner in owners]


# Opens: one transaction.


async def opens(world: World, poison: str) -> Ends:
    replica = await world.checkpoint()
    ids = [(await replica.create()).task_id for _ in range(GOOD + 1)]
    bad = ids[POISON_AT]
    tokens = [await replica.grant(one) for one in ids]
    claims_of = tokens[POISON_AT][1]
    match poison:
        case "stale":
            await replica.grant(bad)
        case "unknown task":
            tokens[POISON_AT] = replica.sign(NOBODYS, claims_of.epoch, claims_of.claim_id)
        case "of another tenant":
            tokens[POISON_AT] = replica.sign(bad, claims_of.epoch, claims_of.claim_id, tenant="others")
        case "text that Postgres does not take":
            tokens[POISON_AT] = replica.sign(bad, claims_of.epoch, claims_of.claim_id, holder="nul \0 here")
        case "row locked":
            await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", bad)
    ends = await asyncio.gather(*[replica.open(*token) for token in tokens], return_exceptions=True)
    return [DONE if isinstance(end, Owner) else str(getattr(end, "reason", end)) for end in ends]


# Commits: one frame, and one transaction.


async def commits(world: World, poison: str) -> Ends:
    replica = await world.checkpoint()
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(GOOD + 1)]
    requests = [owner.request(words()) for owner in owners]
    requests[POISON_AT] = await _bad_commit(world, replica, owners[POISON_AT], poison)
    call = replica.stub.CommitStream(timeout=PATIENCE_SECONDS)
    tagged = [ledger_pb.TaggedCommit(tag=tag, commit=request) for tag, request in enumerate(requests)]
    await call.write(ledger_pb.CommitStreamRequest(commits=tagged))
    await call.done_writing()
    ends = {result.tag: _end(result, "response") async for frame in call for result in frame.results}
    return [ends[tag] for tag in range(len(requests))]


async def _bad_commit(world: World, replica: Checkpoint, owner: Owner, poison: str) -> ledger_pb.CommitRequest:
    task_id, claims_of = owner.task.task_id, owner.claims

    def signed(task_id: str = task_id, holder: str = "worker-1") -> Any:
        return replica.sign(task_id, claims_of.epoch, claims_of.claim_id, holder)[0]

    match poison:
        case "stale":
            await replica.claim(task_id)
            return owner.request(words())
        case "stale, its trail unwritable":
            await replica.claim(task_id)
            return owner.request(words(), token=signed(holder="nul \0 here"))
        case "unknown task":
            return owner.request(words(), token=signed(NOBODYS))
        case "text that Postgres does not take":
            return owner.request(words(), token=signed(holder="nul \0 here"))
        case "malformed":
            return owner.request(words(), commit_id="no uuid")
        case "forged":
            token = signed()
            token.signature = b"x" * 64
            return owner.request(words(), token=token)
        case "out of order":
            return owner.request(words(), commit_number=owner.next_number + 7)
        case "row locked":
            await world.lock(replica.dsn, "select 1 from ledger.tasks where task_id = %s for update", task_id)
            return owner.request(words())
    raise AssertionError(poison)


def _end(result: Any, good: str) -> str:
    return DONE if result.HasField(good) else str(result.refusal.reason)


# Tool records: one frame; accepted, started and finished in batches.


async def tool_calls(world: World, poison: str) -> Ends:
    tools = await world.tool_service()
    owners = [world.grants.claim() for _ in range(GOOD + 1)]
    requests = [_append(owner) for owner in owners]
    requests[POISON_AT] = await _bad_call(world, tools, owners[POISON_AT], poison)
    call = tools.stub.ExecuteStream(timeout=PATIENCE_SECONDS)
    tagged = [tool_service_pb2.TaggedExecute(tag=tag, call=request) for tag, request in enumerate(requests)]
    await call.write(tool_service_pb2.ExecuteStreamRequest(calls=tagged))
    ends: dict[int, str] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(ends) < len(requests):
            for event in (await call.read()).events:
                if event.WhichOneof("event") in {"outcome", "refusal"}:
                    ends[event.tag] = _end(event, "outcome")
    call.cancel()
    return [ends[tag] for tag in range(len(requests))]


def _append(owner: ToolOwner, line: str = "x", call_id: str = "1.0") -> tool_service_pb2.ExecuteRequest:
    return execute_request(owner, call_id, "append_record", json.dumps({"file": "a", "line": line}))


async def _bad_call(world: World, tools: Any, owner: ToolOwner, poison: str) -> tool_service_pb2.ExecuteRequest:
    match poison:
        case "stale":
            await tools.fence(world.grants.claim(owner.task_id, epoch=11))
        case "stale, its trail unwritable":
            await tools.fence(world.grants.claim(owner.task_id, epoch=11))
            claims_of = replace(read_claims(owner.token), holder="nul \0 here")
            return _append(replace(owner, token=sign_task_claims(world.grants.signer, claims_of, datetime.now(UTC))))
        case "text that Postgres does not take":
            return _append(world.grants.claim(owner.task_id, claim_id="nul \0 here"))
        case "malformed":
            return _append(owner, call_id="not-an-id")
        case "forged":
            owner.token.signature = b"x" * 64
        case "call id reused":
            await tools.outcome(owner, "1.0", "append_record", file="a", line="another")
        case "row locked":
            await tools.fence(owner)
            await world.lock(world.tools_dsn, "select 1 from tools.fences where task_id = %s for update", owner.task_id)
        case _:
            raise AssertionError(poison)
    return _append(owner)


# Webhook deliveries: read and sent many at once.


async def deliveries(world: World, poison: str) -> Ends:
    receiver: Receiver = await world.webhook_receiver()
    hooks = WebhookClient(await world.checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1})))
    bad_goal = "poison"
    reply = {"refused": Reply(400), "fails": Reply(500), "endless answer": Reply(500, body=b"\x00\xff" * 500_000)}

    def answer(delivery: Any) -> Reply:
        return reply[poison] if delivery.data["task"]["goal"] == bad_goal else Reply()

    receiver.answer = answer
    await hooks.create(receiver, event_types=["task.succeeded"])
    ids = [await hooks.finish(goal=bad_goal if at == POISON_AT else "good") for at in range(GOOD + 1)]
    await receiver.until(GOOD)
    await hooks.until(lambda hook: hook.delivered == GOOD and hook.dead_deliveries == 1)
    took = {one.task_id for one in receiver.took}
    [dead] = await hooks.deliveries(webhook_pb.WEBHOOK_DELIVERY_STATE_DEAD)
    return [DONE if one in took else str(dead.last_status_code) for one in ids]


class Case(NamedTuple):
    """A path, a poison, and the refusal it gets."""

    path: Callable[[World, str], Awaitable[Ends]]
    poison: str
    refused: str


CASES = [
    Case(claims, "taken", "TAKEN"),
    Case(claims, "lease gone", "SESSION_GONE"),
    Case(claims, "session moved", "SESSION_GONE"),
    Case(claims, "old generation", "GENERATION"),
    Case(renewals, "unknown", "CLAIM_LOST"),
    Case(renewals, "no ids", "CLAIM_LOST"),
    Case(sessions, "lease gone", "SESSION_EXPIRED"),
    Case(offers, "row locked", "left out"),
    Case(offers, "cancelled", "left out"),
    Case(registrations, "stale", "left out"),
    Case(registrations, "unknown task", "left out"),
    Case(registrations, "other generation", "left out"),
    Case(registrations, "claim of another epoch", "left out"),
    Case(registrations, "row locked", "left out"),
    Case(opens, "stale", "STALE_EPOCH"),
    Case(opens, "unknown task", "NOT_FOUND"),
    Case(opens, "of another tenant", "NOT_FOUND"),
    Case(opens, "text that Postgres does not take", "INVALID_TEXT"),
    Case(opens, "row locked", "LOCK_TIMEOUT"),
    Case(requeues, "row locked", "left out"),
    Case(requeues, "other claim", "left out"),
    Case(requeues, "unknown task", "left out"),
    Case(requeues, "ended", "left out"),
    Case(settlements, "row locked", "left out"),
    Case(commits, "stale", "STALE_EPOCH"),
    Case(commits, "stale, its trail unwritable", "STALE_EPOCH"),
    Case(commits, "unknown task", "NOT_FOUND"),
    Case(commits, "text that Postgres does not take", "INVALID_TEXT"),
    Case(commits, "malformed", "INVALID_REQUEST"),
    Case(commits, "forged", "INVALID_TOKEN"),
    Case(commits, "out of order", "SEQUENCE_CONFLICT"),
    Case(commits, "row locked", "LOCK_TIMEOUT"),
    Case(tool_calls, "stale", "STALE_EPOCH"),
    Case(tool_calls, "stale, its trail unwritable", "STALE_EPOCH"),
    Case(tool_calls, "text that Postgres does not take", "INVALID_TEXT"),
    Case(tool_calls, "malformed", "INVALID_REQUEST"),
    Case(tool_calls, "forged", "INVALID_TOKEN"),
    Case(tool_calls, "call id reused", "CALL_ID_REUSED"),
    Case(tool_calls, "row locked", "LOCK_TIMEOUT"),
    Case(deliveries, "refused", "400"),
    Case(deliveries, "fails", "500"),
    Case(deliveries, "endless answer", "500"),
]


def cases() -> list[Any]:
    """The first case of each path, and the sweep over all others."""
    first = {case.path: case for case in reversed(CASES)}.values()
    return [
        pytest.param(one, id=f"{one.path.__name__}: {one.poison}", marks=[] if one in first else pytest.mark.faults)
        for one in CASES
    ]


@pytest.mark.parametrize("case", cases())
async def test_a_poisoned_item_is_refused_and_its_neighbours_succeed(world: World, case: Case) -> None:
    ends = await case.path(world, case.poison)
    assert ends == with_poison([DONE] * GOOD, case.refused)
