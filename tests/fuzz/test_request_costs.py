"""No request up to the size limit of a server costs it much more than its parser takes before it is refused.

Each repeated field of each request is filled up to the limit with the smallest items, in the place where it stands. The
cost is processor time of this process: of the validation and the audit record, beside that of the parsing, so that the
speed of the machine does not decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.gateway.page_tokens import validate_page
from tenure.domain.errors import InvalidRequest
from tenure.validators import longest_request, validate
from tenure.wire.audit import target_of
from tests.fuzz.methods import METHODS, Method

SERVER_BYTES: Final = 4 * 1024 * 1024
MOST_OF_THE_PARSER: Final = 0.5
ALWAYS_SECONDS: Final = 0.02
"""What a request may always cost after it is parsed."""
TRIES: Final = 10
SHORT_BYTES: Final = 1000
VALIDATE_AT: Final = {"gateway": validate_page}
"""What a process validates its requests by, where that is not `validate`."""

pytestmark = pytest.mark.faults


def varint(number: int) -> bytes:
    """A number as protobuf encodes it."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def head(field: FieldDescriptor) -> bytes:
    """The tag of a field whose value has a length."""
    return varint(field.number << 3 | 2)


def repeated_fields(kind: Descriptor, above: tuple[FieldDescriptor, ...] = ()) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The ways from a request to each repeated field in it, each a chain of fields."""
    if len(above) > 6 or kind in [field.containing_type for field in above]:
        return
    for field in kind.fields:
        if field.is_repeated:
            yield (*above, field)
        elif field.message_type is not None and field.message_type.full_name.startswith("tenure."):
            yield from repeated_fields(field.message_type, (*above, field))


def filled(way: tuple[FieldDescriptor, ...], size: int) -> bytes:
    """A request of about `size` bytes whose field has as many of the smallest items as fit."""
    *outer, last = way
    if last.type in {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        item = head(last) + b"\x00"
        content = item * (size // len(item))
    else:
        content = head(last) + varint(size) + b"\x01" * size
    for field in reversed(outer):
        content = head(field) + varint(len(content)) + content
    return content


def seconds_of(method: Method, raw: bytes) -> tuple[float, float]:
    """The time of the parser, and of all else until the request is refused, or its items are cleared by the gateway."""
    began = time.process_time()
    message = method.request.FromString(raw)
    parsed = time.process_time()
    is_refused = False
    try:
        VALIDATE_AT.get(method.process, validate)(message, len(raw))
    except InvalidRequest:
        is_refused = True
    target_of(message)
    further_seconds = time.process_time() - parsed
    assert is_refused or message.ByteSize() < SHORT_BYTES
    return parsed - began, further_seconds


def is_small(parser_seconds: float, further_seconds: float) -> bool:
    return further_seconds < max(ALWAYS_SECONDS, MOST_OF_THE_PARSER * parser_seconds)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_request_full_of_items_is_soon_refused(method: Method) -> None:
    most = min(longest_request(method.path) or SERVER_BYTES, SERVER_BYTES)
    for way in repeated_fields(method.descriptor.input_type):
        raw = filled(way, most - 64)
        names = ".".join(field.name for field in way)
        costs: list[tuple[float, float]] = []
        while not any(is_small(*cost) for cost in costs):
            assert len(costs) < TRIES, f"{names}: {costs}"  # the work of others only adds to what it costs
            costs.append(seconds_of(method, raw))
