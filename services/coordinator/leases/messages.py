"""Leases as messages. A token is added only for who may have it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.times import duration, timestamp

if TYPE_CHECKING:
    from services.coordinator.issuing import Issuer
    from services.coordinator.lease_store.named_leases import HeldLease


def to_message(held: HeldLease, remaining_seconds: float | None = None) -> pb.Lease:
    """For everybody."""
    record = held.record
    return pb.Lease(
        resource=held.resource,
        holder=record.holder,
        epoch=held.epoch,
        claim_id=record.claim_id,
        previous_epoch=record.previous_epoch,
        reason=record.reason,
        message=record.message,
        ttl=duration(record.ttl_seconds),
        remaining=None if remaining_seconds is None else duration(remaining_seconds),
        acquire_time=timestamp(datetime.fromtimestamp(record.acquired_at, UTC)),
    )


def to_holders_message(issuer: Issuer, held: HeldLease, remaining_seconds: float) -> pb.Lease:
    """For its holder: with a token signed now."""
    message = to_message(held, remaining_seconds)
    message.token.CopyFrom(issuer.issue_lease(held))
    return message
