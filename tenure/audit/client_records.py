"""What clients asked, what they were answered, and what watchers were told: the logs that a run's clients keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tenure.domain.epochs import Fence
from tenure.domain.states import TaskState


class Method(StrEnum):
    """What a client asked for."""

    SUBMIT = "submit"
    GET = "get"
    CANCEL = "cancel"
    COMMIT = "commit"
    RESOLVE = "resolve"


class Answer(StrEnum):
    """How a client's call ended. FAILED says that nothing was done; anything less clear is UNKNOWN."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of a client. The log of operations holds all calls of all clients that wrote.

    `request_hash`: equal for equal payloads. `task_id` "": not known. `reason`: of a refusal, UPPER_SNAKE.
    `sequence`, `state`, `result`, `seen_tenant`: of the task in the answer. COMMIT (own loops only): `fence`,
    `request_id` is the commit_id, `body_hashes` are those of its entries in order, `sequence` is that of the answer.
    `call_id`, `call_attempt`: what a word was about (RESOLVE).
    """

    client: str
    method: Method
    answer: Answer
    request_id: str = ""
    request_hash: bytes = b""
    tenant: str = "default"
    task_id: str = ""
    reason: str = ""
    sequence: int | None = None
    state: TaskState | None = None
    result: str | None = None
    seen_tenant: str = ""
    fence: Fence | None = None
    body_hashes: tuple[bytes, ...] = ()
    call_id: str = ""
    call_attempt: int = 0
    invoked_monotonic: float = 0.0
    returned_monotonic: float | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """One entry as a watcher got it. `resync`: the server said that what is before this sequence was left out."""

    sequence: int
    body_hash: bytes = b""
    received_monotonic: float = 0.0
    resync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One WatchTask stream: where it began, what it delivered in order, and whether the server ended it by itself."""

    client: str
    task_id: str
    after_sequence: int = 0
    opened_monotonic: float = 0.0
    delivered: tuple[Delivered, ...] = ()
    ended: bool = False
    tenant: str = "default"
