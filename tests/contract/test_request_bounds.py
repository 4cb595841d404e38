"""Each field of a request that may be long has a bound in the contract, and a request without bounds is not parsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tenure.v1.rule_pb2 import FieldRule
from tenure.validators import longest_request
from tenure.validators.rules import TooManyProblems, Violations, check_fields, is_map, largest_request, rule_of
from tests.fuzz.methods import METHODS

TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


def methods() -> list[MethodDescriptor]:
    return [method.descriptor for method in METHODS]


def fields_of(kind: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """All fields of a message, and of the messages in it."""
    if kind.full_name in seen or not kind.full_name.startswith("tenure."):
        return
    seen.add(kind.full_name)
    for field in kind.fields:
        yield field
        if field.message_type is not None and not is_map(field):
            yield from fields_of(field.message_type, seen)


def is_bounded(field: FieldDescriptor) -> bool:
    rule = rule_of(field)
    if rule is None:
        return False
    if is_map(field):
        return bool(rule.max_items and rule.max_key_length and rule.max_length)
    in_number = not field.is_repeated or bool(rule.max_items)
    in_length = field.type not in TEXTS or bool(rule.max_length or rule.max_bytes or rule.format)
    return in_number and in_length


def test_each_field_that_may_be_long_has_a_bound() -> None:
    seen = set[str]()
    fields = [field for method in methods() for field in fields_of(method.input_type, seen)]
    long = [field for field in fields if field.is_repeated or field.type in TEXTS]
    assert len(long) > 400
    assert [field.full_name for field in long if not is_bounded(field)] == []


def test_each_request_has_a_longest_encoding() -> None:
    for method in methods():
        most = largest_request(method.input_type)
        assert most is not None, method.full_name
        assert longest_request(f"/{method.containing_service.full_name}/{method.name}") == most


Way = tuple[FieldDescriptor, ...]
"""The fields from a request down to a message in it."""


def ways(kind: Descriptor, above: Way = ()) -> Iterator[Way]:
    """The ways to each message in a request, itself first; a type that contains itself is entered once."""
    yield above
    for field in kind.fields:
        rule, below = rule_of(field), field.message_type
        if below is None or is_map(field) or field in above or (rule and rule.items_checked_apart):
            continue
        yield from ways(below, (*above, field))


class Case:
    """A request that has one value outside of its bounds, and the path of that value."""

    def __init__(self, kind: Descriptor, way: Way, field: FieldDescriptor) -> None:
        self.request, self.field, self.path = GetMessageClass(kind)(), field, ""
        message: Any = self.request
        for step in way:
            value = getattr(message, step.name)
            message = value.add() if step.is_repeated else value
            message.SetInParent()
            self.path += f"{step.name}[0]." if step.is_repeated else f"{step.name}."
        self.message, self.path = message, self.path + field.name

    def having(self, value: Any) -> Case:
        if self.field.is_repeated:
            getattr(self.message, self.field.name).append(value)
            self.path += "[0]"
        else:
            setattr(self.message, self.field.name, value)
        return self

    def with_entry(self, key: str, value: str) -> Case:
        getattr(self.message, self.field.name)[key] = value
        self.path += f"[{key!r}]" if len(key) == 1 else ""
        return self

    def with_items(self, count: int) -> Case:
        items, kind = getattr(self.message, self.field.name), self.field.type
        empty: Any = {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}.get(kind, 0)
        for _ in range(count):
            items.append(empty) if self.field.message_type is None else items.add()
        return self


def beyond(field: FieldDescriptor) -> Iterator[Any]:
    """Values just outside of the bounds of a field that is not a message."""
    rule, filled = rule_of(field) or FieldRule(), b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x"
    if most := rule.max_length or rule.max_bytes:
        yield filled * (most + 1)
    if rule.min_length > 1:
        yield filled * (rule.min_length - 1)
    if rule.format or rule.no_nul:
        yield "\0"
    if field.type == FieldDescriptor.TYPE_ENUM:
        yield 99
    elif field.type not in TEXTS and (rule.most or rule.HasField("least")):
        yield rule.least - 1
        if 0 < rule.most < 2**31 - 1:
            yield rule.most + 1


def fields_at(kind: Descriptor, way: Way) -> Sequence[FieldDescriptor]:
    """The fields of the message at the end of a way."""
    below = way[-1].message_type if way else kind
    return below.fields if below is not None else ()


def cases_of(kind: Descriptor, way: Way, field: FieldDescriptor) -> Iterator[Case]:
    rule = rule_of(field)
    if is_map(field):
        yield Case(kind, way, field).with_entry("k" * (rule.max_key_length + 1), "v")
        yield Case(kind, way, field).with_entry("k", "v" * (rule.max_length + 1))
        return
    if field.message_type is None:
        yield from (Case(kind, way, field).having(value) for value in beyond(field))
    if field.is_repeated and rule is not None:
        yield Case(kind, way, field).with_items(rule.max_items + 1)


def refused_fields(request: Message) -> set[str]:
    found = Violations(request.ByteSize())
    with suppress(TooManyProblems):
        check_fields(request, found)
    return {violation.field for violation in found.violations}


def test_each_value_beyond_a_bound_is_refused_by_its_field() -> None:
    """Each bound of the contract holds at each place of each request, so no bound has a test of its own."""
    kinds = {method.input_type.full_name: method.input_type for method in methods()}
    cases = [
        case
        for kind in kinds.values()
        for way in ways(kind)
        for field in fields_at(kind, way)
        if rule_of(field) is not None or field.enum_type is not None
        for case in cases_of(kind, way, field)
    ]
    assert len(cases) > 1000
    assert [case.path for case in cases if case.path not in refused_fields(case.request)] == []


def test_a_time_that_no_clock_has_is_refused_by_its_field() -> None:
    kinds = {method.input_type.full_name: method.input_type for method in methods()}
    times = {"google.protobuf.Timestamp", "google.protobuf.Duration"}
    cases = [
        Case(kind, way, field).having(value)
        for kind in kinds.values()
        for way in ways(kind)
        if way and way[-1].message_type is not None and way[-1].message_type.full_name in times
        for field in way[-1].message_type.fields
        for value in ((2**62, -(2**62)) if field.name == "seconds" else (2**31 - 1, -(2**31)))
    ]
    assert len(cases) > 100
    assert [case.path for case in cases if case.path.rpartition(".")[0] not in refused_fields(case.request)] == []
