"""No value of a client reaches a service in a field that the gateway sets: over all methods of the public API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from re import findall
from typing import Any, cast

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.gateway.admin import Identity
from services.gateway.client_fields import caller, set_own_fields
from services.gateway.forwarder import methods_behind
from services.gateway.main import servicers
from services.gateway.page_tokens import validate_page
from services.gateway.peers import PEER_SERVICES
from tenure.domain.access import Role
from tenure.domain.errors import InvalidRequest, NotFound, TenureError
from tenure.v1 import admin_service_pb2, rule_pb2, task_pb2, task_service_pb2
from tenure.validators.rules import is_map, rule_of
from tenure.wire.access import access_rules

PROTOS = Path(__file__).parents[2] / "protos" / "tenure" / "v1"
FORGED = "forged"
SERVICES = (
    "TaskService",
    "AdminService",
    "LeaseService",
    "ScheduleService",
    "TenantService",
    "WebhookService",
    "ApiKeyService",
    "AgentService",
    "ApprovalService",
    "AuditService",
)


def methods_of(service: str) -> list[MethodDescriptor]:
    return list(descriptor_pool.Default().FindServiceByName(f"tenure.v1.{service}").methods)


def fields_of(kind: Descriptor, above: frozenset[str] = frozenset()) -> Iterator[FieldDescriptor]:
    """All fields of a message, and of the messages in it."""
    for field in kind.fields:
        yield field
        if field.message_type is not None and field.message_type.full_name not in above:
            yield from fields_of(field.message_type, above | {kind.full_name})


def is_replaced(field: FieldDescriptor) -> bool:
    rule = rule_of(field)
    return rule is not None and rule.by_gateway == rule_pb2.BY_GATEWAY_REPLACED


def forge(message: Any, above: frozenset[str] = frozenset()) -> None:
    """Sets every field that the gateway replaces, and makes every message on the way to one."""
    for field in message.DESCRIPTOR.fields:
        kind = field.message_type
        if is_replaced(field):
            _forge_field(message, field)
        elif kind is not None and not is_map(field) and kind.full_name not in above:
            if not any(map(is_replaced, fields_of(kind))):
                continue
            inner = above | {message.DESCRIPTOR.full_name}
            forge(getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name), inner)


def _forge_field(message: Any, field: FieldDescriptor) -> None:
    if field.message_type is not None:
        text = next(each.name for each in field.message_type.fields if each.type == FieldDescriptor.TYPE_STRING)
        setattr(getattr(message, field.name).add(), text, FORGED)
    elif field.is_repeated:
        getattr(message, field.name).append(FORGED)
    else:
        values: dict[int, Any] = {
            FieldDescriptor.TYPE_STRING: FORGED,
            FieldDescriptor.TYPE_BYTES: FORGED.encode(),
            FieldDescriptor.TYPE_INT64: 7,
        }
        setattr(message, field.name, values.get(field.type, True))


def forged_in(message: Any) -> bool:
    """Whether a value that `forge` set is still there. A flag or a number is: only its sender would set it here."""
    flags = [
        getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if is_replaced(field) and field.type in {FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_INT64}
    ]
    parts = [
        part
        for field, value in message.ListFields()
        if field.message_type is not None and not is_map(field)
        for part in (value if field.is_repeated else [value])
    ]
    return any(flags) or FORGED.encode() in message.SerializeToString() or any(map(forged_in, parts))


class RecordingPeers:
    """Stubs that keep each request, and answer with an empty message."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        for attribute, service in PEER_SERVICES.items():
            stub = type(service, (), {method.name: self._method(method) for method in methods_of(service)})
            setattr(self, attribute, stub)

    async def add_renewals(self, _claims: object, _task_id: str) -> None: ...

    def _method(self, method: MethodDescriptor) -> Any:
        answer = _answer_of(method)

        async def call(request: Message, timeout: float | None = None) -> Any:
            self.requests.append(deepcopy(request))
            return answer

        async def stream(_request: Message) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield answer

        return staticmethod(stream if method.server_streaming else call)


def _answer_of(method: MethodDescriptor) -> Any:
    """An empty answer; a task in it runs, so that an operator may take it from its worker."""
    answer: Any = GetMessageClass(method.output_type)()
    if "task" in method.output_type.fields_by_name:
        answer.task.state = task_pb2.TASK_STATE_RUNNING
    if method.name == "CountPlannedCalls":
        answer.plans.add()
    return answer


def handler_of(served: dict[str, Any], method: MethodDescriptor) -> Any:
    return getattr(served[method.containing_service.name], method.name)


PUBLIC = [method for service in SERVICES for method in methods_of(service)]
UNARY = [method for method in PUBLIC if not method.server_streaming]


@pytest.fixture(scope="module")
def recording() -> tuple[RecordingPeers, dict[str, Any]]:
    peers, live, draining = cast("Any", RecordingPeers()), cast("Any", None), asyncio.Event()
    draining.set()  # WaitTask answers at once
    return peers, servicers(peers, live, draining, 1, ["default"], Identity())


@pytest.fixture(autouse=True)
def _caller_without_operate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.client_fields._REPLACED", {"actor": caller, "all_tenants": lambda: False})


def test_every_public_service_is_served(recording: tuple[RecordingPeers, dict[str, Any]]) -> None:
    assert set(recording[1]) == set(SERVICES)


@pytest.mark.parametrize("method", UNARY, ids=lambda method: method.full_name.removeprefix("tenure.v1."))
async def test_no_forged_value_of_a_client_reaches_a_service(
    method: MethodDescriptor, recording: tuple[RecordingPeers, dict[str, Any]]
) -> None:
    peers, served = recording
    peers.requests.clear()
    request = GetMessageClass(method.input_type)()
    forge(request)
    with suppress(InvalidRequest):
        validate_page(request, request.ByteSize())
    assert not forged_in(request)
    if isinstance(request, admin_service_pb2.ResolveInDoubtCallRequest):  # otherwise the gateway looks for a proof
        request.decision.did_not_happen.runner_is_gone = True
    if isinstance(request, admin_service_pb2.ActOnTasksRequest):  # validation demands an act
        request.cancel.SetInParent()
    with suppress(TenureError):
        await handler_of(served, method)(request, None)
    assert [sent for sent in peers.requests if forged_in(sent)] == []
    with_actor: list[Any] = [sent for sent in peers.requests if "actor" in sent.DESCRIPTOR.fields_by_name]
    assert {sent.actor for sent in with_actor} <= {"tenant/default"}


def test_the_forgery_reaches_nested_and_repeated_fields() -> None:
    resolution = admin_service_pb2.ResolveInDoubtCallRequest()
    resolution.decision.did_not_happen.runner_is_gone = True
    forge(resolution)
    assert forged_in(resolution)
    set_own_fields(resolution)
    assert resolution.decision.did_not_happen.runner_is_gone
    assert not forged_in(resolution)
    named = admin_service_pb2.ListInDoubtCallsRequest()
    forge(named)
    assert forged_in(named)
    set_own_fields(named)
    assert not forged_in(named)


def test_fields_of_a_newer_contract_are_dropped() -> None:
    """A newer service may trust them as fields of the gateway."""
    newer = admin_service_pb2.ListInDoubtCallsRequest.FromString(bytes([*(0x98, 0x06), 1]))  # field 99, true
    assert newer.ByteSize() == 3
    validate_page(newer, newer.ByteSize())
    assert newer.ByteSize() == 0


def test_an_empty_request_id_is_filled() -> None:
    empty, given = task_service_pb2.SendMessageRequest(), task_service_pb2.SendMessageRequest(request_id="mine")
    for request in (empty, given):
        set_own_fields(request)
    assert len(empty.request_id) == 36
    assert given.request_id == "mine"


def test_fields_that_the_contract_leaves_to_gateways_are_marked() -> None:
    said = set[str]()
    for path in sorted(PROTOS.glob("*_service.proto")):
        text = path.read_text(encoding="utf-8")
        stated = r"//[^\n]*(?:[Ss]et by the gateway|cleared by the gateway)(?:[^\n]*\n *//)*[^\n]*\n([^;]*;)"
        said.update(findall(stated, text))
    assert len(said) >= 10
    assert [field for field in said if "BY_GATEWAY_REPLACED" not in field] == []


def test_fields_with_the_name_of_a_trusted_field_are_marked() -> None:
    names = {"actor", "all_tenants", "prepared_task_id", "runner_proven_gone"}
    for_clients = [method for method in PUBLIC if _is_for_clients(method)]
    fields = {field.full_name: field for method in for_clients for field in fields_of(method.input_type)}
    named = [field for field in fields.values() if field.name in names]
    assert len(named) > 10
    assert [field.full_name for field in named if not is_replaced(field)] == []


def _is_for_clients(method: MethodDescriptor) -> bool:
    return access_rules(method.containing_service.full_name)[method.name].permission is not None


async def test_a_method_that_is_not_for_clients_is_not_forwarded(
    recording: tuple[RecordingPeers, dict[str, Any]],
) -> None:
    peers, served = recording
    refused = [method for method in PUBLIC if not _is_for_clients(method)]
    assert {method.name for method in refused} == {
        "LookUpApiKey",
        "GetAnswerLink",
        "AnswerByLink",
        "AppendAuditRecords",
    }
    for method in refused:
        peers.requests.clear()
        with pytest.raises(NotFound) as refusal:
            await getattr(served[method.containing_service.name], method.name)(
                GetMessageClass(method.input_type)(), None
            )
        assert refusal.value.reason == "NOT_FOR_CLIENTS"
        assert peers.requests == []


async def test_a_forward_goes_to_the_method_with_its_types(
    recording: tuple[RecordingPeers, dict[str, Any]],
) -> None:
    peers, served = recording
    peers.requests.clear()
    request = admin_service_pb2.ListQueuesRequest()
    answer = await served["AdminService"].ListQueues(request, None)
    assert (peers.requests, answer) == ([request], admin_service_pb2.ListQueuesResponse())


def test_a_forward_goes_to_methods_that_gateways_may_call() -> None:
    assert access_rules("tenure.v1.ToolService")["ListTools"].roles == {Role.WORKER}
    behind = set(methods_behind().values())
    assert {"tools.ListOfferedTools", "checkpoint.GetTask", "leases.GetLease"} <= behind
    assert behind.isdisjoint({"tools.ListTools", "checkpoint.Commit"})
