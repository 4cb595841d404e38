"""Logs one line for each request that a server answered: what, for whom, how it ended, and how long it took.

The line has no content of the request: of its message only the id of the task that it names. The gateway logs every
request. Between the services there are many, so the others log only failed ones; TENURE_LOG_REQUESTS changes both.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from grpc import StatusCode

from tenure.domain.errors import TenureError
from tenure.runtime.request_context import current_tenant
from tenure.runtime.rpc.status import DRAINING
from tenure.runtime.security.access_control import current_principal

LOGGER: Final = "tenure.requests"
_log: Final = logging.getLogger(LOGGER)
_MAX_TASK_ID: Final = 64
_FAULTS: Final = frozenset({StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DATA_LOSS})
_TROUBLES: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED})
_IN_ORDER: Final = frozenset({DRAINING})
"""Reasons of refusals that belong to an orderly restart."""


def set_logged_requests(*, every: bool) -> None:
    """Chooses whether this process logs every request, or only those that failed on its side."""
    _log.setLevel(logging.INFO if every else logging.WARNING)


def level_of(code: StatusCode, reason: str = "") -> int:
    """Returns the level of a request's line.

    ERROR: a fault of this service. WARNING: it could not answer. INFO: an answer, or a refusal that the caller caused.
    """
    if code in _FAULTS:
        return logging.ERROR
    return logging.WARNING if code in _TROUBLES and reason not in _IN_ORDER else logging.INFO


def log_request(method: str, request: Any, code: StatusCode, seconds: float, error: TenureError | None) -> None:
    """Logs the end of a request, in the context of the request."""
    reason = "" if error is None else error.reason
    level = level_of(code, reason)
    if not _log.isEnabledFor(level):
        return
    fields = {"method": method, "code": code.name, "seconds": round(seconds, 4), "tenant": current_tenant()}
    if reason:
        fields["reason"] = reason
    if caller := current_principal().name:
        fields["caller"] = caller
    task_id = getattr(request, "task_id", "")
    if isinstance(task_id, str) and task_id:
        fields["task"] = task_id[:_MAX_TASK_ID]
    _log.log(level, "request", extra=fields)
