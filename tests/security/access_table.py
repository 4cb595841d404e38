"""The table of all methods (matrix.tsv), and calls that show how a server answers a caller.

A call sends bytes that are not a message. An allowed caller gets INVALID_ARGUMENT/UNREADABLE_MESSAGE, and the method
does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2

from devstack import ServiceProcess, Stack
from tenure.domain.access import DEFAULT_INSTALLATION, Role, server_name
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.tls import ClientTls
from tests.support.grpc_limits import STREAM_ENDED_DURING_WRITE
from tests.support.patience import CALL_SECONDS

SERVICES: Final = {
    "gateway": (
        "TaskService",
        "AdminService",
        "LeaseService",
        "ScheduleService",
        "TenantService",
        "WebhookService",
        "AgentService",
        "ApiKeyService",
        "ApprovalService",
        "AuditService",
    ),
    "coordinator": ("CoordinatorService", "LeaseService"),
    "checkpoint": (
        "CheckpointService",
        "ScheduleService",
        "TenantService",
        "WebhookService",
        "AgentService",
        "ApiKeyService",
        "ApprovalService",
        "AuditService",
    ),
    "tools": ("ToolService",),
    "models": ("ModelService",),
    "worker-1": ("WorkerService",),
}
NOT_SERVED_BY_US: Final = {"ToolProviderService"}
UNREADABLE: Final = b"\xff"
ADMITTED: Final = "INVALID_ARGUMENT/UNREADABLE_MESSAGE"
NOT_ALLOWED: Final = "PERMISSION_DENIED/METHOD_NOT_ALLOWED"
AT_ONCE: Final = 8
"""Calls of one caller that run at once: its limit at a gateway."""

Metadata = tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """A method: the callers that are allowed, whether it needs a token, whether it is audited."""

    callers: frozenset[str]
    needs_token: bool
    is_audited: bool

    @property
    def permission(self) -> str:
        """The permission that a client needs; "": no client may call it."""
        return next((caller.partition(":")[2] for caller in self.callers if ":" in caller), "")


def matrix() -> dict[str, Row]:
    lines = (Path(__file__).parent / "matrix.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {
        method: Row(frozenset(callers.split()), token == "token", audit == "audited")
        for method, callers, token, audit in rows
    }


def methods_of(process: str) -> Iterator[tuple[str, MethodDescriptor]]:
    """The methods that a process serves, each with its name in the table."""
    for service in SERVICES[process]:
        for method in descriptor_pool.Default().FindServiceByName(f"tenure.v1.{service}").methods:
            yield f"{service}/{method.name}", method


def begin_call(channel: Any, method: MethodDescriptor, request: bytes, metadata: Metadata) -> Any:
    """Begins a call with one message. `channel`: of grpc.aio."""
    path, several = f"/{method.containing_service.full_name}/{method.name}", [request]
    options: dict[str, Any] = {"timeout": CALL_SECONDS, "metadata": metadata}
    calls: dict[tuple[bool, bool], Any] = {
        (False, False): lambda: channel.unary_unary(path)(request, **options),
        (False, True): lambda: channel.unary_stream(path)(request, **options),
        (True, False): lambda: channel.stream_unary(path)(iter(several), **options),
        (True, True): lambda: channel.stream_stream(path)(iter(several), **options),
    }
    return calls[method.client_streaming, method.server_streaming]()


async def answer_of(
    channel: Any, method: MethodDescriptor, metadata: Metadata = (), request: bytes = UNREADABLE
) -> str:
    """How the server ends the call: "CODE/REASON", or "CODE" if the status has no reason of Tenure."""
    return await answered(lambda: begin_call(channel, method, request, metadata))


async def answered(begin: Callable[[], Any]) -> str:
    """The answer to the first call whose status grpc.aio does not lose."""
    while True:
        call = begin()
        code = (await call.code()).name
        if await call.details() != STREAM_ENDED_DURING_WRITE:
            details = dict(await call.trailing_metadata() or ()).get("grpc-status-details-bin")
            reason = "" if details is None else _reason_in(details)
            return f"{code}/{reason}" if reason else code


def _reason_in(details: bytes) -> str:
    for detail in status_pb2.Status.FromString(details).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return ""


async def code_of(channel: Any, method: MethodDescriptor, metadata: Metadata = ()) -> str:
    """The code that an unreadable request gets."""
    return (await answer_of(channel, method, metadata)).partition("/")[0]


class Cell(NamedTuple):
    """A caller at a method, and the answer that the table expects."""

    name: str
    channel: Any
    method: MethodDescriptor
    metadata: Metadata
    expected: str


async def wrong_cells(cells: Iterable[Cell]) -> list[tuple[str, str, str]]:
    """Calls all cells. Returns those with another answer: (name, answer, expected answer)."""
    places = asyncio.Semaphore(AT_ONCE)

    async def call(cell: Cell) -> tuple[str, str, str]:
        async with places:
            return cell.name, await answer_of(cell.channel, cell.method, cell.metadata), cell.expected

    answers = await asyncio.gather(*map(call, cells))
    assert answers, "the table is empty"
    return [answer for answer in answers if answer[1] != answer[2]]


def issued(
    folder: Path, authority: Authority, role: Role, ca_file: Path, *, days: float = 1, name: str = "stranger"
) -> ClientTls:
    """A certificate of a process of this role."""
    certificate, key = authority.issue(role, name, DEFAULT_INSTALLATION, days)
    file = f"{role.lower()}-{name}"
    write_certificate(folder, file, certificate, key)
    return ClientTls(ca_file, folder / f"{file}.pem", folder / f"{file}.key.pem")


def trust(ca_file: Path, authorities: bytes) -> None:
    """Replaces the authorities that a process trusts, PEM."""
    fresh = ca_file.with_name(f".{ca_file.name}.new")
    fresh.write_bytes(authorities)
    fresh.replace(ca_file)


def authority_of(stack: Stack) -> Authority:
    certificates = stack.layout.certificates
    return Authority.load(certificates / "ca.pem", certificates / "ca.key.pem")


def _role_of(process: ServiceProcess) -> Role:
    return Role(process.module.rpartition(".")[2].upper())


def channel_to(process: ServiceProcess, tls: ClientTls) -> Any:
    override = ("grpc.ssl_target_name_override", server_name(DEFAULT_INSTALLATION, _role_of(process)))
    options = [override, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(process.address, grpc.ssl_channel_credentials(*tls.read()), options=options)


def tenure_channel(process: ServiceProcess, tls: ClientTls) -> TenureChannel:
    named = replace(tls, server_name=server_name(DEFAULT_INSTALLATION, _role_of(process)))
    return open_channel(process.address, tls=named, default_timeout_seconds=CALL_SECONDS)
