"""The audit log of a running installation: who did what, who was refused, and that nothing happens without a record."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.domain.access import Permission
from tenure.domain.errors import PermissionDenied, TenureError, Unauthenticated
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.audit import FLUSH_SECONDS
from tenure.v1 import admin_service_pb2, schedule_service_pb2, task_pb2, task_service_pb2, webhook_service_pb2
from tenure.v1 import api_key_service_pb2 as keys
from tenure.v1 import audit_service_pb2 as pb
from tenure.wire.access import PERMISSIONS
from tests.end_to_end.command import tenure
from tests.security.guarded import Guarded
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def records(guarded: Guarded, **fields: Any) -> list[pb.AuditRecord]:
    async with guarded.client(guarded.operator_key) as operator:
        return [
            one
            async for one in operator.items(
                operator.audit.ListAuditRecords, pb.ListAuditRecordsRequest(**fields), lambda page: page.records
            )
        ]


async def recorded(guarded: Guarded, count: int = 1, **fields: Any) -> list[pb.AuditRecord]:
    """The records, when there are so many: refusals are written after a second."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := await records(guarded, **fields)) < count:
            await asyncio.sleep(0.1)
    return found


async def test_an_administrative_act_is_recorded(guarded: Guarded) -> None:
    admin = await guarded.key(Permission.TENANT_ADMIN)
    subject = f"key/{admin.api_key.key_id}"
    secret = "whsec_" + "c2VjcmV0" * 5
    async with guarded.client(admin.secret) as client:
        request = webhook_service_pb2.CreateWebhookRequest(
            name="audited", url="https://hooks.example.com/T000/secret-path", secret=secret
        )
        await client.webhooks.CreateWebhook(request)
        await client.webhooks.ListWebhooks(webhook_service_pb2.ListWebhooksRequest())
    (one,) = await records(guarded, subject=subject)
    assert (one.method, one.target, one.tenant) == ("WebhookService/CreateWebhook", "name=audited", "acme")
    assert (one.decision, one.count) == (pb.AUDIT_DECISION_ALLOWED, 1)
    assert one.peer.startswith(("ipv4:127.0.0.1:", "ipv6:"))
    text = str(await records(guarded))
    assert [hidden for hidden in (secret, "secret-path", admin.secret, guarded.operator_key) if hidden in text] == []


async def test_the_reason_of_an_operator_is_recorded(guarded: Guarded) -> None:
    async with guarded.client(guarded.operator_key) as operator:
        with pytest.raises(TenureError):
            await operator.admin.DrainWorker(
                admin_service_pb2.DrainWorkerRequest(worker_id="no-such-worker", reason="it smokes")
            )
    drains = await records(guarded, method="AdminService/DrainWorker", decision=pb.AUDIT_DECISION_ALLOWED)
    assert [one.reason for one in drains if one.target == "worker_id=no-such-worker"] == ["it smokes"]


async def test_an_act_on_many_tasks_needs_the_permission_of_its_verb(guarded: Guarded) -> None:
    """What is refused is never recorded as allowed."""
    writer = await guarded.key(Permission.WRITE)
    async with guarded.client(writer.secret) as client:
        submit = task_service_pb2.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="no-worker"))
        task_id = (await client.submit("find out", request=submit)).task_id
        request = admin_service_pb2.ActOnTasksRequest(
            operation_id="operation-1", filter=task_pb2.TaskFilter(task_ids=[task_id]), reason="it smokes"
        )
        for name in ("requeue", "begin_wait", "end_wait"):
            getattr(request, name).SetInParent()
            with pytest.raises(PermissionDenied):
                await client.act_on_tasks(request)
        request.cancel.SetInParent()
        (outcome,) = (await client.act_on_tasks(request)).outcomes
    assert outcome.result == admin_service_pb2.ACT_RESULT_DONE
    subject = f"key/{writer.api_key.key_id}"
    found = await recorded(guarded, 2, subject=subject)
    allowed = [one for one in found if one.decision == pb.AUDIT_DECISION_ALLOWED]
    assert [(one.method, one.reason) for one in allowed] == [("AdminService/ActOnTasks", "it smokes")]
    assert allowed[0].target == f"act=cancel operation_id=operation-1 filter.task_ids={task_id}"
    denied = [one for one in found if one.decision == pb.AUDIT_DECISION_DENIED]
    assert {one.reason for one in denied} == {"METHOD_NOT_ALLOWED"}


async def test_refusals_are_recorded_equal_ones_together(guarded: Guarded) -> None:
    reader = await guarded.key(Permission.READ)
    subject = f"key/{reader.api_key.key_id}"
    began = time.monotonic()
    async with guarded.client(reader.secret) as client:
        for number in range(20):
            with pytest.raises(PermissionDenied):
                await client.admin.DrainWorker(
                    admin_service_pb2.DrainWorkerRequest(worker_id=f"w-{number}", reason="so")
                )
    seconds = time.monotonic() - began
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(one.count for one in await records(guarded, subject=subject)) < 20:
            await asyncio.sleep(0.1)
    first, *others = await records(guarded, subject=subject)
    assert (first.method, first.decision) == ("AdminService/DrainWorker", pb.AUDIT_DECISION_DENIED)
    assert (first.reason, first.tenant) == ("METHOD_NOT_ALLOWED", "acme")
    assert first.target.startswith("worker_id=w-")
    assert len(others) <= 1 + seconds / FLUSH_SECONDS


async def test_late_refusals_and_unknown_callers_are_recorded(guarded: Guarded) -> None:
    admin = await guarded.key(Permission.TENANT_ADMIN)
    async with guarded.client(admin.secret) as client:
        more = keys.CreateApiKeyRequest(name="more", permissions=[PERMISSIONS.to_wire(Permission.OPERATE)])
        with pytest.raises(PermissionDenied):
            await client.api_keys.CreateApiKey(more)
    subject = f"key/{admin.api_key.key_id}"
    (denied,) = await recorded(guarded, subject=subject, decision=pb.AUDIT_DECISION_DENIED)
    assert denied.target == "name=more permissions=PERMISSION_OPERATE"
    # No other test calls this method so: a second refusal of a kind is written after a minute only.
    refusals = {"method": "ScheduleService/ListSchedules", "decision": pb.AUDIT_DECISION_DENIED}
    before = len(await records(guarded, **refusals))
    async with guarded.client("tnr_" + "0" * 12 + "_" + "A" * 43) as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.schedules.ListSchedules(schedule_service_pb2.ListSchedulesRequest())
    newest, *_ = await recorded(guarded, before + 1, **refusals)
    assert (newest.subject, newest.reason, newest.target) == ("", "API_KEY_INVALID", "")


async def test_without_a_record_nothing_happens(guarded: Guarded) -> None:
    """The ledger cannot write the log, and all else works: a drain would reach the coordinator without the ledger."""
    dsn = guarded.stack.postgres_dsn
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as owner,
        guarded.client(guarded.operator_key) as operator,
    ):
        worker, *_ = (await operator.workers()).workers
        await owner.execute(b"alter table ledger.audit_records rename to hidden")
        try:
            with pytest.raises((TenureError, PeerFailed)):
                await operator.admin.DrainWorker(
                    admin_service_pb2.DrainWorkerRequest(worker_id=worker.worker_id, reason="so")
                )
        finally:
            await owner.execute(b"alter table ledger.hidden rename to audit_records")
        draining = {one.worker_id: one.draining for one in (await operator.workers()).workers}
        assert not draining[worker.worker_id]


@asynccontextmanager
async def first_record_changed(guarded: Guarded) -> AsyncIterator[None]:
    """For the time of the block, as the owner of the database can do it."""
    change = "update ledger.audit_records set subject = %s where number = 1"
    async with await psycopg.AsyncConnection.connect(guarded.stack.postgres_dsn, autocommit=True) as owner:
        found = await owner.execute("select subject from ledger.audit_records where number = 1")
        (subject,) = await found.fetchone() or ("",)
        await owner.execute("alter table ledger.audit_records disable trigger audit_records_stay")
        try:
            await owner.execute(change, ["key/innocent"])
            yield
        finally:
            await owner.execute(change, [subject])
            await owner.execute("alter table ledger.audit_records enable trigger audit_records_stay")


async def test_the_log_at_the_command_line(guarded: Guarded, tmp_path: Path) -> None:
    key = tmp_path / "operator"
    key.write_text(guarded.operator_key)
    tls = str(guarded.ca_file)

    async def run(*words: str) -> Any:
        options = ("--api-key-file", str(key), "--tls-ca-file", tls)
        return await tenure(*options, *words, address=guarded.address)

    await guarded.key(Permission.READ)
    listed = await run("admin", "audit", "list", "--method", "ApiKeyService/CreateApiKey", "--limit", "1")
    assert "permissions=PERMISSION_READ" in listed.out, listed
    verified = await run("--json", "admin", "audit", "verify")
    head = json.loads(verified.out)["head"]
    again = await run("admin", "audit", "verify", "--noted", head)
    assert "the chain is unbroken" in again.out, again
    async with first_record_changed(guarded):
        broken = await run("admin", "audit", "verify")
    assert (broken.code, "record 1 does not follow" in broken.err) == (7, True), broken
    wrong = await run("admin", "audit", "verify", "--noted", "1:xyz")
    assert (wrong.code, "is not a head" in wrong.err) == (2, True), wrong


async def test_the_service_logs_note_each_head(guarded: Guarded) -> None:
    await guarded.key(Permission.READ)
    async with guarded.client(guarded.operator_key) as operator:
        request = pb.ListAuditRecordsRequest(page_size=1)
        newest = await anext(aiter(operator.items(operator.audit.ListAuditRecords, request, lambda page: page.records)))
    head = f"{newest.number}:{newest.hash.hex()}"
    logs = guarded.stack.layout.logs.glob("checkpoint*")
    assert any(head in path.read_text(errors="replace") for path in logs)
