"""The audit log: which changes its hash chain shows, how refusals are sampled, what a record says of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.audit import (
    MAX_KINDS,
    MAX_TARGET,
    NO_HASH,
    SAMPLE_SECONDS,
    AuditRecord,
    BrokenChainError,
    ChainedRecord,
    Decision,
    Denials,
    Head,
    chain_hash,
    verify_chain,
)
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import api_key_service_pb2 as keys
from tenure.v1 import ledger_pb2, task_pb2, tenant_service_pb2, tool_pb2
from tenure.v1 import webhook_service_pb2 as webhooks
from tenure.wire.access import access_rules
from tenure.wire.audit import chained_from_wire, chained_to_wire, reason_of, target_of

NOON = datetime(2026, 11, 24, 12, 0, 0, 123456, UTC)


def record(number: int = 1, **fields: Any) -> AuditRecord:
    usual = AuditRecord(f"id-{number}", "acme", "key/k", "ipv4:127.0.0.1:5", "A/B", "task_id=t", Decision.ALLOWED, "so")
    return replace(usual, **fields)


def chain(count: int = 5) -> list[ChainedRecord]:
    chained, head = [], NO_HASH
    for number in range(1, count + 1):
        at = NOON + timedelta(microseconds=number)
        head = chain_hash(head, number, at, record(number))
        chained.append(ChainedRecord(number, at, record(number), head))
    return chained


async def each(records: Iterable[ChainedRecord]) -> AsyncIterator[ChainedRecord]:
    for one in records:
        yield one


async def test_the_chain_of_an_earlier_release_stays_whole() -> None:
    """Its records have no recorder. The hash is what that release computed."""
    assert chain()[-1].hash.hex() == "b1874212bb7684a0a1999651904dc160d2b0d35dd964fd5385da4b08ad4b83de"


async def test_an_untouched_log_has_the_head_of_its_last_record() -> None:
    records = [chained_from_wire(chained_to_wire(one)) for one in chain()]
    assert await verify_chain(each(records)) == Head(5, records[-1].hash)
    assert await verify_chain(each(records), Head(3, records[2].hash)) == Head(5, records[-1].hash)
    assert await verify_chain(each([])) == Head(0, NO_HASH)


FORGED = [
    {"tenant": "x"},
    {"subject": "key/x"},
    {"peer": "x"},
    {"method": "A/C"},
    {"target": "task_id=u"},
    {"decision": Decision.DENIED},
    {"reason": ""},
    {"count": 2},
    {"record_id": "id-x"},
    {"recorder": "spiffe://tenure/gateway/x"},
    {"tenant": "acmekey", "subject": "/k"},  # the same text in other fields
]


@pytest.mark.parametrize("fields", FORGED, ids="+".join)
async def test_a_changed_field_breaks_the_chain_there(fields: Any) -> None:
    records = chain()
    records[2] = replace(records[2], record=replace(records[2].record, **fields))
    with pytest.raises(BrokenChainError) as broken:
        await verify_chain(each(records))
    assert broken.value.number == 3


def forged_time(records: list[ChainedRecord]) -> None:
    records[2] = replace(records[2], recorded_at=NOON)


def deleted(records: list[ChainedRecord]) -> None:
    del records[2]


def deleted_and_numbered_anew(records: list[ChainedRecord]) -> None:
    del records[2]
    records[2:] = [replace(one, number=one.number - 1) for one in records[2:]]


def exchanged(records: list[ChainedRecord]) -> None:
    records[2], records[3] = (
        replace(records[3], number=records[2].number),
        replace(records[2], number=records[3].number),
    )


def inserted(records: list[ChainedRecord]) -> None:
    records.insert(2, replace(records[2], record=record(9), hash=chain_hash(records[1].hash, 3, NOON, record(9))))


@pytest.mark.parametrize("change", [forged_time, deleted, deleted_and_numbered_anew, exchanged, inserted])
async def test_a_changed_order_breaks_the_chain_there(change: Callable[[list[ChainedRecord]], None]) -> None:
    records = chain()
    change(records)
    with pytest.raises(BrokenChainError) as broken:
        await verify_chain(each(records))
    assert broken.value.number in {3, 4}


async def test_a_log_made_anew_or_cut_differs_from_the_noted_head() -> None:
    noted = Head(5, chain()[-1].hash)
    with pytest.raises(BrokenChainError, match="record 4"):
        await verify_chain(each(chain(4)), noted)
    made_anew, head = [], NO_HASH
    for one in chain(6):
        changed = replace(one.record, subject="key/other")
        head = chain_hash(head, one.number, one.recorded_at, changed)
        made_anew.append(replace(one, record=changed, hash=head))
    assert (await verify_chain(each(made_anew))).number == 6
    with pytest.raises(BrokenChainError, match="hash"):
        await verify_chain(each(made_anew), noted)


@pytest.mark.parametrize("text", ["", "5", "5:", "5:zz", "0:" + "0" * 64, "5:" + "0" * 62, ":" + "0" * 64])
def test_a_head_is_read_back_or_refused(text: str) -> None:
    head = Head(17, bytes(range(32)))
    assert Head.parse(str(head)) == head
    with pytest.raises(ValueError, match="head"):
        Head.parse(text)


def denial(**fields: Any) -> AuditRecord:
    return record(decision=Decision.DENIED, reason="METHOD_NOT_ALLOWED", **fields)


def test_equal_refusals_are_one_record_a_minute() -> None:
    denials = Denials()
    denials.add(denial())
    assert [one.count for one in denials.take(0.0)] == [1]
    for _ in range(1000):
        denials.add(denial())
    denials.add(denial(subject="key/other"))
    assert [(one.subject, one.count) for one in denials.take(1.0)] == [("key/other", 1)]
    assert denials.take(SAMPLE_SECONDS - 0.1) == []
    assert [(one.subject, one.count) for one in denials.take(SAMPLE_SECONDS)] == [("key/k", 1000)]
    assert denials.take(3 * SAMPLE_SECONDS) == []


def test_many_callers_cannot_make_many_records() -> None:
    denials, taken = Denials(), list[AuditRecord]()
    callers = 5 * MAX_KINDS
    for number in range(callers):
        denials.add(denial(subject=f"user/{number}"))
        taken += denials.take(number / callers)
    taken += denials.take(2 * SAMPLE_SECONDS)
    assert len(taken) <= MAX_KINDS + 2
    assert sum(one.count for one in taken) == callers


def test_refusals_that_could_not_be_written_are_due_again() -> None:
    denials = Denials()
    for _ in range(3):
        denials.add(denial())
    denials.give_back(denials.take(0.0))
    denials.add(denial())
    assert [one.count for one in denials.take(1.0)] == [4]


SECRET = "whsec_topsecret"
UNKNOWN_TOO: Any = [1, 2, 99]
REQUESTS = [
    (admin.DrainWorkerRequest(worker_id="w-1", reason="because"), "worker_id=w-1"),
    (
        admin.CloseOutTaskRequest(
            task_id="t", request_id="r", reason="x", to_state=task_pb2.TASK_STATE_FAILED, result=SECRET
        ),
        "task_id=t to_state=TASK_STATE_FAILED",
    ),
    (
        webhooks.CreateWebhookRequest(name="desk", url=f"https://hooks.example/{SECRET}", secret=SECRET),
        "name=desk",
    ),
    (
        keys.CreateApiKeyRequest(name="a b\n", permissions=UNKNOWN_TOO, digest=b"x", actor="me"),
        'name="a b\\n" permissions=PERMISSION_READ,PERMISSION_WRITE,99',
    ),
    (
        tenant_service_pb2.UpdateTenantLimitsRequest(
            tenant="acme",
            quotas=[tenant_service_pb2.Quota(kind=tenant_service_pb2.QUOTA_KIND_RUNNING_TASKS, most=5)],
            reason="x",
        ),
        "tenant=acme quotas.kind=QUOTA_KIND_RUNNING_TASKS quotas.most=5",
    ),
    (
        webhooks.RotateWebhookSecretRequest(webhook="desk", overlap=Duration(seconds=90), secret=SECRET),
        "webhook=desk overlap=90s",
    ),
    (
        webhooks.RotateWebhookSecretRequest(webhook="desk", overlap=Duration(nanos=-(2**31))),
        "webhook=desk overlap=invalid",
    ),
    (
        admin.ActOnTasksRequest(
            operation_id="o",
            filter=task_pb2.TaskFilter(task_ids=["t" * 36] * 500),
            cancel=admin.ActOnTasksRequest.Cancel(),
        ),
        f"act=cancel operation_id=o filter.task_ids={','.join(['t' * 36] * 500)}"[:MAX_TARGET],
    ),
    (
        admin.ActOnTasksRequest(requeue=ledger_pb2.OperatorRequest.Requeue(extra_steps=5), reason=SECRET),
        "act=requeue requeue.extra_steps=5",
    ),
    (
        admin.ResolveInDoubtCallRequest(
            task_id="t",
            call_id="3.0",
            decision=tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened(result=SECRET)),
        ),
        "task_id=t call_id=3.0 decision.decision=happened",
    ),
    (admin.PruneTasksRequest(ended_before=Timestamp(seconds=1)), "ended_before=1970-01-01T00:00:01Z"),
    (admin.GrantBudgetRequest(task_id="t" * 2000, extra_tokens=7), f"task_id={'t' * 2000}"[:MAX_TARGET]),
]


@pytest.mark.parametrize(("request_", "target"), REQUESTS, ids=lambda one: type(one).__name__)
def test_record_has_the_target_and_no_secret(request_: Any, target: str) -> None:
    assert target_of(request_) == target
    assert SECRET not in target_of(request_)


def test_other_messages_have_no_target() -> None:
    assert (target_of(iter(())), reason_of(iter(()))) == ("", "")
    assert reason_of(admin.DrainWorkerRequest(reason="be\0cause")) == "because"


def test_every_audited_method_has_a_target() -> None:
    """A new audited method whose request has only free texts would be recorded without a target."""
    pool, silent = descriptor_pool.Default(), []
    for service in ("AdminService", "TenantService", "WebhookService", "ApiKeyService"):
        for name, rule in access_rules(f"tenure.v1.{service}").items():
            method = pool.FindServiceByName(f"tenure.v1.{service}").methods_by_name[name]
            request: Any = message_factory.GetMessageClass(method.input_type)()
            for field in method.input_type.fields:
                if field.type == field.TYPE_STRING and not field.is_repeated:
                    setattr(request, field.name, "x")
                elif field.name == "tool_rule":
                    request.tool_rule.name = "x"
            if rule.is_audited and not target_of(request):
                silent.append(name)
    assert silent == []
