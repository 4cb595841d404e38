"""Stores the coordinators' keys in etcd. Only this package and services/coordinator/etcd know that the store is etcd.

    generation            the generation: the number of lives of etcd
    sessions/<session>    a worker's session, under the session's lease; put again by every attach
    claims/<task>         a claim, under its session's lease; put once and never again
    drains/<session>      an operator's request to drain the session's worker, under the session's lease
    leases/<tenant>/<resource>@<claim_id>   a named lease (LeaseService); put once, under its own etcd lease

Each key begins with the prefix of the installation (`etcd_key_prefix`, usually `/tenure/`), which the client adds.

The modules, in the order in which data flows:

    store.py            LeaseStore, the entry point: all keys of one etcd
    generation_key.py   the generation key, a condition of every write
    session_keys.py     sessions and their leases; drain marks
    claim_keys.py       claims: made, found and deleted in batches
    named_leases.py     leases of LeaseService
    records.py          the JSON values of the keys
    events.py           watches of deleted keys, drain marks and named leases
    refusals.py         etcd's errors as the coordinator's errors

Callers get values and domain errors: `Unavailable` when etcd does not answer or the outcome is unknown, `SessionLost`
and `GenerationMoved` when etcd refuses.
"""

from services.coordinator.lease_store.records import ClaimRecord, HeldClaim, HeldSession, SessionRecord
from services.coordinator.lease_store.refusals import ETCD_OUT_OF_SPACE, ETCD_UNAVAILABLE, GenerationMoved, SessionLost
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
