"""Defines every error that Tenure raises, grouped by what the caller does next.

    TenureError
    ├── Refused                 the request is wrong: sending it again changes nothing
    │   ├── InvalidRequest      a field breaks its constraint (carries the violations)
    │   ├── NotFound            the object does not exist, or belongs to another tenant
    │   ├── AlreadyExists       the same id with another payload
    │   ├── WrongState          not allowed in this state (a terminal task, a wait that is over)
    │   ├── BudgetExhausted     the cap in tokens, money or steps is reached
    │   ├── OutOfRange          a cursor or sequence that no longer exists, or does not exist yet
    │   ├── Unauthenticated     no valid identity
    │   └── PermissionDenied    the identity may not do this
    ├── Fenced                  the caller lost its claim or lease: stop now, undo nothing
    │   ├── StaleEpoch          a higher epoch exists, or the ledger no longer has this claim
    │   └── SequenceConflict    the commit number is neither the next nor the last: open again
    └── TryLater                the same request may succeed later
        ├── Unavailable         a service is down, draining or cut off
        ├── LimitReached        a rate limit is reached or a queue is full
        └── LeaseHeld           another holder has the lease

Only the leaf classes are raised. Any exception that is not a TenureError is a bug: a process answers it as INTERNAL
without detail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple


class TenureError(Exception):
    """The base class. `reason` is an UPPER_SNAKE code for programs, `message` is for people, `metadata` for both.

    `hint` says what the caller can do. Only a client sets it, at the end of the error's way: it is not on the wire.

    Each leaf has a default reason; the caller may pass a more precise one (REQUEST_ID_REUSED, CURSOR_EXPIRED,
    STORAGE_FULL).
    """

    default_reason: ClassVar[str]

    def __init__(self, message: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.hint = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}{f'. To do: {self.hint}' if self.hint else ''}"

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles the whole instance dictionary, because the constructors of the leaves differ.
        return (_revive, (type(self), self.message), self.__dict__)


def _revive(kind: type[TenureError], message: str) -> TenureError:
    return kind.__new__(kind, message)


class Refused(TenureError):  # noqa: N818  named after the answer, so that `except Refused` reads well
    """The request is wrong: sending it again changes nothing."""


class FieldViolation(NamedTuple):
    """One field (a path such as `limits.max_tokens`) and the constraint that it breaks."""

    field: str
    description: str


class InvalidRequest(Refused):
    """A field breaks its constraint. `violations` lists all violations that were found."""

    default_reason = "INVALID_REQUEST"

    def __init__(
        self,
        message: str = "",
        *,
        violations: Iterable[tuple[str, str]] = (),
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.violations = tuple(FieldViolation(*violation) for violation in violations)
        sentence = "; ".join(f"{field}: {description}" for field, description in self.violations)
        super().__init__(message or sentence or "invalid request", reason=reason, metadata=metadata)

    @property
    def field(self) -> str:
        """The first field that breaks its constraint; empty if the error names none."""
        return self.violations[0].field if self.violations else ""


UNWRITABLE: Final = "UNWRITABLE"
"""Reason of an InvalidRequest: the database refuses the values from any sender. Nothing was written."""


class NotFound(Refused):
    """The object does not exist, or belongs to another tenant. The two cases give the same error."""

    default_reason = "NOT_FOUND"


class AlreadyExists(Refused):
    """Another object has the id. A request_id repeated with another payload has the reason REQUEST_ID_REUSED."""

    default_reason = "ALREADY_EXISTS"


SOURCE_BUSY: Final = "SOURCE_BUSY"
"""Reason of an AlreadyExists: a task of an exclusive source is live. The same submit may succeed after its end."""


SOURCE_LINE_FULL: Final = "SOURCE_LINE_FULL"
"""Reason of a LimitReached: too many tasks of the source wait in line."""


class WrongState(Refused):
    """The request is not possible in the object's current state."""

    default_reason = "WRONG_STATE"


class BudgetExhausted(Refused):
    """A cap is reached (TOKEN_LIMIT, MONEY_LIMIT, STEP_LIMIT). The request fails until an operator raises the cap."""

    default_reason = "BUDGET_EXHAUSTED"


class OutOfRange(Refused):
    """A position that no longer exists (CURSOR_EXPIRED) or cannot exist."""

    default_reason = "OUT_OF_RANGE"


class Unauthenticated(Refused):
    """The request has no identity, or an invalid one."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(Refused):
    """The identity is valid but may not do this."""

    default_reason = "PERMISSION_DENIED"


class Fenced(TenureError):  # noqa: N818  named after the answer, so that `except Fenced` reads well
    """The caller lost its claim or lease. It stops this task at once and does not ask whether it may continue."""


class StaleEpoch(Fenced):
    """A higher epoch exists, or the ledger no longer has the presented claim.

    The metadata carries the epochs `presented` and `current` to every receiver.
    """

    default_reason = "STALE_EPOCH"

    def __init__(
        self,
        message: str = "",
        *,
        presented: int | None = None,
        current: int | None = None,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        epochs = {"presented": presented, "current": current}
        reported = {name: str(epoch) for name, epoch in epochs.items() if epoch is not None}
        text = message or f"epoch {presented} is fenced, the current one is {current}"
        super().__init__(text, reason=reason, metadata={**(metadata or {}), **reported})

    @property
    def presented(self) -> int | None:
        """The epoch that the caller presented, or None if the error does not state it."""
        return _number(self.metadata.get("presented"))

    @property
    def current(self) -> int | None:
        """The epoch that fenced the caller, or None if the error does not state it."""
        return _number(self.metadata.get("current"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


TOO_MUCH_APPENDED: Final = "TOO_MUCH_APPENDED"
"""Reason of a SequenceConflict: other actors appended more entries than one answer can hold. Nothing was written."""


class SequenceConflict(Fenced):
    """The commit number is neither the next nor the last one. The caller opens the task again; it never adopts a
    number from this error.
    """

    default_reason = "SEQUENCE_CONFLICT"


class TryLater(TenureError):  # noqa: N818  named after the answer, so that `except TryLater` reads well
    """The same request may succeed later, but not before `retry_after_seconds` if that is set.

    When a Tenure service raises this error, the request had no effect. For an RPC whose connection broke see
    `tenure.runtime.rpc.status`.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(TryLater):
    """A service is down, draining or cut off, or its storage is full (STORAGE_FULL)."""

    default_reason = "UNAVAILABLE"


class LimitReached(TryLater):
    """A rate limit, a queue limit or a concurrency limit is reached."""

    default_reason = "LIMIT_REACHED"


class LeaseHeld(TryLater):
    """Another holder has the lease (metadata `holder`, `epoch`). It may be free after `retry_after_seconds`."""

    default_reason = "LEASE_HELD"


LEAVES: tuple[type[TenureError], ...] = (
    InvalidRequest,
    NotFound,
    AlreadyExists,
    WrongState,
    BudgetExhausted,
    OutOfRange,
    Unauthenticated,
    PermissionDenied,
    StaleEpoch,
    SequenceConflict,
    Unavailable,
    LimitReached,
    LeaseHeld,
)
