"""Defines the JSON values of sessions and claims in etcd.

They are small, readable with etcdctl, and open to fields of newer versions.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenure.domain.fencing import Fence, SessionOwner, compose_epoch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from services.coordinator.etcd.transactions import KeyValue
    from tenure.v1 import task_pb2

# Under the prefix of the installation, which is the namespace of the client.
GENERATION_KEY: Final = b"generation"
SESSIONS: Final = b"sessions/"
CLAIMS: Final = b"claims/"
DRAINS: Final = b"drains/"

_log: Final = logging.getLogger(__name__)
_Record = TypeVar("_Record", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """The worker of a session and the coordinator that it is attached to.

    `started_at` is Unix time in seconds, for people. `own`: the session of a coordinator for close-outs; it has no
    worker and gets no offers. `live_address`: where gateways may connect. `is_local`: the worker is on the machine of
    the coordinator. `identity`, `secret_digest`: see SessionOwner. `proof_digest`: of its proof for gateways, in
    hexadecimal. `build`: of the worker's code.
    """

    worker_id: str
    coordinator_id: str
    generation: int
    started_at: float
    live_address: str = ""
    queues: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    priorities: tuple[task_pb2.Priority.ValueType, ...] = ()
    own: bool = False
    is_local: bool = False
    identity: str = ""
    secret_digest: str = ""
    proof_digest: str = ""
    build: str = ""

    @property
    def owner(self) -> SessionOwner:
        """The worker that may attach the session again."""
        return SessionOwner(self.identity, self.secret_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """The owner of a claim and the reason. It has all fields of a token, because any replica may have to sign it again.

    `labels`: each key, followed by its value. `suspect`: owners died with the task, so its session must not hold a
    second such task. The timeouts, the lease's TTL and the interval of renewals are the task's own, or 0; the grace of
    its worker after a broken stream is its own, or None. `scopes`: the fields of `TaskScopes`.
    `plans`: see `plans_to_text`.
    """

    claim_id: str
    worker_id: str
    session_id: str
    generation: int
    tenant: str
    reason: str
    previous_epoch: int
    loop: str = ""
    key_id: str = ""
    tools: tuple[str, ...] | None = None
    agent: str = ""
    labels: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    suspect: bool = False
    start_timeout_seconds: float = 0.0
    progress_timeout_seconds: float = 0.0
    lease_ttl_seconds: float = 0.0
    renew_interval_seconds: float = 0.0
    reconnect_grace_seconds: float | None = None
    queue: str = ""
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session as etcd has it. Each attach puts the key again, so `mod_revision` identifies the attachment."""

    session_id: str
    record: SessionRecord
    lease: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim as etcd has it. `create_revision` identifies it among all claims of the task."""

    task_id: str
    record: ClaimRecord
    create_revision: int
    lease: int

    @property
    def epoch(self) -> int:
        """The epoch in its fencing token."""
        return compose_epoch(self.record.generation, self.create_revision)

    @property
    def fence(self) -> Fence:
        """The pair that fences compare."""
        return Fence(self.epoch, self.record.claim_id)


def session_key(session_id: str) -> bytes:
    return SESSIONS + session_id.encode()


def claim_key(task_id: str) -> bytes:
    return CLAIMS + task_id.encode()


def drain_key(session_id: str) -> bytes:
    return DRAINS + session_id.encode()


def write_record(record: DataclassInstance) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def read_session(key_value: KeyValue) -> HeldSession | None:
    """Returns the session in a key. Logs and ignores another value: None."""
    record = read_record(SessionRecord, key_value)
    session_id = key_value.key.removeprefix(SESSIONS).decode(errors="replace")
    return None if record is None else HeldSession(session_id, record, key_value.lease, key_value.mod_revision)


def read_claim(key_value: KeyValue) -> HeldClaim | None:
    """Returns the claim in a key. Logs and ignores another value: None."""
    record = read_record(ClaimRecord, key_value)
    task_id = key_value.key.removeprefix(CLAIMS).decode(errors="replace")
    return None if record is None else HeldClaim(task_id, record, key_value.create_revision, key_value.lease)


def read_record(kind: type[_Record], key_value: KeyValue) -> _Record | None:
    """Returns the record in a key. Logs and ignores another value: None."""
    known = {field.name for field in fields(kind)}
    try:
        values: dict[str, Any] = {name: _frozen(value) for name, value in json.loads(key_value.value).items()}
        return kind(**{name: value for name, value in values.items() if name in known})
    except (ValueError, TypeError, AttributeError):
        _log.warning("a key has no valid %s", kind.__name__, extra={"key": key_value.key.decode(errors="replace")})
        return None


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
