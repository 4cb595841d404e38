"""Tokens of pages that are sorted by a time and a task id: the position of the last row of the page before."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from tenure.domain.errors import InvalidRequest

_NO_TIME: Final = "infinity"
"""The time of a wait without a deadline: Postgres sorts it after all others."""


def write_token(place: str, task_id: str) -> str:
    """Returns the token of a position. `place`: the time, as Postgres writes it."""
    return base64.urlsafe_b64encode(f"{place} {task_id}".encode()).decode()


def read_token(token: str, first: tuple[str, str]) -> tuple[str, str]:
    """Returns the (time, task id) after which the page begins; `first` for an empty token.

    Raises InvalidRequest. Postgres must not see any other text: its cast would fail as a fault of the statement.
    """
    if not token:
        return first
    try:
        place, _, task_id = base64.b64decode(token, altchars=b"-_", validate=True).decode().rpartition(" ")
        return place if place == _NO_TIME else read_time(place), str(UUID(task_id))
    except (binascii.Error, UnicodeError, ValueError, OverflowError):
        message = "is not a token of this service: use next_page_token of the last response"
        raise InvalidRequest(violations=[("page_token", message)]) from None


def read_time(text: str) -> str:
    """Returns the time in a form that Postgres reads: Python reads more forms. Raises ValueError or OverflowError."""
    return datetime.fromisoformat(text).astimezone(UTC).isoformat()
