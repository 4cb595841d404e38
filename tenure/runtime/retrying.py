"""Retries an operation a bounded number of times, with the waits of a RetryPolicy."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, TypeVar

from tenure.domain.errors import TryLater

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenure.domain.retry import RetryPolicy

_Result = TypeVar("_Result")


async def retrying(
    operation: Callable[[], Awaitable[_Result]],
    policy: RetryPolicy,
    *,
    on: tuple[type[Exception], ...] = (TryLater,),
    longest_seconds: float = math.inf,
    random_fraction: Callable[[], float] = random.random,
) -> _Result:
    """Runs `operation` until it succeeds, at most `policy.max_attempts` times. Raises the last error unchanged.

    Waits between attempts with full jitter, and at least the `retry_after_seconds` of a TryLater. The operation must
    be repeatable: an error may hide a success. The caller bounds the total time with `asyncio.timeout`; a TryLater that
    requires a wait of more than `longest_seconds` is raised at once.
    """
    failures = 0
    while True:
        try:
            return await operation()
        except on as error:
            failures += 1
            retry_after = error.retry_after_seconds if isinstance(error, TryLater) else None
            if policy.exhausted(failures) or (retry_after or 0.0) > longest_seconds:
                raise
            wait_seconds = policy.wait_seconds(failures, random_fraction(), retry_after)
        await asyncio.sleep(wait_seconds)
