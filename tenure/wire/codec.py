"""Converts values to messages and messages to values by the names of their fields: one line for each pair of types.

    wait_to_wire, wait_to_domain = pair(Wait, task_pb2.Wait, rename={"sub_agents": "sub_agent_task_ids"})

A value is a dataclass or a NamedTuple. Its first conversion compiles a function from type hints and descriptor: an
import costs nothing, and a call inspects no types. A field that has no counterpart raises TypeError, so a new field
cannot be forgotten. `_wire_names` and `Codec._functions` have the rules. By hand remain JSON, and defaults that depend
on another field.
"""

from __future__ import annotations

import dataclasses
import json
import linecache
import typing
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from types import FunctionType, NoneType
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar, Union, Unpack

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tenure.domain.budget import NANO_USD
from tenure.wire.common import EnumMap, duration, moment, seconds, timestamp, unix_seconds

V = TypeVar("V")
M = TypeVar("M", bound=Message)
Convert = Callable[[Any], Any]
_Functions = tuple[Convert | None, Convert | None]
"""To the wire and from it. None: the field has the same value on both sides."""


def dollars(nano_usd: int) -> Decimal:
    """Returns an exact amount of US dollars."""
    return Decimal(nano_usd) / NANO_USD


def json_of(text: str) -> Any:
    """Returns the value of a JSON text; None for an empty one, and the text itself if it is not JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


_READ_SCALARS: Final[dict[Any, Convert]] = {Any: json_of, Decimal: dollars}
FUNCTIONS: Final[dict[tuple[Any, str], _Functions]] = {
    (float, "google.protobuf.Duration"): (duration, seconds),
    (float, "google.protobuf.Timestamp"): (lambda unix: timestamp(datetime.fromtimestamp(unix, UTC)), unix_seconds),
    (datetime, "google.protobuf.Timestamp"): (timestamp, moment),
}
"""The functions of each pair, by the type of the value and the full name of the message."""

CODECS: Final[list[Codec[Any, Any]]] = []
"""All pairs, for the tests."""


class PairOptions(TypedDict, total=False):
    """How a pair differs from the rules.

    `rename`: fields of the message by those of the value; for a reader also a path such as "spec.goal". `within`: parts
    of the message whose fields belong to the value. `skip`: fields of either side that are left out. `convert`: the two
    functions of a field. `given`: fields of the value that a function reads from the message. `defaults`: an unset
    field takes its default, and a part that has only defaults is not written. `known`: reads an enum.
    """

    rename: Mapping[str, str]
    within: Sequence[str]
    skip: str
    convert: Mapping[str, _Functions]
    given: Mapping[str, Convert]
    defaults: bool
    known: Callable[[EnumMap[Any, Any], int], Enum]


def pair(value: type[V], message: type[M], **options: Unpack[PairOptions]) -> tuple[Callable[[V], M], Callable[[M], V]]:
    """Returns the functions to the wire and to the domain. Fields of this type in later pairs use them."""
    codec = Codec(value, message, options, "writer reader")
    register(value, message, codec.to_wire, codec.to_domain)
    return codec.to_wire, codec.to_domain


def reader(value: type[V], message: type[M], **options: Unpack[PairOptions]) -> Callable[[M], V]:
    """Returns the function from a message to its value, for a value that is never sent."""
    codec = Codec(value, message, options, "reader")
    register(value, message, None, codec.to_domain)
    return codec.to_domain


def writer(value: type[V], message: type[M], **options: Unpack[PairOptions]) -> Callable[[V], M]:
    """Returns the function from a value to its message, for a value that is never read, such as a row."""
    return Codec(value, message, options, "writer").to_wire


def register(value: Any, message: type[Message], to_wire: Convert | None, to_domain: Convert | None) -> None:
    """Makes functions that were written by hand known to the fields of later pairs."""
    FUNCTIONS[value, message.DESCRIPTOR.full_name] = (to_wire, to_domain)


def union(kinds: Any, message: type[Message]) -> tuple[Convert, Convert]:
    """Returns the functions of a union whose kinds are the fields of the message's only oneof."""
    descriptor = typing.cast("Descriptor", message.DESCRIPTOR)
    part, to_domain = _union(kinds, descriptor, *descriptor.oneofs_by_name)

    def to_wire(value: Any) -> Message:
        return message(**part(value))

    register(kinds, message, to_wire, to_domain)
    return to_wire, to_domain


def _union(kinds: Any, message: Descriptor, oneof: str) -> tuple[Convert, Convert]:
    """Returns the functions to the keyword argument of one kind, and from the message."""
    writes, reads = dict[Any, tuple[str, Convert]](), dict[str, Convert]()
    for field in message.oneofs_by_name[oneof].fields:
        [(kind, functions)] = [
            (kind, FUNCTIONS[kind, field.message_type.full_name])
            for kind in typing.get_args(kinds)
            if field.message_type is not None and (kind, field.message_type.full_name) in FUNCTIONS
        ]
        write, reads[field.name] = typing.cast("tuple[Convert, Convert]", functions)
        writes[kind] = field.name, write
    if missing := set(typing.get_args(kinds)) - set(writes):
        raise TypeError(f"{message.name}.{oneof} has no field for {missing}")

    def part(value: Any) -> dict[str, Any]:
        name, to_wire = writes[type(value)]
        return {name: to_wire(value)}

    def to_domain(sent: Any) -> Any:
        name = sent.WhichOneof(oneof)
        if name is None:
            raise ValueError(f"{message.name}.{oneof} is of a kind that this version does not know")
        return reads[name](getattr(sent, name))

    return part, to_domain


def _wire_names(name: str) -> Iterator[str]:
    """Yields the names that the message may have for a field of the value, such as create_time for created_at."""
    yield name
    yield name.removesuffix("_seconds")
    yield f"{name}_json"
    yield name.replace("cost_usd", "nano_usd")
    if name.endswith("_at"):
        verb = name.removesuffix("_at")
        yield from (f"{stem}_time" for stem in (verb, verb.removesuffix("d"), verb.removesuffix("ed")))


class _EnumNames(dict[int, str]):
    """The names of an enum without their prefix: "" for unspecified, the number for one that we do not know."""

    def __init__(self, enum: EnumDescriptor) -> None:
        prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
        super().__init__({value.number: value.name.removeprefix(prefix) for value in enum.values} | {0: ""})

    def __missing__(self, number: int) -> str:
        return str(number)


class _Mapped(NamedTuple):
    """A field of the value, with its counterpart: the field of the message at a path, or a oneof (`field` None)."""

    name: str
    hint: Any
    optional: bool
    default: Any
    path: str
    field: FieldDescriptor | None


def _stub(argument: Any) -> Any:
    return compile_and_call(argument)  # type: ignore[name-defined]  # noqa: F821  a global of each pair


class Codec(Generic[V, M]):
    """The two functions of a pair. Each compiles itself when it is first called."""

    def __init__(self, value: type[V], message: type[M], options: PairOptions, directions: str) -> None:
        self.value, self.message, self.options, self._directions = value, message, options, directions
        self._descriptor: Final = typing.cast("Descriptor", message.DESCRIPTOR)
        self._places: Final = ("", *options.get("within", ()))
        self._skipped: Final = set(options.get("skip", "").split())
        self.to_wire: Callable[[V], M] = self._compiled_at_first_call("to_wire", self._writer)
        self.to_domain: Callable[[M], V] = self._compiled_at_first_call("to_domain", self._reader)
        CODECS.append(self)

    def source(self) -> str:
        """Returns the source of the functions. Raises TypeError for a field that has no counterpart."""
        made = {"writer": self._writer, "reader": self._reader}
        return "".join(made[direction]({}) for direction in self._directions.split())

    def _compiled_at_first_call(self, name: str, source_of: Callable[[dict[str, Any]], str]) -> Any:
        space: dict[str, Any] = {"Value": self.value, "Message": self.message}
        function = FunctionType(_stub.__code__, space, name)

        def compile_and_call(argument: Any) -> Any:
            source, file = source_of(space), f"<{name} of {self.value.__name__}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
            exec(compile(source, file, "exec"), space)  # noqa: S102  the source has names of fields, and no other text
            function.__code__ = space["convert"].__code__
            return function(argument)

        space["compile_and_call"] = compile_and_call
        return function

    def _writer(self, space: dict[str, Any]) -> str:
        """Returns the source of the function to the wire, and puts what the source uses into `space`."""
        names = [name for name in self._descriptor.fields_by_name if self._is_property(name)]
        parts = [
            *(self._written(mapped, space) for mapped in self.mapped()),
            *(f"{name}=value.{name}" for name in names),
        ]
        return _function("value", [], "Message", parts)

    def _written(self, mapped: _Mapped, space: dict[str, Any]) -> str:
        own, write = f"value.{mapped.name}", f"write_{mapped.name}"
        field, function = mapped.field, self._functions(mapped)[0]
        space[write] = function
        if field is None:
            return f"**{write}({own})"
        if is_map(field):
            written = f"dict({own})"
        elif function is None:
            written = own
        elif field.is_repeated:
            written = f"[{write}(each) for each in {own}]"
        elif mapped.optional:
            written = f"None if {own} is None else {write}({own})"
        elif self._leaves_out_defaults(mapped, function):
            space[f"default_{mapped.name}"] = mapped.default
            written = f"None if {own} == default_{mapped.name} else {write}({own})"
        else:
            written = f"{write}({own})"
        return f"{mapped.path}={written}"

    def _leaves_out_defaults(self, mapped: _Mapped, function: Convert) -> bool:
        """Whether a part that has only defaults is empty, so that the message needs no part."""
        is_part = mapped.field is not None and mapped.field.message_type is not None
        has_default = self.options.get("defaults") and mapped.default is not None
        return bool(is_part and has_default and not function(mapped.default).ByteSize())

    def _reader(self, space: dict[str, Any]) -> str:
        """Returns the source of the function to the domain, and puts what the source uses into `space`."""
        mapped = list(self.mapped())
        paths = dict.fromkeys(part for each in mapped for part in _parents(each.path))
        own = _positional_fields(self.value)
        parts = [
            # A call with positional arguments is faster. A field that is left out makes those after it keywords.
            ("" if own[number : number + 1] == [each.name] else f"{each.name}=") + self._read(each, space)
            for number, each in enumerate(mapped)
        ]
        for name, read in self.options.get("given", {}).items():
            space[f"read_{name}"] = read
            parts.append(f"{name}=read_{name}(message)")
        return _function("message", [f"{_variable(path)} = {_sent(path)}" for path in paths], "Value", parts)

    def _read(self, mapped: _Mapped, space: dict[str, Any]) -> str:
        sent, read = _sent(mapped.path), f"read_{mapped.name}"
        field, function = mapped.field, self._functions(mapped)[1]
        space[read] = function
        if field is None:
            return f"{read}(message)"
        if is_map(field):
            return f"{'tuple' if typing.get_origin(mapped.hint) is tuple else 'dict'}(sorted({sent}.items()))"
        if field.is_repeated:
            return f"tuple({sent})" if function is None else f"tuple([{read}(each) for each in {sent}])"
        value = sent if function is None else f"{read}({sent})"
        parent, _, leaf = mapped.path.rpartition(".")
        is_set = f"{_variable(parent)}.HasField({leaf!r})" if field.has_presence else sent
        defaults = self.options.get("defaults", False)
        if not mapped.optional and not (defaults and mapped.default):
            return value
        default = "None" if mapped.optional else f"default_{mapped.name}"
        space[default] = mapped.default
        is_number = mapped.hint is float and field.message_type is not None and not mapped.optional
        return f"{value} or {default}" if defaults and is_number else f"{value} if {is_set} else {default}"

    def _functions(self, mapped: _Mapped) -> _Functions:
        """Returns the functions of a field, or of one element of a repeated field."""
        hint, field = mapped.hint, mapped.field
        if mapped.name in self.options.get("convert", {}):
            return self.options["convert"][mapped.name]
        if field is None:
            return _union(hint, self._descriptor, mapped.path)
        if field.is_repeated:
            hint = typing.get_args(hint)[0]
        if field.enum_type is not None:
            return self._enum(hint, field.enum_type, optional=mapped.optional)
        if field.message_type is not None and not is_map(field):
            return self._part(hint, field.message_type)
        if hint is str and field.type == FieldDescriptor.TYPE_BYTES:
            return None, _base64
        return None, _READ_SCALARS.get(hint)

    def _part(self, hint: Any, message: Descriptor) -> _Functions:
        if hint is bytes:
            return GetMessageClass(message).FromString, None
        if (hint, message.full_name) not in FUNCTIONS:
            raise TypeError(f"{self.value.__name__} has a {hint}, which has no pair with {message.full_name}")
        return FUNCTIONS[hint, message.full_name]

    def _enum(self, hint: Any, enum: EnumDescriptor, *, optional: bool) -> _Functions:
        if hint is str:
            names = _EnumNames(enum)
            return {name: number for number, name in names.items()}.__getitem__, names.__getitem__
        values = EnumMap.of[hint]
        if optional:
            return values.to_wire, values.find
        known = self.options.get("known")
        return values.to_wire, partial(known, values) if known else values.to_domain

    def mapped(self) -> Iterator[_Mapped]:
        """Yields the fields of the value. Raises TypeError for a field, of either side, that has no counterpart."""
        type_of, paths = typing.get_type_hints(self.value), set[str]()
        own = dict(fields_of(self.value))
        apart = self._skipped | set(self.options.get("given", {}))
        for name, default in own.items():
            if name not in apart:
                path, field = counterpart(self._descriptor, self.value.__name__, name, self.options)
                paths.update((path, *_parents(path)))
                kinds = typing.get_args(type_of[name])
                optional = NoneType in kinds
                hint = Union[tuple(kind for kind in kinds if kind is not NoneType)] if optional else type_of[name]  # noqa: UP007
                yield _Mapped(name, hint, optional, default, path, field)
        sent = dict(self._sent_fields())
        names = f"{self.value.__name__}-{self.message.__name__}"
        if unknown := self._skipped - set(own) - {field.name for field in sent.values()}:
            raise TypeError(f"{names} skips {', '.join(sorted(unknown))}, which neither has")
        for path, field in sent.items():
            oneof = field.containing_oneof.name if field.containing_oneof else ""
            if not {path, oneof} & paths and field.name not in apart and not self._is_property(field.name):
                raise TypeError(f"{self.value.__name__} has no field for {self.message.__name__}.{path}: {_ADVICE}")

    def _sent_fields(self) -> Iterator[tuple[str, FieldDescriptor]]:
        """Yields the fields of the message and of its parts that belong to the value, each with its path."""
        for place in self._places:
            for field in _part_at(self._descriptor, place).fields:
                yield f"{place}.{field.name}".removeprefix("."), field

    def _is_property(self, name: str) -> bool:
        return isinstance(getattr(self.value, name, None), property)


def counterpart(message: Descriptor, value: str, name: str, options: PairOptions) -> tuple[str, FieldDescriptor | None]:
    """Returns the field of a message for a field of its value, with its path. None: a oneof."""
    renamed = options.get("rename", {}).get(name)
    if renamed is not None:
        parent, _, leaf = renamed.rpartition(".")
        return renamed, _part_at(message, parent).fields_by_name[leaf]
    if name in message.oneofs_by_name:
        return name, None
    for wire_name in _wire_names(name):
        for place in ("", *options.get("within", ())):
            field = _part_at(message, place).fields_by_name.get(wire_name)
            if field is not None:
                return f"{place}.{wire_name}".removeprefix("."), field
    raise TypeError(f"{message.name} has no field for {value}.{name}: {_ADVICE}")


_ADVICE: Final = "map it, or add it to `skip` of the pair"


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a dataclass or a NamedTuple, each with its default."""
    if not dataclasses.is_dataclass(value):
        yield from ((name, value._field_defaults.get(name)) for name in value._fields)
        return
    for field in dataclasses.fields(value):
        if field.init:
            made = None if field.default_factory is dataclasses.MISSING else field.default_factory()
            yield field.name, made if field.default is dataclasses.MISSING else field.default


def _positional_fields(value: Any) -> list[str]:
    is_keyword_only = dataclasses.is_dataclass(value) and any(field.kw_only for field in dataclasses.fields(value))
    return [] if is_keyword_only else [name for name, _ in fields_of(value)]


def _part_at(message: Descriptor, path: str) -> Descriptor:
    """Returns the type of the part at a path; of the message itself for ""."""
    for name in path.split(".") if path else ():
        part = message.fields_by_name[name].message_type
        assert part is not None, f"{path} is a path to a message"
        message = part
    return message


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _parents(path: str) -> list[str]:
    """Returns the paths of the parts that have the field of a path, such as spec and spec.agent of spec.agent.model."""
    names = path.split(".")
    return [".".join(names[:length]) for length in range(1, len(names))]


def _variable(path: str) -> str:
    return "_".join(["message", *path.split(".")]) if path else "message"


def _sent(path: str) -> str:
    parent, _, name = path.rpartition(".")
    return f"{_variable(parent)}.{name}"


def _function(argument: str, before: list[str], made: str, parts: list[str]) -> str:
    """Returns the source of a function of one argument that calls a class with keyword arguments."""
    lines = [f"def convert({argument}):", *(f"    {line}" for line in before)]
    return "\n".join([*lines, f"    return {made}(", *(f"        {part}," for part in parts), "    )", ""])
