"""What an error of Postgres means to us: psycopg's exceptions by SQLSTATE, as domain errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
import psycopg_pool

from tenure.domain.errors import InvalidRequest, LimitReached, TenureError, Unavailable
from tenure.runtime.status import LOCK_TIMEOUT, OUTCOME_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator


class TransactionConflict(Unavailable):
    """Postgres undid the transaction for the sake of another one: nothing was done, and it may be run again at once."""

    default_reason = "TRANSACTION_CONFLICT"


# SQLSTATE → reason. In all of these the statement was refused or rolled back: nothing was done.
_NOTHING_DONE: Final = {
    "25006": "READ_ONLY",  # a standby, or a primary about to be one
    "53100": "STORAGE_FULL",
    "53200": "OUT_OF_MEMORY",
    "53300": "TOO_MANY_CONNECTIONS",
    "55P03": LOCK_TIMEOUT,
    "57014": "STATEMENT_TIMEOUT",
    "57P03": "STARTING_UP",
}
_CONFLICTS: Final = frozenset(("40001", "40P01"))
# The server ended the connection; a commit on its way may or may not have been the last thing it did.
_CONNECTION_ENDED: Final = frozenset(("57P01", "57P02", "57P05", "25P03", "25P04"))


# What Postgres cannot keep in a text, such as a NUL.
_UNFIT_TEXT: Final = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)


@contextmanager
def domain_errors() -> Iterator[None]:
    """Around anything that talks to Postgres: raises what `to_domain` makes of psycopg's errors."""
    try:
        yield
    except psycopg.Error as error:
        translated = to_domain(error)
        if translated is None:
            raise
        raise translated from error


def to_domain(error: psycopg.Error) -> TenureError | None:
    """The domain error, or None when the statement itself is at fault: that is a bug of ours."""
    state = error.sqlstate
    if isinstance(error, _UNFIT_TEXT):
        return InvalidRequest("a text holds characters that cannot be kept", reason="INVALID_TEXT")
    if isinstance(error, psycopg_pool.TooManyRequests):
        return LimitReached("too many wait for a connection to Postgres", reason="POOL_FULL")
    if isinstance(error, (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed)):
        return Unavailable("no connection to Postgres in time", reason="POSTGRES_UNAVAILABLE")
    if state in _CONFLICTS:
        return TransactionConflict(str(error))
    if state in _NOTHING_DONE:
        return Unavailable(_first_line(error), reason=_NOTHING_DONE[state])
    if state is None and isinstance(error, psycopg.errors.ConnectionTimeout):
        return Unavailable("Postgres does not answer", reason="POSTGRES_UNAVAILABLE")
    lost = state in _CONNECTION_ENDED or (state or "").startswith("08")
    if lost or (state is None and isinstance(error, psycopg.OperationalError)):
        return Unavailable(
            "the connection to Postgres was lost", reason="POSTGRES_UNAVAILABLE", metadata=OUTCOME_UNKNOWN
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(_first_line(error), reason="POSTGRES_UNAVAILABLE")
    return None


def _first_line(error: psycopg.Error) -> str:
    """Without the context, which quotes our statements."""
    return str(error).partition("\n")[0]
