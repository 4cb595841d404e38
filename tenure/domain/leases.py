"""Leases of named resources: how one comes after another."""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class LeaseReason(StrEnum):
    """How the lease before this one ended; what the next holder is told."""

    FIRST = "FIRST"  # nobody ever held the resource
    RELEASED = "RELEASED"  # by its holder
    OPERATOR_RELEASED = "OPERATOR_RELEASED"
    LEASE_EXPIRED = "LEASE_EXPIRED"  # its holder did not renew, or etcd was restored
    TRANSFERRED = "TRANSFERRED"  # by its holder
    OPERATOR_TRANSFER = "OPERATOR_TRANSFER"
