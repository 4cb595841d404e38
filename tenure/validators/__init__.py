"""The constraints of the contract. What each field may hold is said beside it in protos/; here it is enforced.

One hook of the server's interceptor calls `validate` for every request. A frame of a stream is checked for its own
bounds only: what is inside is checked one by one by the service, so that one bad commit harms no neighbour.

gateway.py, checkpoint.py, tools.py, sessions.py, leases.py, operators.py, in_doubt.py, waits.py, schedules.py,
tenants.py, webhooks.py, providers.py   one table of checks each
specs.py, control.py   what a task may be        fields.py   what several services have        limits.py   the numbers
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from tenure.domain.errors import InvalidRequest
from tenure.validators import (
    checkpoint,
    gateway,
    in_doubt,
    leases,
    operators,
    providers,
    schedules,
    sessions,
    tenants,
    tools,
    waits,
    webhooks,
)
from tenure.validators.limits import (
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
    MAX_WAIT_SECONDS,
    MAX_WINDOW_TOKENS,
    MIN_OUTPUT_BYTES,
    MIN_WINDOW_TOKENS,
    NAME,
    TOOL_NAME,
    WORKER_ID,
    WORKER_ID_RULE,
)
from tenure.validators.result_schemas import schemas_in
from tenure.validators.violations import Check, Violations

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
    **gateway.CHECKS,
    **checkpoint.CHECKS,
    **tools.CHECKS,
    **schedules.CHECKS,
    **sessions.CHECKS,
    **leases.CHECKS,
    **operators.CHECKS,
    **providers.CHECKS,
    **in_doubt.CHECKS,
    **tenants.CHECKS,
    **waits.CHECKS,
    **webhooks.CHECKS,
}


def validate(request: Message) -> None:
    """Raises InvalidRequest with every violation found; requests without constraints pass."""
    check = _CHECKS.get(type(request))
    if check is None:
        return
    violations = Violations()
    check(request, violations)
    if violations.found:
        raise InvalidRequest(violations=violations.found)
