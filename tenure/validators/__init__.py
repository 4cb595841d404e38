"""Validates requests against the constraints of the contract.

protos/ states the bounds of each field as an option, and `rules.py` checks them for every request, by length before
any loop. The other files check what involves several fields. The server's interceptor calls `validate` for every
request. For a frame of a stream, `validate` checks only the bounds of the frame: the service checks each item in it,
so that one bad commit does not fail the others.

The files:

rules.py                     the bounds of fields, the longest request, and the violations of a request
common.py                    the bounds that senders keep to; checks that several services share
task.py                      the spec of a task: goal, agent, limits, policy, timeouts, schemas
task_service.py              TaskService and the reads of AdminService; waits, forks, files
agent_service.py             AgentService; the agents of workers
api_key_service.py           ApiKeyService
approval_service.py          ApprovalService
audit_service.py             AuditService
admin_service.py             the requests of operators; calls in doubt
checkpoint_service.py        CheckpointService
coordinator_service.py       the session of a worker, WorkerService
lease_service.py             LeaseService
model_service.py             ModelService
schedule_service.py          ScheduleService
tenant_service.py            TenantService
tool_service.py              ToolService
tool_provider_service.py     ToolProviderService
webhook_service.py           WebhookService

Each file named after a service has a table `CHECKS` from request types to checks across fields.

What to touch when:
- a request gets a new field: the option `rule` beside the field in protos/
- a field depends on another one: a check in the service's file, and its entry in `CHECKS`
"""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from tenure.domain.errors import InvalidRequest
from tenure.validators import (
    admin_service,
    agent_service,
    api_key_service,
    approval_service,
    audit_service,
    checkpoint_service,
    coordinator_service,
    lease_service,
    model_service,
    schedule_service,
    task_service,
    tenant_service,
    tool_provider_service,
    tool_service,
    webhook_service,
)
from tenure.validators.common import Check
from tenure.validators.rules import TooManyProblems, Violations, check_fields, largest_request

_SERVICES: Final = (
    *(task_service, checkpoint_service, tool_service, schedule_service, coordinator_service, lease_service),
    *(model_service, admin_service, agent_service, api_key_service, approval_service, audit_service),
    *(tool_provider_service, tenant_service, webhook_service),
)
_CHECKS: Final[dict[type, Check]] = {kind: check for service in _SERVICES for kind, check in service.CHECKS.items()}


def longest_request(method: str) -> int | None:
    """Returns the most bytes of a request of a method ("/service/method"), or None for a method without a bound."""
    name = method.lstrip("/").replace("/", ".")
    return largest_request(descriptor_pool.Default().FindMethodByName(name).input_type)


def validate(request: Message, size_bytes: int | None = None) -> None:
    """Raises InvalidRequest with the first violations of a request.

    `size_bytes`: of the request on the wire, where they are known. To count them costs as much as to encode it.

    A request with a value that is too long, or a time that no clock has, is not checked further.
    """
    broken = Violations(request.ByteSize() if size_bytes is None else size_bytes)
    try:
        check_fields(request, broken)
        if not broken.unreadable and (across_fields := _CHECKS.get(type(request))) is not None:
            across_fields(request, broken)
    except TooManyProblems:
        raise InvalidRequest(violations=broken.violations) from None
    if broken.violations:
        raise InvalidRequest(violations=broken.violations)
