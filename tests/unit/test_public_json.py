"""The public JSON: a golden file with every shape. A field may be added there; none changes or goes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tenure.domain.spans import SpanEvent, SpanKind, TaskSpan
from tenure.sdk import events, operations_info, task_info
from tenure.sdk.from_wire import change_event, entry_event, task_file
from tenure.sdk.from_wire import task_info as public_task
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.operations_from_wire import OPERATIONS, refused_write_info, usage_info
from tenure.sdk.traces import trace_span
from tenure.v1 import ledger_pb2, task_pb2, tenant_service_pb2, token_pb2, webhook_service_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api

GOLDEN: Final = Path(__file__).parent / "golden" / "public_json.json"
PAGE: Final = Path(__file__).parents[2] / "docs" / "json.md"
DEPTH: Final = 4


def filled(message: Message, depth: int = 0) -> Any:
    """The message with a value in every field: numbers that differ, names of fields, the first enum value but 0."""
    fields_of_message: list[Any] = list(message.DESCRIPTOR.fields)
    for number, field in enumerate(fields_of_message, start=2):
        if field.name == "no_limit":
            continue  # it excludes the limit
        if field.containing_oneof is not None and field is not field.containing_oneof.fields[0]:
            continue
        if field.message_type is not None:
            _fill_message(message, field, depth)
        elif field.is_repeated:
            getattr(message, field.name).append(_scalar(field, number))
        else:
            setattr(message, field.name, _scalar(field, number))
    return message


def _fill_message(message: Message, field: Any, depth: int) -> None:
    if field.message_type.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
        target: Any = getattr(message, field.name)
        time = target.add() if field.is_repeated else target
        time.seconds = 1_700_000_000 if field.message_type.name == "Timestamp" else 90
    elif field.message_type.GetOptions().map_entry:
        getattr(message, field.name)["key"] = "value"
    elif depth < DEPTH:
        target = getattr(message, field.name)
        filled(target.add() if field.is_repeated else target, depth + 1)


def _scalar(field: Any, number: int) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return field.name.encode()
        case FieldDescriptor.CPPTYPE_STRING:
            return f'{{"{field.name}": {number}}}' if field.name.endswith("_json") else field.name
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[1].number
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return number + 0.5
        case _:
            return number * 1_000_001


def shapes() -> dict[str, Any]:
    """Every kind of task, event and change as JSON."""
    made: dict[str, Any] = {"task": public_task(filled(task_pb2.Task())).to_json()}
    made["task, empty"] = public_task(task_pb2.Task(state=task_pb2.TASK_STATE_QUEUED)).to_json()
    for field in ledger_pb2.EntryBody.DESCRIPTOR.fields:
        entry = ledger_pb2.Entry(sequence=1, attempt=1, step=2, actor="worker-1")
        entry.record_time.FromJsonString("2026-11-23T07:00:00.123456Z")
        filled(getattr(entry.body, field.name))
        getattr(entry.body, field.name).SetInParent()
        made[field.name] = entry_event(entry).to_json()
    made["live_text"] = events.LiveTextEvent(kind="live_text", sequence=None, step=1, text="a").to_json()
    change = api.WatchTasksResponse(cursor="c")
    filled(change.change, DEPTH - 1)
    change.change.task.state = task_pb2.TASK_STATE_RUNNING
    made["change"] = change_event(change).to_json()
    made["heartbeat"] = change_event(api.WatchTasksResponse(cursor="c", heartbeat=api.WatchTasksHeartbeat())).to_json()
    made["trace"] = trace_span(trace_of_a_task()).to_json()
    made["file"] = task_file(filled(workspace_pb2.WorkspaceFile())).to_json()
    return made | shapes_of_operations()


def trace_of_a_task() -> TaskSpan:
    """A span with an event and a link."""
    event = SpanEvent("tenure.claim", 1_700_000_001_000_000_000, {"tenure.worker": "worker-1"})
    return TaskSpan(
        "0" * 32,
        "1" * 16,
        "",
        "invoke_agent messages",
        SpanKind.INTERNAL,
        1_700_000_000_000_000_000,
        1_700_000_090_500_000_000,
        9,
        {"tenure.attempt": 1, "gen_ai.response.finish_reasons": ("end_turn",)},
        (event,),
        (("2" * 32, "3" * 16),),
        "TOKEN_LIMIT",
    )


def shapes_of_operations() -> dict[str, Any]:
    """What commands about anything but tasks print, by the name of its message."""
    made = {
        message.DESCRIPTOR.full_name.removeprefix("tenure.v1."): convert(filled(message())).to_json()
        for message, convert in OPERATIONS.items()
    }
    made["UsageSum"] = usage_info("acme", filled(tenant_service_pb2.UsageSum())).to_json()
    made["RefusedWrite"] = refused_write_info("ledger", filled(token_pb2.RefusedWrite())).to_json()
    return made


def test_the_public_json_keeps_its_shape() -> None:
    made = json.dumps(shapes(), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("TENURE_WRITE_GOLDEN"):
        GOLDEN.write_text(made, encoding="utf-8")
    assert json.loads(made) == json.loads(GOLDEN.read_text(encoding="utf-8")), (
        "scripts read this JSON: a field may be added (TENURE_WRITE_GOLDEN=1 writes the file), none renamed or removed"
    )


def test_money_times_and_enums_are_written_for_people() -> None:
    task = shapes()["task"]
    assert task["state"] == "QUEUED"
    assert task["priority"] == "HIGH"
    assert task["created_at"] == "2023-11-14T22:13:20.000000Z"
    assert task["limits"]["timeout_seconds"] == 90.0
    assert isinstance(task["cost_usd"], float)
    assert not [key for key in json.dumps(task).split('"') if "nano" in key or key.startswith("TASK_STATE")]


@pytest.mark.parametrize("name", shapes_of_operations())
def test_no_shape_has_a_name_of_the_contract(name: str) -> None:
    prefix = "[A-Z_]*(?:STATE|KIND|POLICY|OUTCOME|CLASS|DECISION|PRIORITY|PERMISSION|REASON)_"
    text = json.dumps(shapes_of_operations()[name])
    assert re.findall(rf'"(?:{prefix}[A-Z_]+|\w*nano\w*|\w+_time)"', text) == []


def test_money_of_quotas_and_bills_is_in_dollars() -> None:
    use = tenant_service_pb2.QuotaUse(used=1_500_000_000, is_default=True)
    use.quota.kind, use.quota.most = tenant_service_pb2.QUOTA_KIND_MONEY_PER_DAY, 100_000_000_000
    [quota] = OPERATIONS[tenant_service_pb2.Tenant](tenant_service_pb2.Tenant(quotas=[use])).to_json()["quotas"]
    assert (quota["kind"], quota["used_usd"], quota["limit_usd"]) == ("MONEY_PER_DAY", 1.5, 100.0)
    assert (quota["used"], quota["limit"]) == (None, None)
    assert usage_info("", tenant_service_pb2.UsageSum(nano_usd=20_000_000)).to_json()["cost_usd"] == 0.02


def test_an_enum_of_a_newer_gateway_is_its_number() -> None:
    webhook = webhook_service_pb2.Webhook()
    webhook.kind = 99  # type: ignore[assignment]
    assert OPERATIONS[webhook_service_pb2.Webhook](webhook).to_json()["kind"] == "99"


def public_classes() -> list[type]:
    classes = {
        value
        for module in (task_info, events, operations_info)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, PublicValue) and value is not PublicValue
    }
    return sorted(classes, key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    named = set(re.findall(r"`([a-z0-9_]+)`", PAGE.read_text(encoding="utf-8")))
    assert {field.name for field in fields(kind)} <= named
