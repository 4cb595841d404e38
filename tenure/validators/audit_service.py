"""Checks the requests of AuditService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from typing import Any, Final

from tenure.v1 import audit_service_pb2 as audit
from tenure.validators.common import Check
from tenure.validators.rules import Violations
from tenure.wire.audit import DECISIONS


def _append(request: audit.AppendAuditRecordsRequest, v: Violations) -> None:
    for index, record in enumerate(request.records):
        _record(record, f"records[{index}]", v)


def _record(record: audit.AuditRecord, field: str, v: Violations) -> None:
    is_known = DECISIONS.find(record.decision) is not None
    v.require(is_known, f"{field}.decision", "must be a decision of this version of the API")
    v.require(record.count >= 1, f"{field}.count", "must be at least 1")
    v.require(not record.recorder, f"{field}.recorder", "must be empty: the ledger sets it to the caller's identity")


CHECKS: Final[dict[type[Any], Check]] = {
    audit.AppendAuditRecordsRequest: _append,
}
