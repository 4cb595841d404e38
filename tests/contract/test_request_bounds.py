"""Each field of a request that may be long has a bound in the contract, and a request without bounds is not parsed."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tenure.validators import longest_request
from tenure.validators.rules import is_map, largest_request, rule_of
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
