"""Reads the descriptors of etcd's API from the installed `etcd3` package, without running its code.

The `_pb2` modules of etcd3 0.12.0 were generated for protobuf 3 and raise TypeError on import under protobuf 4 and
later. The serialized descriptors inside them are still valid: this module reads them from the source text and puts them
into a pool of their own, so that another etcd library in the process cannot collide with them.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor

# In the order of their imports: rpc.proto needs the other two.
_FILES = ("kv_pb2.py", "auth_pb2.py", "rpc_pb2.py")


class EtcdStubsError(ImportError):
    """The `etcd3` package is missing, or it is not the supported version."""


class EtcdApi:
    """The messages and services of etcd's gRPC API, by their full protobuf names."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        folder = _package_folder()
        for name in _FILES:
            file = _file_descriptor(folder / name)
            _add_progress_request(file)
            _add_fragments(file)
            _add_status_errors(file)
            self._pool.Add(file)

    def message(self, full_name: str) -> Any:
        """Returns the class of a message; the same object each time."""
        try:
            return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(full_name))
        except KeyError as error:
            raise EtcdStubsError(f"the installed etcd3 package has no message {full_name}") from error

    def stub(self, service_name: str) -> type[Any]:
        """Returns a class that takes a grpc.aio channel and has one callable per method of the service."""
        try:
            service = self._pool.FindServiceByName(service_name)
        except KeyError as error:
            raise EtcdStubsError(f"the installed etcd3 package has no service {service_name}") from error

        def __init__(self: Any, channel: grpc.aio.Channel) -> None:  # noqa: N807 - it becomes a class's constructor
            for method in service.methods:
                setattr(self, method.name, _callable(channel, method))

        return type(f"{service.name}Stub", (), {"__init__": __init__, "__doc__": service.full_name})


def _callable(channel: grpc.aio.Channel, method: MethodDescriptor) -> Any:
    arity = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    return arity(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )


def _package_folder() -> Path:
    # find_spec finds a top-level package without importing it.
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise EtcdStubsError("the package etcd3 is not installed: pip install etcd3==0.12.0")
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _file_descriptor(path: Path) -> descriptor_pb2.FileDescriptorProto:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EtcdStubsError(f"the installed etcd3 package has no {path.name}: etcd3==0.12.0 is needed") from error
    for serialized in _serialized_descriptors(tree):
        return descriptor_pb2.FileDescriptorProto.FromString(serialized)
    raise EtcdStubsError(f"{path} holds no serialized descriptor: etcd3==0.12.0 is needed")


def _serialized_descriptors(tree: ast.Module) -> Iterator[bytes]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            # Written as b'…' or as _b('…'), where _b is an encoder for Python 2 and 3.
            literal = ast.literal_eval(node.value.args[0] if isinstance(node.value, ast.Call) else node.value)
            yield literal.encode("latin1") if isinstance(literal, str) else literal


def _add_progress_request(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Adds etcd 3.4's progress request to the 3.3 API of the package: it asks a watch stream for a message."""
    messages = {message.name: message for message in file.message_type}
    if "WatchRequest" not in messages or "WatchProgressRequest" in messages:
        return
    file.message_type.add(name="WatchProgressRequest")
    messages["WatchRequest"].field.add(
        name="progress_request",
        number=3,  # etcd, api/etcdserverpb/rpc.proto
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{file.package}.WatchProgressRequest",
        oneof_index=0,
    )


def _add_fragments(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Adds etcd 3.4's fragments: a watch that asks for them gets an answer above etcd's message limit in parts."""
    numbers = {"WatchCreateRequest": 8, "WatchResponse": 7}  # etcd, api/etcdserverpb/rpc.proto
    for message in file.message_type:
        if message.name in numbers and all(field.name != "fragment" for field in message.field):
            message.field.add(
                name="fragment",
                number=numbers[message.name],
                label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
                type=descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
            )


def _add_status_errors(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Adds etcd 3.4's list of alarm texts to a member's status."""
    messages = {message.name: message for message in file.message_type}
    status = messages.get("StatusResponse")
    if status is None or any(field.name == "errors" for field in status.field):
        return
    status.field.add(
        name="errors",
        number=8,  # etcd, api/etcdserverpb/rpc.proto
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    )
