"""Whose a request is comes from the caller's identity, by one interceptor, and from no field of any request."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor

import tenure.v1
from tests.contract.sources import calls_of, files_with, texts

FOLDERS = ("services", "edges", "tenure")
OPERATOR_FIELDS = {
    "tenure.v1.CreateApiKeyRequest.any_tenant",
    "tenure.v1.ListApiKeysRequest.all_tenants",
    "tenure.v1.RevokeApiKeyRequest.all_tenants",
    "tenure.v1.ListAuditRecordsRequest.tenant",
    "tenure.v1.GetTenantRequest.tenant",
    "tenure.v1.UpdateTenantLimitsRequest.tenant",
    "tenure.v1.GetTenantUsageRequest.tenant",
    "tenure.v1.BeginStopRequest.tenant",
    "tenure.v1.EndStopRequest.tenant",
    "tenure.v1.Stop.tenant",
}
"""They name what the operator acts on, not who the operator is."""
COORDINATOR_FIELDS = {
    "tenure.v1.InspectLeasesRequest.Claim.tenant",
    "tenure.v1.ListClaimableRequest.tenants",
}
"""Coordinators ask about claims, and for tasks, of many tenants at once, and act for none of them."""
WORKER_FIELDS = {"tenure.v1.RegisterWorkerAgentsRequest.tenants"}
"""Where a worker's agents go: the coordinator allows only the tenants of the worker's pool."""
AUDIT_FIELDS = {"tenure.v1.AuditRecord.tenant"}
"""Gateways and coordinators append records, and a record belongs to the installation, not to a tenant."""
PROVIDER_FIELDS = {"tenure.v1.CallToolRequest.tenant"}
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
    assert named - OPERATOR_FIELDS - COORDINATOR_FIELDS - WORKER_FIELDS - AUDIT_FIELDS - PROVIDER_FIELDS == set()


def callers_of(name: str) -> set[str]:
    """The files in which a function of this name is called."""
    return {file for file, _ in calls_of(name, FOLDERS)}


def test_one_interceptor_reads_the_tenant_of_the_metadata() -> None:
    assert callers_of("named_tenant") == {"tenure/runtime/security/access_control.py"}
    naming = files_with("x-tenure-tenant|TENANT_KEY", FOLDERS)
    by_http = "services/gateway/http/call.py"  # names it as a client of the gateway's own server, which reads it
    assert set(naming) == {"tenure/runtime/request_context.py", "tenure/runtime/rpc/client.py", by_http}


def test_every_server_has_that_interceptor() -> None:
    assert files_with(r"grpc\.aio\.server\(", FOLDERS) == ["tenure/runtime/rpc/server.py"]
    assert "ErrorInterceptor(" in texts(*FOLDERS)["tenure/runtime/rpc/server.py"]
    callers = callers_of("RpcServer")
    for service in ("gateway", "coordinator", "checkpoint", "tools", "worker", "models"):
        assert any(file.startswith(f"services/{service}/") for file in callers), service


def test_only_duties_and_operators_use_another_tenant() -> None:
    """A task's tenant as its ledger or its signed grant states it, and the gateway's operators."""
    assert callers_of("set_tenant") | callers_of("as_tenant") == {
        "tenure/runtime/request_context.py",
        "tenure/runtime/rpc/interceptor.py",
        "services/coordinator/in_doubt_waits.py",
        "services/gateway/live_text.py",
        "services/coordinator/claims/close_out.py",
        "services/coordinator/pruned_tasks.py",
        "services/coordinator/worker_agents.py",
        "edges/providers/provider.py",
        "services/worker/supervisor.py",
        "services/gateway/forwarding.py",
    }
