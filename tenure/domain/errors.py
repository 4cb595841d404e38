"""Every way in which Tenure says no, sorted by what the receiver does next.

    TenureError
    ├── Refused                 the request is wrong: sending it again changes nothing
    │   ├── InvalidRequest      a field breaks its constraint (carries the violations)
    │   ├── NotFound            no such thing, or not yours
    │   ├── AlreadyExists       the same id with another payload
    │   ├── WrongState          not in this state (a terminal task, a wait that is over)
    │   ├── BudgetExhausted     the cap in tokens, money or steps is reached
    │   ├── OutOfRange          a cursor or sequence that is no longer, or not yet, there
    │   ├── Unauthenticated     no valid identity
    │   └── PermissionDenied    the identity may not do this
    ├── Fenced                  the caller lost its lease: stop now, undo nothing
    │   ├── StaleEpoch          a higher epoch exists, or the claim is no longer the ledger's
    │   └── SequenceConflict    the commit number is neither the next nor the last: open again
    └── TryLater                the same request may succeed later
        ├── Unavailable         a part is down, draining or cut off
        ├── LimitReached        a rate or a queue is full
        └── LeaseHeld           another has the lease

Only leaves are raised. Anything that is not a TenureError is a bug and leaves a process as INTERNAL without detail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class TenureError(Exception):
    """The root. `reason` is for programs (UPPER_SNAKE), `message` for people, `metadata` for both.

    A class has a default reason; a more precise one (REQUEST_ID_REUSED, CURSOR_EXPIRED, STORAGE_FULL) may be given.
    """

    default_reason: ClassVar[str]

    def __init__(self, message: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata: dict[str, str] = dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # The state goes along in full: the constructors of the leaves differ.
        return (_revive, (type(self), self.message), self.__dict__)


def _revive(kind: type[TenureError], message: str) -> TenureError:
    return kind.__new__(kind, message)


class Refused(TenureError):  # noqa: N818  read as `except Refused`: what was answered, not what went wrong
    """The request is wrong: sending it again changes nothing."""


class FieldViolation(NamedTuple):
    """One field (a path such as `limits.max_tokens`) and what it should have been."""

    field: str
    description: str


class InvalidRequest(Refused):
    """A field breaks its constraint. All violations found are told together."""

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


class NotFound(Refused):
    """No such thing, or not the caller's: the two are not told apart."""

    default_reason = "NOT_FOUND"


class AlreadyExists(Refused):
    """The id is taken by something else; a request_id that comes again with another payload is REQUEST_ID_REUSED."""

    default_reason = "ALREADY_EXISTS"


class WrongState(Refused):
    """What is asked is not possible in the present state."""

    default_reason = "WRONG_STATE"


class BudgetExhausted(Refused):
    """A cap is reached (TOKEN_LIMIT, MONEY_LIMIT, STEP_LIMIT): nothing more until somebody grants more."""

    default_reason = "BUDGET_EXHAUSTED"


class OutOfRange(Refused):
    """A position that is no longer there (CURSOR_EXPIRED) or cannot be."""

    default_reason = "OUT_OF_RANGE"


class Unauthenticated(Refused):
    """No identity, or one that does not hold."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(Refused):
    """The identity is known and may not do this."""

    default_reason = "PERMISSION_DENIED"


class Fenced(TenureError):  # noqa: N818  read as `except Fenced`: what was answered, not what went wrong
    """The caller lost its lease. It stops this task at once and asks nobody whether it may go on."""


class StaleEpoch(Fenced):
    """A higher epoch exists, or the presented claim is no longer the ledger's.

    `presented` and `current` travel in the metadata, so that every receiver can tell them.
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
        """The epoch the caller came with, if it was told."""
        return _number(self.metadata.get("presented"))

    @property
    def current(self) -> int | None:
        """The epoch that fenced it, if it was told."""
        return _number(self.metadata.get("current"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


TOO_MUCH_APPENDED: Final = "TOO_MUCH_APPENDED"
"""Reason of a SequenceConflict: others appended more than one answer holds. Nothing was written."""


class SequenceConflict(Fenced):
    """The commit number is neither the next nor the last one: open again, never adopt a number from this error."""

    default_reason = "SEQUENCE_CONFLICT"


class TryLater(TenureError):  # noqa: N818  read as `except TryLater`: what was answered, not what went wrong
    """The same request may succeed later, not before `retry_after_seconds` if that is told.

    Raised by Tenure itself: nothing was done. For a call that broke on its way see `tenure.runtime.rpc_status`.
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
    """A part is down, draining, cut off, or has no room to write (STORAGE_FULL)."""

    default_reason = "UNAVAILABLE"


class LimitReached(TryLater):
    """A rate, a queue or a number of things at once is at its limit."""

    default_reason = "LIMIT_REACHED"


class LeaseHeld(TryLater):
    """Another has the lease (`holder`, `epoch` in the metadata): it may be free after `retry_after_seconds`."""

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
