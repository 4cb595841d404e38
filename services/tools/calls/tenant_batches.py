"""One group commit for each tenant: a batch that takes long delays the calls of its own tenant only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic

from tenure.runtime.store.batching import Batcher, Item, Result

StartDuty = Callable[[Callable[[], Awaitable[None]]], object]


class TenantBatchers(Generic[Item, Result]):
    """Makes the batcher of a tenant with its first item. `start`: starts the duty that runs it.

    A batcher stays: it is small, and only tenants with rules have one.
    """

    def __init__(self, make: Callable[[], Batcher[Item, Result]], start: StartDuty) -> None:
        self._make, self._start = make, start
        self._context = copy_context()  # the duty must not run in the context of the request that is the first
        self._batchers: dict[str, Batcher[Item, Result]] = {}

    def of(self, tenant: str) -> Batcher[Item, Result]:
        """Returns the batcher of the tenant."""
        batcher = self._batchers.get(tenant)
        if batcher is None:
            batcher = self._batchers[tenant] = self._make()
            self._context.copy().run(self._start, batcher.run)
        return batcher
