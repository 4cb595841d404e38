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

from contextlib import suppress
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
from tenure.validators.common import (
    MAX_ARGUMENT_BYTES,
    MAX_CHOICES,
    MAX_COMMIT_BYTES,
    MAX_CONTROL_JSON_BYTES,
    MAX_ENTRIES,
    MAX_FRAME_BYTES,
    MAX_FRAME_ITEMS,
    MAX_GOAL_BYTES,
    MAX_HOLDINGS,
    MAX_ID_CHARACTERS,
    MAX_LABELS,
    MAX_OUTPUT_TOKENS,
    MAX_SLOTS,
    MAX_SYSTEM_BYTES,
    MAX_TRANSITION_MESSAGE,
    MAX_WAIT_SECONDS,
    MAX_WINDOW_TOKENS,
    MIN_OUTPUT_BYTES,
    MIN_WINDOW_TOKENS,
    Check,
)
from tenure.validators.rules import (
    CALL_ID,
    FUNCTION_NAME,
    NAME,
    TOOL_NAME,
    WORKER_ID,
    WORKER_ID_RULE,
    TooManyProblems,
    Violations,
    check_fields,
    largest_request,
)
from tenure.validators.task import schemas_in

__all__ = [
    "CALL_ID",
    "FUNCTION_NAME",
    "MAX_ARGUMENT_BYTES",
    "MAX_CHOICES",
    "MAX_COMMIT_BYTES",
    "MAX_CONTROL_JSON_BYTES",
    "MAX_ENTRIES",
    "MAX_FRAME_BYTES",
    "MAX_FRAME_ITEMS",
    "MAX_GOAL_BYTES",
    "MAX_HOLDINGS",
    "MAX_ID_CHARACTERS",
    "MAX_LABELS",
    "MAX_OUTPUT_TOKENS",
    "MAX_SLOTS",
    "MAX_SYSTEM_BYTES",
    "MAX_TRANSITION_MESSAGE",
    "MAX_WAIT_SECONDS",
    "MAX_WINDOW_TOKENS",
    "MIN_OUTPUT_BYTES",
    "MIN_WINDOW_TOKENS",
    "NAME",
    "TOOL_NAME",
    "WORKER_ID",
    "WORKER_ID_RULE",
    "longest_request",
    "schemas_in",
    "validate",
]

_CHECKS: Final[dict[type, Check]] = {
    **task_service.CHECKS,
    **checkpoint_service.CHECKS,
    **tool_service.CHECKS,
    **schedule_service.CHECKS,
    **coordinator_service.CHECKS,
    **lease_service.CHECKS,
    **model_service.CHECKS,
    **admin_service.CHECKS,
    **agent_service.CHECKS,
    **api_key_service.CHECKS,
    **approval_service.CHECKS,
    **audit_service.CHECKS,
    **tool_provider_service.CHECKS,
    **tenant_service.CHECKS,
    **webhook_service.CHECKS,
}


def longest_request(method: str) -> int | None:
    """Returns the most bytes of a request of a method ("/service/method"), or None for a method without a bound."""
    name = method.lstrip("/").replace("/", ".")
    return largest_request(descriptor_pool.Default().FindMethodByName(name).input_type)


def validate(request: Message) -> None:
    """Raises InvalidRequest with the first violations of a request.

    A request with a value that is too long is not checked further.
    """
    broken = Violations(request.ByteSize())
    with suppress(TooManyProblems):
        check_fields(request, broken)
        if not broken.too_large and (across_fields := _CHECKS.get(type(request))) is not None:
            across_fields(request, broken)
    if broken.violations:
        raise InvalidRequest(violations=broken.violations)
