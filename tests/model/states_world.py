"""One task in a real ledger, and everything that may be tried with it: by the service, and by SQL written by hand.

Both come as a role with the rights of the service. Nothing else looks at this database: its sweeps are
run when they are asked for, on deadlines that are put into the past by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo

from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.commit.external_entries import append_external_entry
from services.checkpoint.commit.opening import Opening, open_task
from services.checkpoint.commit.prepared import prepare
from services.checkpoint.prices import PriceList
from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from services.checkpoint.queue import sweeps
from services.checkpoint.queue.queue import register_grants
from services.checkpoint.queue.requeue import requeue_lost
from services.checkpoint.submit.create import Submit, create_task
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.waits.signals import send_signal
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import Audience, Claims
from tenure.domain.fold import fold
from tenure.domain.states import TERMINAL, TaskState
from tenure.runtime.security.signing import Signer, Verifier
from tenure.runtime.store.postgres import PoolOptions, in_transaction, open_pool
from tenure.runtime.store.sql import Rights
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES
from tenure.wire.ledger import entries_to_domain
from tenure.wire.token import TokenChecker, sign_task_claims

TENANT = "default"
_epochs = itertools.count((1 << 40) + 1, 1000)  # between them is room for claims made by hand


@asynccontextmanager
async def service_role(owner_dsn: Any) -> AsyncGenerator[Any]:
    """A role with the service's rights and a name of its own, as roles are the whole server's; its DSN."""
    name = f"ledger_service_{uuid4().hex}"
    async with await psycopg.AsyncConnection.connect(owner_dsn, autocommit=True) as owner:
        await owner.execute(f"create role {name} login password 'secret'".encode())
        await Rights.of("services.checkpoint").give(owner_dsn, name)
        try:
            yield conninfo.make_conninfo(owner_dsn, user=name, password="secret")
        finally:
            await owner.execute(f"drop owned by {name}; drop role {name}".encode())


@asynccontextmanager
async def open_world(dsn: Any, keys: Any) -> AsyncGenerator[Any]:
    options = PoolOptions(max_size=3, settings=SESSION_SETTINGS)
    async with (
        open_pool(dsn, service="test", schema=SCHEMA, options=options) as pool,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as by_hand,
    ):
        yield World(
            pool,
            by_hand,
            Signer.load(keys / "signing.json"),
            TokenChecker(Verifier(keys / "verifying.json"), Audience.CHECKPOINT),
        )


class World:
    def __init__(self, pool: Any, by_hand: Any, signer: Any, tokens: Any) -> None:
        self.pool, self.by_hand, self.signer, self.tokens = pool, by_hand, signer, tokens
        self.defaults = TaskDefaults()

    async def create(self) -> Any:
        request = pb.CreateTaskRequest(request_id=str(uuid4()), spec=task_pb2.TaskSpec(goal="do it"))
        return (await create_task(self.pool, Submit(TENANT, request), self.defaults)).task.task_id

    async def grant(self, task_id: Any) -> Any:
        claims = Claims(
            f"tasks/{task_id}", TENANT, next(_epochs), str(uuid4()), "worker-1", installation=DEFAULT_INSTALLATION
        )
        grant = pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=claims.epoch, claim_id=claims.claim_id)
        assert await register_grants(self.pool, [grant]) == [claims.claim_id]
        return claims

    async def open(self, claims: Any) -> None:
        await open_task(self.pool, Opening(claims))

    async def commit(self, claims: Any, number: Any, sequence: Any, *entries: Any, **fields: Any) -> None:
        request = pb.CommitRequest(
            token=sign_task_claims(self.signer, claims, datetime.now(UTC)),
            commit_id=str(uuid4()),
            commit_number=number,
            known_sequence=sequence,
            entries=entries,
            **fields,
        )
        commits = [prepare(request, self.tokens, validated=True)]
        (result,), _ = await in_transaction(self.pool, partial(commit_batch, commits=commits, prices=PriceList()))
        if isinstance(result, Exception):
            raise result

    async def append(self, task_id: Any, **fact: Any) -> None:
        request = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid4()), actor="alice", **fact)
        await append_external_entry(self.pool, TENANT, request)

    async def signal(self, name: Any) -> None:
        request = pb.SendSignalRequest(correlation_id=name, request_id=str(uuid4()), payload_json="1", actor="bob")
        await send_signal(self.pool, TENANT, request)

    async def lose(self, task_id: Any, claim_id: Any) -> Any:
        lost = pb.RequeueLostRequest.Lost(task_id=task_id, claim_id=claim_id, reason="CLAIM_LOST")
        put_back, _ = await requeue_lost(self.pool, [lost])
        return put_back == [task_id]

    async def expire(self, task_id: Any, column: Any) -> None:
        """Its time has come: first by hand, then by the sweep that looks for it."""
        await self.by_hand.execute(f"update ledger.tasks set {column} = now() where task_id = %s".encode(), [task_id])
        sweep = {
            "next_retry_at": sweeps.queue_due_retries,
            "wait_deadline_at": sweeps.expire_waits,
            "deadline_at": sweeps.end_overdue,
        }
        await sweep[column](self.pool)

    async def row(self, task_id: Any) -> Any:
        """All of the task's row but what offers and grants leave there."""
        statement = "select to_jsonb(t) - '{offered_until,granted,granted_claim}'::text[] from ledger.tasks t"
        cursor = await self.by_hand.execute(f"{statement} where task_id = %s".encode(), [task_id])
        ((row,),) = await cursor.fetchall()
        return row

    async def entries(self, task_id: Any) -> Any:
        cursor = await self.by_hand.execute(
            "select sequence, epoch, claim_id, attempt, step, actor, body from ledger.entries where task_id = %s "
            "order by sequence",
            [task_id],
        )
        return [
            ledger_pb2.Entry(
                sequence=sequence,
                epoch=epoch,
                claim_id=claim_id,
                attempt=attempt,
                step=step,
                actor=actor,
                body=ledger_pb2.EntryBody.FromString(body),
            )
            for sequence, epoch, claim_id, attempt, step, actor, body in await cursor.fetchall()
        ]

    async def point(self, task_id: Any) -> Any:
        return fold(entries_to_domain(await self.entries(task_id)))

    async def execute(self, statement: Any, *parameters: Any) -> None:
        """One statement by hand."""
        await self.by_hand.execute(statement.encode(), parameters)

    async def move(self, task_id: Any, current: Any, target: Any, *, expected: Any, begins_attempt: Any) -> None:
        """A move by hand, as well-formed as its author can make it: the row says all that its new state asks for."""
        async with self.by_hand.transaction():
            if expected:
                await self._tell(task_id, current, target)
            attempt = ", attempt = attempt + 1, result = ''" if begins_attempt else ""
            await self.execute(f"update ledger.tasks set {dress(target)}{attempt} where task_id = %s", task_id)

    async def _tell(self, task_id: Any, current: Any, target: Any) -> None:
        transition = ledger_pb2.StateTransition(
            from_state=STATES.to_wire(current), to_state=STATES.to_wire(target), reason="BY_HAND"
        )
        await self.execute(
            "insert into ledger.entries select task_id, sequence + 1, tenant, 0, '', attempt, step, 2, 'hand', now(), "
            "%s from ledger.tasks where task_id = %s",
            ledger_pb2.EntryBody(transition=transition).SerializeToString(),
            task_id,
        )
        await self.execute("update ledger.tasks set sequence = sequence + 1 where task_id = %s", task_id)


def dress(target: Any) -> Any:
    """What a row says besides its state."""
    held = target is TaskState.RUNNING
    waits = target in {TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL}
    columns = {
        "state": f"'{target}'",
        "holds": str(held).lower(),
        "owner": "'hand'" if held else "''",
        "model_open": "false",
        "ended_at": "now()" if target in TERMINAL else "null",
        "next_retry_at": "now() + interval '1 h'" if target is TaskState.RETRY_SCHEDULED else "null",
        "waiting_since": "now()" if waits else "null",
        "wait": "''",
        "wait_deadline_at": "null",
        "wait_correlation": "''",
        "queued_until": "null",
        "starts_at": "null",
        "queued_at": "now()" if target is TaskState.QUEUED else "null",
    }
    if held:  # a claim of one's own making
        claim = "'hand-' || (granted + 1)"
        columns |= {"epoch": "granted + 1", "granted": "granted + 1", "claim_id": claim, "granted_claim": claim}
    return ", ".join(f"{column} = {value}" for column, value in columns.items())
