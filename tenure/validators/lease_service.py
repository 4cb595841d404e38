"""Checks the requests of LeaseService, at coordinators and at the gateway, and the ledger's requests about leases."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration

from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import lease_service_pb2 as leases
from tenure.validators.common import Check, check_claim_epoch, check_guarded, check_token
from tenure.validators.rules import Violations
from tenure.wire.common import seconds

_MIN_TTL_SECONDS: Final = 2
_MAX_TTL_SECONDS: Final = 3600


def _acquire(request: leases.AcquireLeaseRequest, v: Violations) -> None:
    _ttl(request.ttl, v)


def _release(request: leases.ReleaseLeaseRequest, v: Violations) -> None:
    _authority(request, v)
    v.require(bool(request.reason) or request.HasField("token"), "reason", "must be set without a token")


def _transfer(request: leases.TransferLeaseRequest, v: Violations) -> None:
    _authority(request, v)
    if request.HasField("ttl"):
        _ttl(request.ttl, v)


def _authority(request: leases.ReleaseLeaseRequest | leases.TransferLeaseRequest, v: Violations) -> None:
    authority = request.WhichOneof("authority")
    v.require(authority is not None, "authority", "must be a token or a lease")
    if authority == "token":
        check_token(request.token, v)


def _register(request: checkpoint.RegisterLeaseRequest, v: Violations) -> None:
    v.require(request.HasField("grant"), "grant", "must be set")
    grant = request.grant
    check_claim_epoch("grant.epoch", grant.epoch, v)
    v.require(0 <= grant.previous_epoch < grant.epoch, "grant.previous_epoch", "must be below the epoch")


def _ttl(ttl: Duration, v: Violations) -> None:
    v.between("ttl", seconds(ttl), _MIN_TTL_SECONDS, _MAX_TTL_SECONDS)


CHECKS: Final[dict[type, Check]] = {
    leases.AcquireLeaseRequest: _acquire,
    leases.RenewLeaseRequest: check_guarded,
    leases.ReleaseLeaseRequest: _release,
    leases.TransferLeaseRequest: _transfer,
    checkpoint.RegisterLeaseRequest: _register,
}
