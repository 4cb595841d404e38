"""Checks the result schemas in requests: each schema once, a few at a time, in child processes.

A tenant has one running check at a time, so that tenants share the checks fairly, and a bounded number of waiting
checks.
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
from tenure.runtime.schema_process import check_schema_in_child

MAX_AT_ONCE: Final = 2
MAX_PER_TENANT: Final = 8
"""The limit of the running and waiting checks of one tenant."""
MAX_VERDICTS: Final = 4096

_RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class _TenantChecks:
    """The running and the waiting checks of one tenant."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: int = 0


class SchemaChecks:
    """The schema checks of one process, with a cache of their results.

    `schemas_in` returns the fields of a request that hold a schema, as pairs of field name and schema text.
    """

    def __init__(self, schemas_in: Callable[[Any], Iterable[tuple[str, str]]]) -> None:
        self._schemas_in = schemas_in
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tenants: dict[str, _TenantChecks] = {}
        self._problems: OrderedDict[bytes, str] = OrderedDict()

    async def examine(self, request: Any) -> None:
        """Checks the schemas of a request.

        Raises InvalidRequest for an unusable schema, LimitReached (SCHEMA_CHECKS_BUSY) if the tenant has too many
        checks, and Unavailable (JUDGING_TIMEOUT) if the machine is too busy.
        """
        problems = [(name, await self._problem(schema_json)) for name, schema_json in self._schemas_in(request)]
        violations = [FieldViolation(name, problem) for name, problem in problems if problem]
        if violations:
            raise InvalidRequest(violations=violations)

    async def _problem(self, schema_json: str) -> str:
        digest = hashlib.sha256(schema_json.encode()).digest()
        if digest in self._problems:
            self._problems.move_to_end(digest)
            return self._problems[digest]
        async with self._check_of(current_tenant()):
            if digest not in self._problems:  # an earlier request may have had the same schema
                async with self._slots:
                    metrics.count("tenure_result_schemas_checked_total")
                    self._problems[digest] = await check_schema_in_child(schema_json)
                if len(self._problems) > MAX_VERDICTS:
                    self._problems.popitem(last=False)
            return self._problems[digest]

    @asynccontextmanager
    async def _check_of(self, tenant: str) -> AsyncIterator[None]:
        checks = self._tenants.setdefault(tenant, _TenantChecks())
        if checks.pending >= MAX_PER_TENANT:
            message = f"{MAX_PER_TENANT} new result schemas of this tenant are already being checked: try again later"
            raise LimitReached(message, reason="SCHEMA_CHECKS_BUSY", retry_after_seconds=_RETRY_SECONDS)
        checks.pending += 1
        try:
            async with checks.lock:
                yield
        finally:
            checks.pending -= 1
            if not checks.pending:
                del self._tenants[tenant]
