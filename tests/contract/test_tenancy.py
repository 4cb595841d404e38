"""Whose a request is comes from the caller's identity, by one interceptor, and from no field of any request."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor

import tenure.v1

ROOT = Path(__file__).parents[2]
SOURCES = [
    path for folder in ("services", "tenure") for path in (ROOT / folder).rglob("*.py") if "v1" not in path.parts
]
NAMED_BY_OPERATORS = {
    "tenure.v1.CreateApiKeyRequest.any_tenant",
    "tenure.v1.ListApiKeysRequest.all_tenants",
    "tenure.v1.RevokeApiKeyRequest.all_tenants",
    "tenure.v1.ListAuditRecordsRequest.tenant",
    "tenure.v1.GetTenantRequest.tenant",
    "tenure.v1.UpdateTenantLimitsRequest.tenant",
    "tenure.v1.GetTenantUsageRequest.tenant",
}
"""What they act on, not who they are: see the test of the gateway's leave below."""
TOLD_BY_THE_LEDGER_AND_COORDINATORS = {
    "tenure.v1.InspectLeasesRequest.Claim.tenant",
    "tenure.v1.ListClaimableRequest.tenants",
}
"""Coordinators ask about claims, and for tasks, of many tenants at once, and act for none of them."""
REGISTERED_BY_WORKERS = {"tenure.v1.RegisterWorkerAgentsRequest.tenants"}
"""Where a worker's agents go: the coordinator allows only the tenants of the worker's pool."""
RECORDED_BY_SERVICES = {"tenure.v1.AuditRecord.tenant"}
"""Gateways and coordinators append records, and a record belongs to the installation, not to a tenant."""
TOLD_TO_PROVIDERS = {"tenure.v1.CallToolRequest.tenant"}
"""Whose task it is, for a backend that is not ours: the tool service has it from the signed token."""


def requests() -> Iterator[Descriptor]:
    for path in sorted(Path(tenure.v1.__file__).parent.glob("*_pb2.py")):
        module = import_module(f"tenure.v1.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method.input_type


def fields_of(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in seen or not message.full_name.startswith("tenure."):
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field
        if field.message_type is not None:
            yield from fields_of(field.message_type, seen)


def test_no_request_has_a_field_for_a_tenant() -> None:
    seen: set[str] = set()
    named = {field.full_name for request in requests() for field in fields_of(request, seen) if "tenant" in field.name}
    assert (
        named
        - NAMED_BY_OPERATORS
        - TOLD_BY_THE_LEDGER_AND_COORDINATORS
        - REGISTERED_BY_WORKERS
        - RECORDED_BY_SERVICES
        - TOLD_TO_PROVIDERS
        == set()
    )


def calls_of(name: str) -> set[str]:
    """The files in which a function of this name is called."""
    names = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
                names.add(path.relative_to(ROOT).as_posix())
    return names


def test_metadata_is_read_for_a_tenant_in_one_interceptor_only() -> None:
    assert calls_of("named_tenant") == {"tenure/runtime/access_control.py"}
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if "x-tenure-tenant" in path.read_text(encoding="utf-8") or "TENANT_KEY" in path.read_text(encoding="utf-8")
    }
    by_http = "services/gateway/http/call.py"  # names it as a client of the gateway's own server, which reads it
    assert naming == {"tenure/runtime/request_context.py", "tenure/runtime/rpc_client.py", by_http}


def test_every_server_has_that_interceptor() -> None:
    servers = {
        path.relative_to(ROOT).as_posix() for path in SOURCES if "grpc.aio.server(" in path.read_text(encoding="utf-8")
    }
    assert servers == {"tenure/runtime/rpc_server.py"}
    assert "ErrorInterceptor(" in (ROOT / "tenure/runtime/rpc_server.py").read_text(encoding="utf-8")
    for service in ("gateway", "coordinator", "checkpoint", "tools", "worker", "models"):
        assert any(place.startswith(f"services/{service}/") for place in calls_of("RpcServer")), service


def test_another_tenant_is_used_only_by_duties_or_operators() -> None:
    """A task's tenant as its ledger or its signed grant tells it, and the gateway's operators."""
    assert calls_of("set_tenant") | calls_of("as_tenant") == {
        "tenure/runtime/request_context.py",
        "tenure/runtime/rpc_interceptor.py",
        "services/coordinator/in_doubt_waits.py",
        "services/gateway/live_text.py",
        "services/coordinator/claims/close_out.py",
        "services/coordinator/pruned_tasks.py",
        "services/coordinator/worker_agents.py",
        "services/tools/providers/provider.py",
        "services/worker/supervisor.py",
        "services/gateway/forwarding.py",
    }
