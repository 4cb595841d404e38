"""A peer of a newer version says what we do not know yet (F51): ignored, taken for the default, or refused by name.

Never is it a crash: a task must not suffer from an upgrade that is half done.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tenure.domain import entries as facts
from tenure.domain.errors import Unavailable
from tenure.v1 import ledger_pb2, task_pb2, task_service_pb2, tool_pb2
from tenure.validators import validate
from tenure.wire.common import state_name
from tenure.wire.ledger import body_to_wire, read_entries
from tenure.wire.task import spec_to_domain, spec_to_wire
from tenure.wire.tool import call_statuses_to_domain, outcome_to_domain, tool_to_domain
from tests.unit.test_wire import BODIES, SPEC

AnyMessage = TypeVar("AnyMessage", bound=Message)
UNKNOWN_VALUE = 9999
UNKNOWN_FIELD = b"\xfa\xff\x07\x05newer"
"""Field 16383, five bytes long."""


def newer(message: AnyMessage) -> AnyMessage:
    """The same with a field that we do not know in it and in all its parts, and values of enums likewise."""
    response = type(message)()
    response.CopyFrom(message)
    _make_newer(response)
    return response


def _make_newer(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else [value]:
                _make_newer(part)
    for known in message.DESCRIPTOR.fields:
        if known.type == FieldDescriptor.TYPE_ENUM and not known.is_repeated and known.containing_oneof is None:
            setattr(message, known.name, UNKNOWN_VALUE)
    message.MergeFromString(UNKNOWN_FIELD)


def test_the_newer_message_is_one() -> None:
    spec = newer(spec_to_wire(SPEC))
    assert (spec.priority, spec.policy.on_in_doubt) == (UNKNOWN_VALUE, UNKNOWN_VALUE)
    assert spec.SerializeToString().endswith(UNKNOWN_FIELD)
    assert task_pb2.TaskSpec.FromString(spec.SerializeToString()) == spec


def test_a_spec_with_unknown_choices_takes_the_defaults() -> None:
    read = spec_to_domain(newer(spec_to_wire(SPEC)))
    plain = spec_to_domain(task_pb2.TaskSpec(goal=SPEC.goal))
    assert (read.goal, read.queue, read.limits, read.labels) == (SPEC.goal, SPEC.queue, SPEC.limits, SPEC.labels)
    assert read.priority is plain.priority
    assert read.source.kind is plain.source.kind
    assert (read.policy.on_lease_lost, read.policy.on_in_doubt) == (
        plain.policy.on_lease_lost,
        plain.policy.on_in_doubt,
    )


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_fact_is_read_or_left_to_a_newer_version(body: Any) -> None:
    entry = newer(ledger_pb2.Entry(sequence=1, body=body_to_wire(body)))
    closes = isinstance(body, facts.OperatorRequest) and isinstance(body.act, facts.OperatorCloseOut)
    if closes or isinstance(body, facts.Transition | facts.WaitResolution):  # we could not tell what follows
        with pytest.raises(Unavailable) as refused:
            read_entries([entry])
        assert refused.value.reason == "NEWER_LEDGER"
    else:
        (read,) = read_entries([entry])
        assert type(read.body) is type(body)


def test_an_unknown_kind_of_outcome_is_taken_for_the_worst() -> None:
    tool = tool_to_domain(newer(tool_pb2.ToolDefinition(name="t", input_schema_json="{}")))
    assert tool.effect_class.name == "UNSAFE"
    assert outcome_to_domain(newer(tool_pb2.Outcome(content="c"))).status.name == "FAILED"


def test_calls_in_an_unknown_state_are_requested_later() -> None:
    with pytest.raises(Unavailable) as refused:
        call_statuses_to_domain([newer(tool_pb2.CallRecord(call_id="1.0"))])
    assert refused.value.reason == "NEWER_TOOLS"


def test_a_state_that_is_unknown_can_be_shown() -> None:
    assert state_name(UNKNOWN_VALUE) == f"STATE_{UNKNOWN_VALUE}"
    assert state_name(task_pb2.TASK_STATE_RUNNING) == "RUNNING"


@pytest.mark.parametrize(
    "request_message",
    [
        task_service_pb2.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="g")),
        task_service_pb2.GetTaskRequest(task_id="00000000-0000-7000-8000-000000000000"),
        task_service_pb2.ListTaskEntriesRequest(task_id="00000000-0000-7000-8000-000000000000"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_request_with_a_field_that_we_do_not_know_is_served(request_message: Any) -> None:
    request_message.MergeFromString(UNKNOWN_FIELD)
    validate(request_message)
