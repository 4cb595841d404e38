"""Writes the reference of the gRPC API from the protos: services, messages and enums with their comments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_MESSAGE, _SERVICE, _ENUM = 4, 6, 5  # the field numbers in FileDescriptorProto, which locations are paths of
_FIELD, _NESTED, _NESTED_ENUM, _ONEOF = 2, 3, 4, 8  # in DescriptorProto
_METHOD, _VALUE = 2, 2

Comments = Mapping[tuple[int, ...], str]


def grpc_reference(protos: Path) -> str:
    """Returns the page. Public services come first, by file name; the comments of the protos are its text."""
    parsed = _parse(protos)
    lines = ["# gRPC", "", "`protos/tenure/v1`; the comments are normative. Every gateway also serves reflection.", ""]
    for file in sorted(parsed.file, key=lambda file: (not file.service, file.name)):
        if not file.package.startswith("tenure."):
            continue
        comments = {
            tuple(location.path): location.leading_comments.strip() for location in file.source_code_info.location
        }
        lines += _file(file, comments)
    return "\n".join(lines) + "\n"


def _parse(protos: Path) -> descriptor_pb2.FileDescriptorSet:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        sources = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
        arguments = [f"--proto_path={protos}", f"--proto_path={well_known}", "--include_source_info"]
        code = protoc.main(["protoc", *arguments, f"--descriptor_set_out={out}", *sources])
        if code:
            raise SystemExit(f"protoc failed on {protos} with exit code {code}; its errors are above")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _file(file: descriptor_pb2.FileDescriptorProto, comments: Comments) -> Iterator[str]:
    for index, service in enumerate(file.service):
        path = (_SERVICE, index)
        yield from _heading(2, service.name, comments.get(path, ""))
        for number, method in enumerate(service.method):
            yield from _heading(3, f"{service.name}.{method.name}", comments.get((*path, _METHOD, number), ""))
            request = ("stream " if method.client_streaming else "") + _short(method.input_type)
            answer = ("stream " if method.server_streaming else "") + _short(method.output_type)
            yield from (f"`{request}` → `{answer}`", "")
    if file.message_type or file.enum_type:
        yield from _heading(2, f"Messages of {Path(file.name).stem}", "")
    for index, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGE, index), comments, "")
    for index, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUM, index), comments, "")


def _message(
    message: descriptor_pb2.DescriptorProto, path: Sequence[int], comments: Comments, outer: str
) -> Iterator[str]:
    name = f"{outer}{message.name}"
    if message.options.map_entry:
        return
    yield from _heading(3, name, comments.get(tuple(path), ""))
    if message.field:
        yield from ("| field | type | |", "|---|---|---|")
        for index, field in enumerate(message.field):
            yield f"| `{field.name}` | {_type(field, message)} | {_cell(comments.get((*path, _FIELD, index), ''))} |"
        yield ""
    for index, nested in enumerate(message.nested_type):
        yield from _message(nested, (*path, _NESTED, index), comments, f"{name}.")
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, (*path, _NESTED_ENUM, index), comments, f"{name}.")


def _enum(
    enum: descriptor_pb2.EnumDescriptorProto, path: Sequence[int], comments: Comments, outer: str
) -> Iterator[str]:
    yield from _heading(3, f"{outer}{enum.name}", comments.get(tuple(path), ""))
    yield from ("| value | |", "|---|---|")
    for index, value in enumerate(enum.value):
        yield f"| `{value.name}` | {_cell(comments.get((*path, _VALUE, index), ''))} |"
    yield ""


def _type(field: descriptor_pb2.FieldDescriptorProto, message: descriptor_pb2.DescriptorProto) -> str:
    """Returns the type of a field as a reader of protos knows it."""
    name = _short(field.type_name) if field.type_name else _TYPES[field.type]
    for entry in message.nested_type:
        if entry.options.map_entry and field.type_name.endswith(f".{message.name}.{entry.name}"):
            return f"map<{', '.join(_type(part, entry) for part in entry.field)}>"
    return f"repeated {name}" if field.label == field.LABEL_REPEATED else name


def _short(type_name: str) -> str:
    return type_name.removeprefix(".").removeprefix("tenure.v1.").removeprefix("google.protobuf.")


def _heading(level: int, name: str, comment: str) -> Iterator[str]:
    yield from ("#" * level + f" {name}", "")
    if comment:
        yield from (_text(comment), "")


def _text(comment: str) -> str:
    """Returns a comment as one paragraph in which Markdown changes nothing."""
    words = " ".join(line.strip() for line in comment.splitlines())
    return words.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _cell(comment: str) -> str:
    return _text(comment).replace("|", "\\|")
