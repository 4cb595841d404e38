"""Checks the requests of AuditService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.audit import MAX_APPENDED, MAX_NAME, MAX_REASON, MAX_TARGET
from tenure.v1 import audit_service_pb2 as audit
from tenure.validators.common import Check, Violations
from tenure.wire.audit import DECISIONS

MAX_PAGE: Final = 500
MAX_TOKEN: Final = 64


def _append(request: audit.AppendAuditRecordsRequest, v: Violations) -> None:
    v.between("records", len(request.records), 1, MAX_APPENDED)
    for index, record in enumerate(request.records):
        _record(record, f"records[{index}]", v)


def _record(record: audit.AuditRecord, field: str, v: Violations) -> None:
    v.length(f"{field}.record_id", record.record_id, 1, 64)
    for name in ("tenant", "subject", "peer", "method"):
        v.length(f"{field}.{name}", getattr(record, name), 0, MAX_NAME)
    v.length(f"{field}.target", record.target, 0, MAX_TARGET)
    v.length(f"{field}.reason", record.reason, 0, MAX_REASON)
    for name in ("record_id", "tenant", "subject", "peer", "method", "target", "reason"):
        v.require("\0" not in getattr(record, name), f"{field}.{name}", "must not contain NUL")
    is_known = DECISIONS.find(record.decision) is not None
    v.require(is_known, f"{field}.decision", "must be a decision of this version of the API")
    v.require(record.count >= 1, f"{field}.count", "must be at least 1")
    v.require(not record.recorder, f"{field}.recorder", "must be empty: the ledger sets it to the caller's identity")


def _list(request: audit.ListAuditRecordsRequest, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, MAX_PAGE)
    v.length("page_token", request.page_token, 0, MAX_TOKEN)
    for name in ("tenant", "subject", "method"):
        v.length(name, getattr(request, name), 0, MAX_NAME)
        v.require("\0" not in getattr(request, name), name, "must not contain NUL")


CHECKS: Final[dict[type[Any], Check]] = {
    audit.AppendAuditRecordsRequest: _append,
    audit.ListAuditRecordsRequest: _list,
}
