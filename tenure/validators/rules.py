"""Checks the bounds that the contract states as options of its fields (protos/tenure/v1/rule.proto).

Each message type gets one straight function, compiled from its descriptor when the first request of the type arrives.
It compares the length of a text, list or map before it walks it, so a request costs no more than its bounds allow.
`largest_request` derives the longest encoding of a request from the same bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.access import TENANT_NAME
from tenure.domain.errors import FieldViolation
from tenure.v1 import rule_pb2

MAX_PROBLEMS: Final = 20
"""The violations that a refusal names. A check stops after so many."""
ENVELOPE_BYTES: Final = 64 * 1024
"""Room in a request for fields of a newer version of the contract."""
_LONG_BYTES: Final = 4096
"""Few requests are longer than a bound of so many bytes."""

# The forms of texts.

NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")
FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,54}\Z")
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
WORKER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")
WORKER_ID_RULE: Final = "1 to 128 of a-z, A-Z, 0-9 and ._-, beginning with a letter or digit"
CALL_ID: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}\Z")
RESOURCE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/-]{0,199}\Z")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")

_FORMS: Final[dict[int, tuple[re.Pattern[str], int, str]]] = {
    rule_pb2.FORMAT_UUID: (_UUID, 36, "must be a UUID"),
    rule_pb2.FORMAT_NAME: (NAME, 63, "must be a name of up to 63 characters"),
    rule_pb2.FORMAT_FUNCTION_NAME: (
        FUNCTION_NAME,
        55,
        "must be a name of up to 55 characters: letters, digits, dots, - and _",
    ),
    rule_pb2.FORMAT_TOOL_NAME: (TOOL_NAME, 64, "must be 1 to 64 of [a-zA-Z0-9_-]"),
    rule_pb2.FORMAT_WORKER_ID: (WORKER_ID, 128, f"must be {WORKER_ID_RULE}"),
    rule_pb2.FORMAT_LOOP: (
        re.compile(NAME.pattern.removesuffix(r"\Z") + r"(@[0-9a-f]{16})?\Z"),
        80,
        "must be a name of up to 63 characters",
    ),
    rule_pb2.FORMAT_CALL_ID: (CALL_ID, 31, 'must be "<step>.<index>"'),
    rule_pb2.FORMAT_RESOURCE: (
        RESOURCE,
        200,
        "must be a name of up to 200 characters of a-z, A-Z, 0-9, ._-/",
    ),
    rule_pb2.FORMAT_TENANT: (re.compile(TENANT_NAME.pattern + r"\Z"), 63, "must be 1 to 63 of a-z, 0-9 and -"),
    rule_pb2.FORMAT_SHA256_HEX: (re.compile(r"[0-9a-f]{64}\Z"), 64, "must be 64 lower-case hexadecimal digits"),
    rule_pb2.FORMAT_SHA256: (re.compile(r"sha256:[0-9a-f]{64}\Z"), 71, "must be sha256:<hex>"),
}
"""Format → its pattern, its most characters, and the violation."""

# The violations of a request, collected while the checks run.


class TooManyProblems(Exception):  # noqa: N818  it ends a check early, and no caller sees it
    """Enough violations for one refusal were found."""


class Violations:
    """Collects the violations of a request, each with the path of its field, until there are MAX_PROBLEMS.

    `size`: the bytes of the request, which no text in it can exceed.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.violations: list[FieldViolation] = []
        self.unreadable = False
        """Whether a value is longer than its bound or cannot be converted: no rule across fields may read it."""

    def require(self, holds: bool, field: str, description: str) -> None:
        """Raises TooManyProblems after the last violation that a refusal names."""
        if not holds:
            self.violations.append(FieldViolation(field, description))
            if len(self.violations) >= MAX_PROBLEMS:
                raise TooManyProblems

    def between(self, field: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            self.require(holds=False, field=field, description=f"must be {least:g} to {most:g}")

    def broken(self, path: _Path, name: str, description: str, place: object = None) -> None:
        """Adds a violation of the field `name`, or of its item `place`, of the message at `path`."""
        self.require(holds=False, field=_joined(path, name, place), description=description)

    def cannot_read(self, path: _Path, name: str, description: str, place: object = None) -> None:
        """Adds a violation of a value that nothing may read further."""
        self.unreadable = True
        self.broken(path, name, description, place)


_Path = tuple[Any, str, object] | None
"""The path of the message above, the name of a field in it, and the place in a repeated field or None."""


def _joined(path: _Path, name: str, place: object = None) -> str:
    own = name if place is None else f"{name}[{place!r}]"
    return own if path is None else f"{_joined(*path)}.{own}"


# The compiled check of a message type.

Check = Callable[[Any, Any, Violations], None]


def _check_timestamp(m: Timestamp, path: Any, v: Violations) -> None:
    if not (-62_135_596_800 <= m.seconds <= 253_402_300_799 and 0 <= m.nanos <= 999_999_999):
        v.cannot_read(path[0], path[1], "must be a time of the years 1 to 9999", path[2])


def _check_duration(m: Duration, path: Any, v: Violations) -> None:
    in_range = -315_576_000_000 <= m.seconds <= 315_576_000_000 and -999_999_999 <= m.nanos <= 999_999_999
    if not in_range or m.seconds < 0 < m.nanos or m.nanos < 0 < m.seconds:
        v.cannot_read(path[0], path[1], "must be a duration of at most 10,000 years", path[2])


_TIMES: Final[dict[str, Check]] = {
    "google.protobuf.Timestamp": _check_timestamp,
    "google.protobuf.Duration": _check_duration,
}
"""The messages of protobuf that can hold more than protobuf allows, and more than a clock can."""
_SCALARS: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT32,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_DOUBLE,
    }
)


def rule_of(field: FieldDescriptor) -> Any:
    """Returns the FieldRule of a field, or None for a field without one."""
    options = field.GetOptions()
    return options.Extensions[rule_pb2.rule] if options.HasExtension(rule_pb2.rule) else None


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def check_fields(message: Message, v: Violations) -> None:
    """Checks the bounds of all fields of a message, and of the messages in it."""
    kind: Any = message.DESCRIPTOR
    _compiled(kind)(message, None, v)


@cache
def _compiled(kind: Descriptor) -> Check:
    if kind.full_name in _TIMES:
        return _TIMES[kind.full_name]
    names: dict[str, Any] = {"encoded": _has_at_most}
    lines = [line for field in kind.fields if not _is_choice(field) for line in _of_field(field, names)]
    lines += [line for oneof in kind.oneofs for line in _of_choices(oneof, names)]
    source = "def check(m, path, v):\n" + "\n".join(f"    {line}" for line in [*lines, "return"])
    exec(compile(source, f"<bounds of {kind.full_name}>", "exec"), names)  # noqa: S102  from our own descriptors
    check: Check = names["check"]
    return check


@cache
def _has_rules(kind: Descriptor, above: frozenset[str]) -> bool:
    if kind.full_name in above:
        return False
    if kind.full_name in _TIMES:
        return True
    inner = above | {kind.full_name}
    return any(
        rule_of(field) is not None
        or field.enum_type is not None
        or (field.message_type is not None and _has_rules(field.message_type, inner))
        for field in kind.fields
    )


def _has_at_most(text: str, most: int) -> bool:
    return len(text) * 4 <= most or len(text.encode()) <= most


def _of_field(field: FieldDescriptor, names: dict[str, Any]) -> Iterator[str]:
    """Yields the lines that check a field of the message `m`."""
    rule, name = rule_of(field) or rule_pb2.FieldRule(), field.name
    if is_map(field):
        yield from _of_map(name, rule)
    elif field.is_repeated:
        yield from _of_list(field, rule, names)
    elif field.message_type is not None:
        if call := _call(field, f"(path, {name!r}, None)", f"m.{name}", names):
            yield f"if m.HasField({name!r}): {call}"
    else:
        guard = f"m.HasField({name!r}) and " if field.has_presence else ""
        if rule == rule_pb2.FieldRule(max_bytes=rule.max_bytes) and rule.max_bytes >= _LONG_BYTES:
            guard = f"v.size > {rule.max_bytes} and {guard}"  # nearly always decided without a copy of the value
            [(holds, problem, add)] = _bounds(field, rule, f"m.{name}", names)
            yield f"if {guard}not ({holds}): v.{add}(path, {name!r}, {problem!r})"
            return
        for holds, problem, add in _bounds(field, rule, "x", names):
            yield f"x = m.{name}"
            yield f"if {guard}not ({holds}): v.{add}(path, {name!r}, {problem!r})"


def _is_choice(field: FieldDescriptor) -> bool:
    """Whether the field is a message in a oneof: `_of_choices` checks the one that is set."""
    return field.containing_oneof is not None and field.message_type is not None


def _of_choices(oneof: OneofDescriptor, names: dict[str, Any]) -> Iterator[str]:
    checks: dict[str, Any] = {}
    for field in oneof.fields:
        if _is_choice(field):
            _put_later(field.message_type, checks, field.name)
    if checks:
        table = f"choices_{oneof.name}"
        names[table] = checks
        yield f"x = m.WhichOneof({oneof.name!r})"
        yield f"if x in {table}: {table}[x](getattr(m, x), (path, x, None), v)"


def _of_list(field: FieldDescriptor, rule: Any, names: dict[str, Any]) -> Iterator[str]:
    name = field.name
    inside = [
        f"if not ({holds}): v.{add}(path, {name!r}, {problem!r}, n)"
        for holds, problem, add in _bounds(field, rule, "x", names)
    ]
    apart = rule.items_checked_apart
    if not apart and field.message_type is not None and (call := _call(field, f"(path, {name!r}, n)", "x", names)):
        inside.append(call)
    yield f"xs = m.{name}"
    yield from _counted(name, rule)
    if inside:
        yield "else:" if rule.max_items else "if True:"
        yield "    for n, x in enumerate(xs):"
        yield from (f"        {line}" for line in inside)
    elif rule.max_items:
        yield "else: pass"


def _of_map(name: str, rule: Any) -> Iterator[str]:
    yield f"xs = m.{name}"
    yield from _counted(name, rule)
    yield "else:"
    yield "    for n, x in xs.items():"
    keys = f"must have a key of 1 to {rule.max_key_length} characters"
    yield f"        if len(n) > {rule.max_key_length}: v.cannot_read(path, {name!r}, {keys!r})"
    yield f"        elif not n: v.broken(path, {name!r}, {keys!r}, n)"
    values = f"must have 0 to {rule.max_length} characters"
    yield f"        elif len(x) > {rule.max_length}: v.cannot_read(path, {name!r}, {values!r}, n)"
    if rule.no_nul:
        yield f"        elif '\\0' in n or '\\0' in x: v.broken(path, {name!r}, 'must not contain NUL', n)"


def _counted(name: str, rule: Any) -> Iterator[str]:
    """Yields the check of the number of items, which ends in an `if`."""
    most, least = rule.max_items, rule.min_items
    if most:
        problem = f"must have {least} to {most} items" if least else f"at most {most}"
        if least:
            yield f"if len(xs) < {least}: v.broken(path, {name!r}, {problem!r})"
        yield f"if len(xs) > {most}: v.cannot_read(path, {name!r}, {problem!r})"


def _bounds(field: FieldDescriptor, rule: Any, x: str, names: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields conditions that a value of the field fulfils, each with the violation and the method that adds it."""
    if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        yield from _of_text(field, rule, x, names)
    elif field.type in _SCALARS and (rule.most or rule.HasField("least")):
        yield _of_number(rule, x)
    elif field.type == FieldDescriptor.TYPE_ENUM:  # an unknown value must not be read as the default
        assert field.enum_type is not None, "an enum field has a type"
        known = f"known_{field.number}"
        names[known] = frozenset(field.enum_type.values_by_number)
        yield f"{x} in {known}", f"must be one of {', '.join(field.enum_type.values_by_name)}", "broken"


def _of_text(field: FieldDescriptor, rule: Any, x: str, names: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if rule.max_length or rule.min_length:
        text = f"must have {rule.min_length} to {rule.max_length} characters"
        yield f"len({x}) <= {rule.max_length}", text, "cannot_read"
        if rule.min_length:
            yield f"len({x}) >= {rule.min_length}", text, "broken"
    if rule.max_bytes and field.type == FieldDescriptor.TYPE_BYTES:
        yield f"len({x}) <= {rule.max_bytes}", f"at most {rule.max_bytes} bytes", "cannot_read"
    elif rule.max_bytes:
        yield f"encoded({x}, {rule.max_bytes})", f"at most {rule.max_bytes} bytes", "cannot_read"
    if rule.format:
        pattern, _most, text = _FORMS[rule.format]
        names[f"match_{rule.format}"] = pattern.match
        yield (f"not {x} or " if rule.may_be_empty else "") + f"match_{rule.format}({x})", text, "broken"
    if rule.no_nul:
        yield f"'\\0' not in {x}", "must not contain NUL", "broken"


def _of_number(rule: Any, x: str) -> tuple[str, str, str]:
    if rule.most:
        return f"{rule.least} <= {x} <= {rule.most}", f"must be {rule.least:g} to {rule.most:g}", "broken"
    problem = f"must be {rule.least} or more" if rule.least else "must not be negative"
    return f"{x} >= {rule.least}", problem, "broken"


def _call(field: FieldDescriptor, path: str, value: str, names: dict[str, Any]) -> str:
    """Returns the call of the check of a field's message, or nothing for a message without bounds."""
    _put_later(field.message_type, names, f"check_{field.number}")
    return f"check_{field.number}({value}, {path}, v)" if f"check_{field.number}" in names else ""


def _put_later(kind: Descriptor | None, names: dict[str, Any], name: str) -> None:
    """Puts the check of a message type with bounds into `names`. It is compiled, and then stands there itself, when it
    is first called: a type may contain itself.
    """
    if kind is None or not _has_rules(kind, frozenset()):
        return

    def check(message: Any, path: _Path, v: Violations) -> None:
        names[name] = compiled = _compiled(kind)
        compiled(message, path, v)

    names[name] = check


# The longest request.


@cache
def largest_request(kind: Descriptor) -> int | None:
    """Returns the most bytes that a request of this type may have, or None if a field has no bound."""
    most = _largest(kind, frozenset())
    return None if most is None else most + ENVELOPE_BYTES


def _largest(kind: Descriptor, above: frozenset[str]) -> int | None:
    if kind.full_name in above:
        return 0  # a token in a token: the envelope has room for it
    if stated := kind.GetOptions().Extensions[rule_pb2.max_message_bytes]:
        return int(stated)
    total = 0
    for field in kind.fields:
        rule = rule_of(field) or rule_pb2.FieldRule()
        one = _largest_value(field, rule, above | {kind.full_name})
        times = rule.max_items if field.is_repeated else 1
        if one is None or (field.is_repeated and not times):
            return None
        total += times * (one + _HEAD_BYTES)
    return total


_HEAD_BYTES: Final = 8
"""The tag and the length before a value, at most."""
_NUMBER_BYTES: Final = 10


def _largest_value(field: FieldDescriptor, rule: Any, above: frozenset[str]) -> int | None:
    if is_map(field):
        return 4 * (int(rule.max_key_length) + int(rule.max_length)) + 2 * _HEAD_BYTES
    if field.message_type is not None:
        return _largest(field.message_type, above)
    if field.type not in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        return _NUMBER_BYTES
    if rule.max_bytes:
        return int(rule.max_bytes)
    if rule.max_length:
        return 4 * int(rule.max_length)
    return _FORMS[rule.format][1] if rule.format else None


def message_bytes(message: type[Message]) -> int:
    """Returns the most bytes that the contract states for a message."""
    return int(message.DESCRIPTOR.GetOptions().Extensions[rule_pb2.max_message_bytes])


def bounds(message: type[Message], field: str) -> Any:
    """Returns the FieldRule of a field of a message, for senders that keep to it."""
    descriptor: Any = message.DESCRIPTOR
    return rule_of(descriptor.fields_by_name[field])
