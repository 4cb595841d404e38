"""Converts audit records, and reads from a request what it acts on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.audit import MAX_TARGET, AuditRecord, ChainedRecord, Decision
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1 import rule_pb2
from tenure.wire.codec import pair
from tenure.wire.common import EnumMap, moment, timestamp

DECISIONS: Final = EnumMap(Decision, dict(pb.AuditDecision.items()), "AUDIT_DECISION", None)
_TEXTS: Final = frozenset({"name", "tenant", "queue", "webhook", "agent", "tool", "reasons"})
"""Texts that name something. All other texts may be secret or long, so only `…_id` is read besides."""
_NOT_THE_TARGET: Final = frozenset({"request_id", "page_size", "page_token", "actor"})
_PLAIN: Final = re.compile(r"[\w./:@-]+", re.ASCII)
_SUBJECTS_OF_REFUSALS: Final = ("resource", "holder")
"""What a refused token, or a refused session, was for: the request itself has it in signed bytes, or not at all."""


def target_of(request: Any, refused: Mapping[str, str] | None = None) -> str:
    """Returns the fields of a request that say what it acts on: ids, names, numbers, enums; no other texts.

    `refused`: the metadata of the error with which the request was refused. Looks at MAX_TARGET values at the most,
    whether they are returned or not.
    """
    known = [(name, _plain(refused[name])) for name in _SUBJECTS_OF_REFUSALS if refused and name in refused]
    fields = _fields(request, "", count()) if isinstance(request, Message) else iter(())
    parts, length = list[str](), 0
    for name, value in (*known, *fields):
        parts.append(f"{name}={value}")
        length += len(parts[-1])
        if length >= MAX_TARGET:
            break
    return " ".join(parts)[:MAX_TARGET]


def reason_of(request: Any) -> str:
    """Returns the reason that the caller gave, if the request has one."""
    reason = getattr(request, "reason", "")
    return reason.replace("\0", "") if isinstance(reason, str) else ""


def _fields(message: Message, prefix: str, seen: Iterator[int]) -> Iterator[tuple[str, str]]:
    """Yields the fields that name something. `seen` counts the values that were looked at, in all messages.

    A part of a oneof comes first, with its name: it says what the request does, and may have no fields.
    """
    for descriptor, value in sorted(message.ListFields(), key=lambda one: not _chosen_in(one[0])):
        if next(seen) >= MAX_TARGET:
            return
        name = f"{prefix}{descriptor.name}"
        if chosen_in := _chosen_in(descriptor):
            yield f"{prefix}{chosen_in}", descriptor.name
        if _is_no_target(descriptor):
            continue
        if isinstance(value, Timestamp | Duration):
            yield name, _shown_time(value)
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if descriptor.is_repeated else [value]:
                if not isinstance(one, Message) or next(seen) >= MAX_TARGET:  # the keys of a map are a stranger's texts
                    break
                yield from _fields(one, f"{name}.", seen)
        elif descriptor.type != FieldDescriptor.TYPE_STRING or _names_something(descriptor.name):
            values = value if descriptor.is_repeated else [value]
            yield name, ",".join(_shown(descriptor, one) for one in islice(values, MAX_TARGET))


def _chosen_in(field: FieldDescriptor) -> str:
    """Returns the oneof of which this part is one of several; "" for any other field."""
    oneof = field.containing_oneof
    is_part = field.message_type is not None and field.message_type.file.package != "google.protobuf"
    return oneof.name if oneof is not None and is_part and len(oneof.fields) > 1 else ""


def _is_no_target(field: FieldDescriptor) -> bool:
    """Whether a field says nothing of what a request acts on: also what the gateway sets in place of the client."""
    if field.name in _NOT_THE_TARGET or field.type == FieldDescriptor.TYPE_BYTES:
        return True
    return bool(field.GetOptions().Extensions[rule_pb2.rule].by_gateway)


def _names_something(name: str) -> bool:
    return name in _TEXTS or name.endswith(("_id", "_ids"))


def _shown_time(value: Timestamp | Duration) -> str:
    try:
        return value.ToJsonString()
    except ValueError:  # the ledger refuses it
        return "invalid"


def _shown(descriptor: FieldDescriptor, value: Any) -> str:
    if descriptor.type == FieldDescriptor.TYPE_ENUM:
        assert descriptor.enum_type is not None, "a field of this type has one"
        known = descriptor.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return _plain(str(value))


def _plain(text: str) -> str:
    text = text[:MAX_TARGET]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


# A decision of a newer version is a ValueError.
record_to_wire, record_from_wire = pair(AuditRecord, pb.AuditRecord, skip="number record_time hash")


def append_request(records: Iterable[AuditRecord]) -> pb.AppendAuditRecordsRequest:
    """Returns the request that appends the records."""
    return pb.AppendAuditRecordsRequest(records=[record_to_wire(record) for record in records])


def chained_to_wire(chained: ChainedRecord) -> pb.AuditRecord:
    """Returns the record as ListAuditRecords shows it."""
    message = record_to_wire(chained.record)
    message.number, message.hash = chained.number, chained.hash
    message.record_time.CopyFrom(timestamp(chained.recorded_at))
    return message


def chained_from_wire(message: pb.AuditRecord) -> ChainedRecord:
    """Returns the record of ListAuditRecords. Raises ValueError for a decision of a newer version."""
    return ChainedRecord(message.number, moment(message.record_time), record_from_wire(message), message.hash)
