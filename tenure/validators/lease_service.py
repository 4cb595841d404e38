"""Checks the requests of LeaseService, at coordinators and at the gateway, and the ledger's requests about leases."""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.duration_pb2 import Duration

from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import lease_service_pb2 as leases
from tenure.validators.common import (
    Check,
    Violations,
    check_claim_epoch,
    check_guarded,
    check_text,
    check_token,
)
from tenure.wire.common import seconds

RESOURCE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/-]{0,199}\Z")
_PREFIX: Final = re.compile(r"([a-zA-Z0-9][a-zA-Z0-9._/-]{0,199})?\Z")
_MIN_TTL_SECONDS: Final = 2
_MAX_TTL_SECONDS: Final = 3600
_MAX_REASON: Final = 1000
_MAX_NAME: Final = 128
_MAX_CODE: Final = 64
_MAX_PAGE: Final = 500


def _acquire(request: leases.AcquireLeaseRequest, v: Violations) -> None:
    _resource(request.resource, "resource", v)
    check_text("holder", request.holder, 1, _MAX_NAME, v)
    _ttl(request.ttl, v)
    check_text("request_id", request.request_id, 1, _MAX_NAME, v)


def _release(request: leases.ReleaseLeaseRequest, v: Violations) -> None:
    _authority(request, v)
    check_text("reason", request.reason, 0 if request.HasField("token") else 1, _MAX_REASON, v)


def _transfer(request: leases.TransferLeaseRequest, v: Violations) -> None:
    _authority(request, v)
    check_text("holder", request.holder, 1, _MAX_NAME, v)
    check_text("reason", request.reason, 1, _MAX_REASON, v)
    check_text("request_id", request.request_id, 1, _MAX_NAME, v)
    if request.HasField("ttl"):
        _ttl(request.ttl, v)


def _authority(request: leases.ReleaseLeaseRequest | leases.TransferLeaseRequest, v: Violations) -> None:
    match request.WhichOneof("authority"):
        case "token":
            check_token(request.token, v)
        case "lease":
            _resource(request.lease.resource, "lease.resource", v)
            v.require(request.lease.epoch >= 1, "lease.epoch", "must be 1 or more")
        case _:
            v.require(holds=False, field="authority", description="must be a token or a lease")


def _get(request: leases.GetLeaseRequest, v: Violations) -> None:
    _resource(request.resource, "resource", v)


def _list(request: leases.ListLeasesRequest, v: Violations) -> None:
    _prefix(request.prefix, v)
    v.between("page_size", request.page_size, 0, _MAX_PAGE)
    v.require(
        not request.page_token or bool(RESOURCE.match(request.page_token)),
        "page_token",
        "must be the next_page_token of an earlier answer",
    )


def _watch(request: leases.WatchLeasesRequest, v: Violations) -> None:
    _prefix(request.prefix, v)
    v.require(request.after_revision >= 0, "after_revision", "must not be negative")


def _register(request: checkpoint.RegisterLeaseRequest, v: Violations) -> None:
    grant = request.grant
    _resource(grant.resource, "grant.resource", v)
    check_claim_epoch("grant.epoch", grant.epoch, v)
    v.require(0 <= grant.previous_epoch < grant.epoch, "grant.previous_epoch", "must be below the epoch")
    v.uuid("grant.claim_id", grant.claim_id)
    check_text("grant.holder", grant.holder, 1, _MAX_NAME, v)
    check_text("grant.request_id", grant.request_id, 1, _MAX_NAME, v)
    check_text("grant.reason", grant.reason, 0, _MAX_CODE, v)
    check_text("grant.message", grant.message, 0, _MAX_REASON, v)


def _note_release(request: checkpoint.NoteLeaseReleaseRequest, v: Violations) -> None:
    """Checks a release. It needs a reason, because a release without a reason would not count as a release."""
    _resource(request.resource, "resource", v)
    v.uuid("claim_id", request.claim_id)
    check_text("reason", request.reason, 1, _MAX_CODE, v)
    check_text("message", request.message, 0, _MAX_REASON, v)


def _inspect(request: checkpoint.InspectLeasesRequest, v: Violations) -> None:
    v.require(len(request.claims) <= 512, "claims", "at most 512")


def _resource(name: str, field: str, v: Violations) -> None:
    v.require(bool(RESOURCE.match(name)), field, "must be a name of up to 200 characters of a-z, A-Z, 0-9, ._-/")


def _prefix(prefix: str, v: Violations) -> None:
    v.require(
        bool(_PREFIX.match(prefix)),
        "prefix",
        "must be the prefix of a name: up to 200 characters of a-z, A-Z, 0-9, ._-/",
    )


def _ttl(ttl: Duration, v: Violations) -> None:
    v.between("ttl", seconds(ttl), _MIN_TTL_SECONDS, _MAX_TTL_SECONDS)


CHECKS: Final[dict[type, Check]] = {
    leases.AcquireLeaseRequest: _acquire,
    leases.RenewLeaseRequest: check_guarded,
    leases.ReleaseLeaseRequest: _release,
    leases.TransferLeaseRequest: _transfer,
    leases.GetLeaseRequest: _get,
    leases.ListLeasesRequest: _list,
    leases.WatchLeasesRequest: _watch,
    checkpoint.RegisterLeaseRequest: _register,
    checkpoint.NoteLeaseReleaseRequest: _note_release,
    checkpoint.InspectLeasesRequest: _inspect,
}
