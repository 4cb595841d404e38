"""Strategies for whole messages, made from their descriptors: mostly valid, hostile in places.

A request that is wrong everywhere is refused by its first check. So most fields are plausible, a few are hostile, and
`Known` says which ids, tokens and names exist, by the names of the fields that take them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.fuzz import page_tokens
from tests.fuzz.hostile import NANOS, SECONDS, hostile_value

Draw = Callable[[st.SearchStrategy[Any]], Any]
Known = Mapping[str, st.SearchStrategy[Any]]
"""Plausible values by the field's name, or by the full name of the field's message type."""

MAX_DEPTH: Final = 6
MANY: Final = 1000
_NOW: Final = 1_790_000_000
_TIMES: Final = ("google.protobuf.Duration", "google.protobuf.Timestamp")

_JSONS: Final = ("{}", '{"a": 1}', '{"type": "object"}', "[]", '"x"', '{"path": "a.txt", "content": "a"}')

PLAUSIBLE: Final[Known] = {
    "request_id": st.sampled_from([str(uuid.uuid5(uuid.NAMESPACE_OID, str(n))) for n in range(4)])
    | st.uuids().map(str),
    "commit_id": st.uuids().map(str),
    "claim_id": st.uuids().map(str),
    "wait_id": st.uuids().map(str),
    "epoch": st.integers(1, 9).map(lambda n: (1 << 40) + n),
    "call_id": st.sampled_from(["1.0", "1.1", "2.0", "3.5"]),
    "page_token": st.just("")
    | st.sampled_from([*page_tokens.GARBAGE, *page_tokens.POSITIONS])
    | st.binary(max_size=48).map(page_tokens.encoded),
    "after_cursor": st.just(""),
    "prepared_task_id": st.just(""),
    "page_size": st.integers(1, 50),
    "limit": st.integers(1, 50),
    "queue": st.just("fuzz"),
    "loop": st.just("messages"),
    "loops": st.just("messages"),
    "queues": st.just("fuzz"),
    "model": st.sampled_from(["sim-plain", "claude-sonnet-4-5"]),
    "tool": st.sampled_from(["write_file", "list_files", "append_record", "no_such_tool", "ask_user"]),
    "names": st.sampled_from(["write_file", "list_files"]),
    "cron": st.just("0 7 * * *"),
    "time_zone": st.just("UTC"),
    "url": st.just("http://127.0.0.1:9/hook"),
    "event_types": st.just("task.*"),
    "secret": st.just(""),
    "traceparent": st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    "path": st.sampled_from(["a.txt", "", "folder/a.txt"]),
    "factor": st.just(2.0),
}


def messages(descriptor: Descriptor, known: Known = PLAUSIBLE, *, hostile_in: int = 12) -> st.SearchStrategy[Message]:
    """Messages of a type. One field in `hostile_in` is hostile."""

    @st.composite
    def strategy(draw: Draw) -> Message:
        return _Maker(draw, {**PLAUSIBLE, **known}, hostile_in).message(descriptor, 0)

    return strategy()


def type_of(field: Field) -> Descriptor:
    """The type of a field that holds messages."""
    assert field.message_type is not None
    return field.message_type


class _Maker:
    """Makes one message."""

    def __init__(self, draw: Draw, known: Known, hostile_in: int) -> None:
        self._draw, self._known, self._hostile_in = draw, known, hostile_in

    def message(self, descriptor: Descriptor, depth: int) -> Message:
        if descriptor.full_name in _TIMES:
            return self._time(descriptor)
        given = self._known.get(descriptor.full_name)
        if given is not None and not self._is_hostile():
            message: Message = self._draw(given)
            return message
        message = GetMessageClass(descriptor)()
        for field in self._present(descriptor, depth):
            self._fill(message, field, depth)
        return message

    def _present(self, descriptor: Descriptor, depth: int) -> list[Field]:
        """At most one field of each oneof, and most of the others."""
        chosen = [self._draw(st.sampled_from([None, *one.fields, *one.fields])) for one in _true_oneofs(descriptor)]
        alone = [field for field in descriptor.fields if _oneof_of(field) is None and self._odds(4, 5)]
        fields = [field for field in (*chosen, *alone) if field is not None]
        if depth >= MAX_DEPTH:
            fields = [field for field in fields if field.cpp_type != Field.CPPTYPE_MESSAGE]
        return fields

    def _fill(self, message: Message, field: Field, depth: int) -> None:
        if _is_map(field):
            self._fill_map(message, field)
        elif field.is_repeated:
            values = [self._value(field, depth) for _ in range(self._draw(st.integers(0, 2)))]
            if values and self._odds(1, 40):
                values *= MANY
            getattr(message, field.name).extend(values)
        elif field.cpp_type == Field.CPPTYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(self._value(field, depth))
        else:
            setattr(message, field.name, self._value(field, depth))

    def _fill_map(self, message: Message, field: Field) -> None:
        key, value = (type_of(field).fields_by_name[name] for name in ("key", "value"))
        for _ in range(self._draw(st.integers(0, 2))):
            getattr(message, field.name)[self._value(key, 0)] = self._value(value, 0)

    def _value(self, field: Field, depth: int) -> Any:
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            return self.message(type_of(field), depth + 1)
        if self._is_hostile():
            return self._draw(hostile_value(field))
        given = self._known.get(field.name)
        value = None if given is None else self._draw(given)
        if isinstance(value, str) is (field.type == Field.TYPE_STRING) and value is not None:
            return value
        return self._draw(_plausible(field))

    def _time(self, descriptor: Descriptor) -> Message:
        if self._is_hostile():
            seconds, nanos = self._draw(st.sampled_from(SECONDS)), self._draw(st.sampled_from(NANOS))
        else:
            first = 1 if descriptor.full_name.endswith("Duration") else _NOW
            seconds, nanos = first + self._draw(st.integers(0, 40)), 0
        return GetMessageClass(descriptor)(seconds=seconds, nanos=nanos)

    def _is_hostile(self) -> bool:
        return self._odds(1, self._hostile_in)

    def _odds(self, times: int, of: int) -> bool:
        drawn: int = self._draw(st.integers(0, of - 1))
        return drawn >= of - times


def _plausible(field: Field) -> st.SearchStrategy[Any]:
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in _enum_of(field).values])
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
        return st.floats(0.5, 9.0)
    if field.type == Field.TYPE_BYTES:
        return st.binary(max_size=16)
    if field.cpp_type != Field.CPPTYPE_STRING:
        return st.integers(0, 9)
    if field.name.endswith("_json"):
        return st.sampled_from(_JSONS)
    return st.sampled_from(["word", "a-name", "two words"])


def _enum_of(field: Field) -> EnumDescriptor:
    assert field.enum_type is not None
    return field.enum_type


def _oneof_of(field: Field) -> Any:
    """The oneof as written: `optional` makes one of its own."""
    one = field.containing_oneof
    return None if one is None or len(one.fields) == 1 else one


def _true_oneofs(descriptor: Descriptor) -> list[Any]:
    return [one for one in descriptor.oneofs if len(one.fields) > 1]


def _is_map(field: Field) -> bool:
    return field.cpp_type == Field.CPPTYPE_MESSAGE and bool(type_of(field).GetOptions().map_entry)
