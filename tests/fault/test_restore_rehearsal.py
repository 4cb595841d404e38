"""The runbook of a restore, rehearsed: stores of different moments, tasks in flight, workers that hold old tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tenure.domain.errors import NotFound, TenureError
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import ledger_pb2
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.task import usage_to_domain
from tests.fault.rehearsal import LOST_QUEUE, Rehearsal, rehearsal
from tests.support.patience import CALL_SECONDS
from tests.support.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.server, pytest.mark.faults]
FILE = uuid.uuid4().hex


@asynccontextmanager
async def old_owner(install: Rehearsal) -> AsyncIterator[tuple[ScriptedWorker, coordinator_pb.Grant]]:
    """A worker that survives the loss, with the claim of a task that was granted after the restored moment."""
    services = install.stack.services
    async with open_channel(services["checkpoint"].address) as channel:
        worker = ScriptedWorker(
            services["coordinator"].address,
            CheckpointServiceStub(channel),
            worker_id="of-before",
            free_slots=1,
            queues=[LOST_QUEUE],
        )
        await worker.attach()
        grant = await worker.next_grant()
        await worker.open(grant)
        yield worker, grant
        await worker.break_off()


async def check_refused(install: Rehearsal, worker: ScriptedWorker, grant: coordinator_pb.Grant) -> None:
    """Neither the ledger nor the tool service takes anything under the old token."""
    arguments = f'{{"file": "{FILE}", "line": "of a lost claim"}}'
    with pytest.raises(TenureError):
        await worker.open(grant)
    with pytest.raises(TenureError):
        await worker.commit(grant, 1, known_sequence=1)
    async with open_channel(install.stack.services["tools"].address) as channel:
        request = tools_pb.ExecuteRequest(
            token=grant.token, call_id="1.0", tool="append_record", arguments_json=arguments
        )
        with pytest.raises(TenureError):
            async for _ in ToolServiceStub(channel).Execute(request, timeout=CALL_SECONDS):
                pass
    assert install.effects(FILE) == []


@pytest.mark.parametrize(
    ("postgres", "etcd"), [(True, False), (False, True), (True, True)], ids=["postgres-old", "etcd-old", "both-old"]
)
async def test_a_restore_loses_nothing_unseen(postgres: bool, etcd: bool) -> None:
    async with rehearsal() as install:
        kept = await install.begin()
        claimed_later = await install.begin(queue=LOST_QUEUE)
        await install.until(kept, "tool_outcome")
        await install.choose_moment()
        submitted_later = await install.begin()
        async with old_owner(install) as (worker, grant):
            assert grant.task_id == claimed_later
            await install.until(submitted_later, "tool_outcome")
            await install.archive()
            highest = int(await install.query("select highest_epoch from ledger.epochs"))
            install.stop()
            if postgres:
                await install.restore_postgres()
            if etcd:
                await install.restore_etcd()
            findings = await install.find_losses()
            await install.start()
            await check_refused(install, worker, grant)
        await check_what_remains(install, kept, submitted_later, findings, highest, is_older=postgres)


async def check_what_remains(
    install: Rehearsal, kept: str, submitted_later: str, findings: list[dict[str, str]], highest: int, *, is_older: bool
) -> None:
    """Everything that the ledger has goes on under higher epochs; what may happen again was listed before."""
    await install.check_ended(kept)
    in_flight = {finding["task_id"] for finding in findings if finding["finding"] == "IN_FLIGHT"}
    if is_older:
        assert kept in in_flight
        with pytest.raises(NotFound):
            await install.client.get(submitted_later)
    else:
        await install.check_ended(submitted_later)
    again = await install.begin()
    assert min(entry.epoch for entry in await install.check_ended(again) if entry.epoch) > highest
    for task_id, file in install.files.items():
        effects = install.effects(file)
        assert len(effects) == len(set(effects)) or (is_older and task_id in in_flight), task_id


async def keep_model_calls(install: Rehearsal, rows: str) -> None:
    """Puts the model runners' rows back, as if their database had not been restored."""
    await install.query("delete from models.generations returning 1")
    given = f"json_populate_recordset(null::models.generations, $json${rows}$json$)"
    await install.query(f"insert into models.generations select * from {given} returning 1")


def answers_of_attempts_after(entries: list[ledger_pb2.Entry], epoch: int) -> set[str]:
    """The provider's ids of the answers whose attempts were reserved under later epochs."""
    reserved, found = 0, set()
    for entry in entries:
        if entry.body.HasField("model_attempt"):
            reserved = entry.epoch
        elif entry.body.HasField("assistant_message") and reserved > epoch:
            found.add(entry.body.assistant_message.provider_request_id)
    return found


async def test_model_calls_of_a_lost_future_answer_nothing() -> None:
    """The schema `models` is in another server, which lost nothing: its newest call is one that the ledger lost."""
    async with rehearsal(model_runner=True) as install:
        kept = await install.begin()
        first = await install.until(kept, "tool_outcome")
        await install.choose_moment()
        await install.until(kept, "tool_outcome", lambda entry: entry.step >= first.step + 4)
        await install.archive()
        highest = int(await install.query("select highest_epoch from ledger.epochs"))
        install.stop()
        rows = str(await install.query("select json_agg(g)::text from models.generations g"))
        answered = {call["request_id"] for call in install.model_calls(kept)}
        await install.restore_postgres()
        await keep_model_calls(install, rows)
        await install.find_losses()
        found = [(each["finding"], each["task_id"]) for each in await install.find_model_calls()]
        await install.start()
        entries = await install.check_ended(kept)
        billed = sum([usage_to_domain(bill.usage).total async for bill in install.client.bills(kept)])
        budget = (await install.client.get(kept)).budget
    assert ("UNKNOWN_MODEL_CALL", kept) in found
    later = answers_of_attempts_after(entries, highest)
    assert len(later) >= 4
    assert not later & answered
    assert (budget.used_tokens, budget.reserved_tokens) == (billed, 0)
