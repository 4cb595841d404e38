"""What the coordinator keeps in etcd, and the only place that knows it is etcd.

    /tenure/generation            which life of etcd this is
    /tenure/sessions/<session>    a worker's session, under the session's lease; put anew by every re-attachment
    /tenure/claims/<task>         a claim, under its session's lease; put once and never again
    /tenure/leases/<tenant>/<resource>@<claim_id>   a named resource's lease (LeaseService), likewise, under its own

Callers see values and domain errors: `Unavailable` when etcd does not answer or an answer is not known, `SessionLost`
and `GenerationMoved` when it says no.
"""

from services.coordinator.lease_store.records import ClaimRecord, HeldClaim, HeldSession, SessionRecord
from services.coordinator.lease_store.refusals import (
    ETCD_OUT_OF_SPACE,
    ETCD_UNAVAILABLE,
    GenerationMoved,
    SessionLost,
)
from services.coordinator.lease_store.store import LeaseStore, open_lease_store

__all__ = [
    "ETCD_OUT_OF_SPACE",
    "ETCD_UNAVAILABLE",
    "ClaimRecord",
    "GenerationMoved",
    "HeldClaim",
    "HeldSession",
    "LeaseStore",
    "SessionLost",
    "SessionRecord",
    "open_lease_store",
]
