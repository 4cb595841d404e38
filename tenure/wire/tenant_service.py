"""Converts quotas, their use and their warnings."""

from __future__ import annotations

from tenure.domain.quotas import DEFAULT_POLICY, Quota, QuotaKind, QuotaPolicy, QuotaUse, QuotaWarning
from tenure.v1 import ledger_pb2
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.codec import pair, writer
from tenure.wire.common import EnumMap, duration

KINDS = EnumMap(QuotaKind, dict(pb.QuotaKind.items()), "QUOTA_KIND", None)
POLICIES = EnumMap(QuotaPolicy, dict(pb.QuotaPolicy.items()), "QUOTA_POLICY", None)

quota_to_wire = writer(Quota, pb.Quota, skip="no_limit")
quota_warning_to_wire, _ = pair(QuotaWarning, ledger_pb2.QuotaWarning)


def quota_to_domain(quota: pb.Quota) -> Quota:
    """Converts a quota that has a cap."""
    kind = KINDS.to_domain(quota.kind)
    return Quota(kind, quota.most, POLICIES.find(quota.policy) or DEFAULT_POLICY[kind])


def describe_use(kind: pb.QuotaKind.ValueType, used: int, most: int) -> str:
    """Returns how much of a quota is used, as text. Works for a kind that only a newer peer knows."""
    known = KINDS.find(kind)
    if known is None:
        return f"{used:,} of {most:,}"
    return QuotaUse(Quota(known, most, DEFAULT_POLICY[known]), used).describe()


def quota_use_to_wire(use: QuotaUse) -> pb.QuotaUse:
    return pb.QuotaUse(
        quota=quota_to_wire(use.quota),
        used=use.used,
        soft_reached=use.is_soft,
        hard_reached=use.is_reached,
        room_after=duration(use.room_after_seconds) if use.is_reached else None,
    )


def no_quota_to_wire(kind: QuotaKind) -> pb.QuotaUse:
    """Returns the use of a kind without a quota."""
    return pb.QuotaUse(quota=pb.Quota(kind=KINDS.to_wire(kind), no_limit=True))
