"""The constraints of the contract. What each field may hold is said beside it in protos/; here it is enforced.

One hook of the server's interceptor calls `validate` for every request. A frame of a stream is checked for its own
bounds only: what is inside is checked one by one by the service, so that one bad commit harms no neighbour.

task_service.py, checkpoint_service.py, tool_service.py, coordinator_service.py, lease_service.py, admin_service.py,
admin_service.py, task_service.py, schedule_service.py,
tenant_service.py, webhook_service.py, tool_provider_service.py   one table of checks each
task.py, task.py   what a task may be        common.py   what several services have        common.py   the numbers
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from tenure.domain.errors import InvalidRequest
from tenure.validators import (
    admin_service,
    checkpoint_service,
    coordinator_service,
    lease_service,
    schedule_service,
    task_service,
    tenant_service,
    tool_provider_service,
    tool_service,
    webhook_service,
)
from tenure.validators.common import (
    CALL_ID,
    FUNCTION_NAME,
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
    NAME,
    TOOL_NAME,
    WORKER_ID,
    WORKER_ID_RULE,
    Check,
    Violations,
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
    **admin_service.CHECKS,
    **tool_provider_service.CHECKS,
    **tenant_service.CHECKS,
    **webhook_service.CHECKS,
}


def validate(request: Message) -> None:
    """Raises InvalidRequest with every violation found; requests without constraints pass."""
    check = _CHECKS.get(type(request))
    if check is None:
        return
    violations = Violations()
    check(request, violations)
    if violations.violations:
        raise InvalidRequest(violations=violations.violations)
