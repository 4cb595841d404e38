"""Every method of every service, found in the descriptors: a method that is added is fuzzed from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tenure.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    api_key_service_pb2,
    approval_service_pb2,
    audit_service_pb2,
    checkpoint_service_pb2,
    coordinator_service_pb2,
    lease_service_pb2,
    schedule_service_pb2,
    task_service_pb2,
    tenant_service_pb2,
    tool_service_pb2,
    webhook_service_pb2,
)

_OF_TENANTS: Final = (
    agent_service_pb2.DESCRIPTOR,
    api_key_service_pb2.DESCRIPTOR,
    approval_service_pb2.DESCRIPTOR,
    audit_service_pb2.DESCRIPTOR,
)

_SERVED: Final[dict[str, tuple[FileDescriptor, ...]]] = {
    "gateway": (
        task_service_pb2.DESCRIPTOR,
        admin_service_pb2.DESCRIPTOR,
        lease_service_pb2.DESCRIPTOR,
        schedule_service_pb2.DESCRIPTOR,
        tenant_service_pb2.DESCRIPTOR,
        webhook_service_pb2.DESCRIPTOR,
        *_OF_TENANTS,
    ),
    "checkpoint": (
        checkpoint_service_pb2.DESCRIPTOR,
        schedule_service_pb2.DESCRIPTOR,
        tenant_service_pb2.DESCRIPTOR,
        webhook_service_pb2.DESCRIPTOR,
        *_OF_TENANTS,
    ),
    "coordinator": (coordinator_service_pb2.DESCRIPTOR, lease_service_pb2.DESCRIPTOR),
    "tools": (tool_service_pb2.DESCRIPTOR,),
}

_NOT_FORWARDED: Final = frozenset({"GetAnswerLink", "AnswerByLink", "AppendAuditRecords", "LookUpApiKey"})
"""Methods that the gateway itself calls, and does not serve."""

WAITING: Final = frozenset({"WaitTask"})
"""Answered when something has happened, or when the caller's deadline is over."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method at the process that serves it."""

    process: str
    descriptor: MethodDescriptor

    @property
    def path(self) -> str:
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def request(self) -> type[Message]:
        return GetMessageClass(self.descriptor.input_type)

    @property
    def response(self) -> type[Message]:
        return GetMessageClass(self.descriptor.output_type)

    @property
    def streams_in(self) -> bool:
        return bool(self.descriptor.client_streaming)

    @property
    def streams_out(self) -> bool:
        return bool(self.descriptor.server_streaming)

    @property
    def may_wait(self) -> bool:
        return self.streams_in or self.streams_out or self.descriptor.name in WAITING

    def __str__(self) -> str:
        return f"{self.process}-{self.descriptor.containing_service.name}.{self.descriptor.name}"


METHODS: Final = tuple(
    Method(process, method)
    for process, files in _SERVED.items()
    for file in files
    for service in file.services_by_name.values()
    for method in service.methods
    if process != "gateway" or method.name not in _NOT_FORWARDED
)


def method_named(name: str) -> Method:
    """`checkpoint-CheckpointService.Commit`."""
    return next(method for method in METHODS if str(method) == name)
