"""Decides whether the result schemas of requests are accepted: each schema once, a few at a time, in child processes.

One tenant has one check at a time, so tenants take turns, and a bounded number that wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.errors import FieldViolation, InvalidRequest, LimitReached
from tenure.runtime import metrics
from tenure.runtime.request_context import current_tenant
from tenure.runtime.schema_process import check_apart

MAX_AT_ONCE: Final = 2
MAX_PER_TENANT: Final = 8
"""Checks of one tenant that run or wait."""
MAX_VERDICTS: Final = 4096

_RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Turns:
    """The checks of one tenant."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: int = 0


class SchemaChecks:
    """The checks of one process. `schemas_in` names the fields of a request that hold a schema, each with its text."""

    def __init__(self, schemas_in: Callable[[Any], Iterable[tuple[str, str]]]) -> None:
        self._schemas_in = schemas_in
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tenants: dict[str, _Turns] = {}
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    async def examine(self, request: Any) -> None:
        """Raises InvalidRequest, LimitReached (SCHEMA_CHECKS_BUSY), and Unavailable (JUDGING_TIMEOUT)."""
        problems = [(name, await self._problem(schema_json)) for name, schema_json in self._schemas_in(request)]
        violations = [FieldViolation(name, problem) for name, problem in problems if problem]
        if violations:
            raise InvalidRequest(violations=violations)

    async def _problem(self, schema_json: str) -> str:
        digest = hashlib.sha256(schema_json.encode()).digest()
        if digest in self._verdicts:
            self._verdicts.move_to_end(digest)
            return self._verdicts[digest]
        async with self._turn(current_tenant()):
            if digest not in self._verdicts:  # an equal request may have been before us
                async with self._slots:
                    metrics.count("tenure_result_schemas_checked_total")
                    self._verdicts[digest] = await check_apart(schema_json)
                if len(self._verdicts) > MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
            return self._verdicts[digest]

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        turns = self._tenants.setdefault(tenant, _Turns())
        if turns.pending >= MAX_PER_TENANT:
            message = f"{MAX_PER_TENANT} new result schemas of this tenant are being checked already: try again later"
            raise LimitReached(message, reason="SCHEMA_CHECKS_BUSY", retry_after_seconds=_RETRY_SECONDS)
        turns.pending += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.pending -= 1
            if not turns.pending:
                del self._tenants[tenant]
