"""What is wrong with a request, collected while it is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from tenure.domain.errors import FieldViolation


class Violations:
    """Collects what is wrong, all of it, with the path of each field."""

    def __init__(self) -> None:
        self.found: list[FieldViolation] = []

    def require(self, holds: bool, field: str, description: str) -> None:
        if not holds:
            self.found.append(FieldViolation(field, description))

    def uuid(self, field: str, value: str) -> None:
        self.require(_is_uuid(value), field, "must be a UUID")

    def length(self, field: str, value: str, least: int, most: int) -> None:
        self.require(least <= len(value) <= most, field, f"must have {least} to {most} characters")

    def known(self, field: str, values: Any, number: int) -> None:
        """A choice we do not know must not be taken for the default. Unspecified is one of the values."""
        self.require(number in values.values(), field, f"is none of {', '.join(values.keys())}")

    def between(self, field: str, value: float, least: float, most: float) -> None:
        self.require(least <= value <= most, field, f"must be {least:g} to {most:g}")


Check = Callable[[Any, Violations], None]


def _is_uuid(value: str) -> bool:
    if len(value) != 36:
        return False
    try:
        UUID(value)
    except ValueError:
        return False
    return True
