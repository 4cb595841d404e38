"""The provider's rate limits: token buckets of each key and model, with the headers of both vendors.

As at Anthropic: a request needs one of the requests and its uncached input at once; output counts when it is written,
so a bucket of output may go below zero and refuses requests until it is above. A refusal takes nothing. Each bucket
refills all the time, to its limit in a minute. Limits of `tokens` are those of OpenAI: input and output together.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from devstack.simulator.http_server import ApiError, HttpRequest

PERIOD_SECONDS = 60.0
MAX_KEYS = 10_000
PER_MINUTE = "_per_minute"


@dataclass(frozen=True)
class RateLimits:
    """The limits of each key and model; 0: none."""

    requests_per_minute: int = 0
    input_tokens_per_minute: int = 0
    output_tokens_per_minute: int = 0
    tokens_per_minute: int = 0

    @classmethod
    def of(cls, value: Any) -> RateLimits:
        """Reads the body of a control request. Raises ValueError."""
        names = {known.name for known in fields(cls)}
        if not isinstance(value, dict) or not set(value) <= names:
            raise ValueError(f"limits are an object with {', '.join(sorted(names))}")
        if not all(type(limit) is int and 0 <= limit <= 10**12 for limit in value.values()):
            raise ValueError("a limit is a whole number from 0; 0 removes it")
        return cls(**value)

    def by_name(self) -> dict[str, int]:
        """Returns the limits that are set, by the names in Anthropic's headers."""
        named = {known.name.removesuffix(PER_MINUTE): getattr(self, known.name) for known in fields(self)}
        return {name.replace("_", "-"): limit for name, limit in named.items() if limit}


@dataclass
class _Bucket:
    limit: int
    level: float
    at: float

    def refilled(self, now: float) -> float:
        self.level = min(self.limit, self.level + self.limit / PERIOD_SECONDS * (now - self.at))
        self.at = now
        return self.level

    def seconds_to(self, level: float) -> float:
        return max(0.0, (level - self.level) * PERIOD_SECONDS / self.limit)


@dataclass
class RateLimiter:
    """Counts the calls of all keys. `now`: monotonic seconds."""

    limits: RateLimits = field(default_factory=RateLimits)
    now: Callable[[], float] = time.monotonic
    refused: int = 0
    _buckets: OrderedDict[tuple[str, str], dict[str, _Bucket]] = field(default_factory=OrderedDict)

    def set(self, limits: RateLimits) -> None:
        """Replaces the limits, and fills all buckets."""
        self.limits, self.refused = limits, 0
        self._buckets.clear()

    def admit(self, request: HttpRequest, model: str, input_tokens: int) -> dict[str, str]:
        """Takes a request and its input. Returns the headers of the response. Raises ApiError for a refusal."""
        if not self.limits.by_name():
            return {}
        buckets = self._of(request, model)
        needs = {"requests": 1, "input-tokens": input_tokens, "output-tokens": 1, "tokens": input_tokens}
        waits = [
            bucket.seconds_to(min(needs[name], bucket.limit))
            for name, bucket in buckets.items()
            if bucket.refilled(self.now()) < min(needs[name], bucket.limit)
        ]
        if waits:
            self.refused += 1
            raise ApiError(429, None, {"retry-after": str(math.ceil(max(waits))), **_headers(buckets)})
        for name, bucket in buckets.items():
            bucket.level -= 0 if name == "output-tokens" else needs[name]
        return _headers(buckets)

    def write(self, request: HttpRequest, model: str, output_tokens: int) -> None:
        """Takes the output of a call that ended."""
        if not self.limits.by_name() or not output_tokens:
            return
        for name, bucket in self._of(request, model).items():
            if name in {"output-tokens", "tokens"}:
                bucket.refilled(self.now())
                bucket.level -= output_tokens

    def _of(self, request: HttpRequest, model: str) -> dict[str, _Bucket]:
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "")
        if (key, model) not in self._buckets:
            now = self.now()
            self._buckets[key, model] = {
                name: _Bucket(limit, limit, now) for name, limit in self.limits.by_name().items()
            }
            if len(self._buckets) > MAX_KEYS:
                self._buckets.popitem(last=False)
        return self._buckets[key, model]


def _headers(buckets: Mapping[str, _Bucket]) -> dict[str, str]:
    """Returns the headers of both vendors: each client reads its own."""
    headers: dict[str, str] = {}
    for name, bucket in buckets.items():
        remaining, seconds = max(0, int(bucket.level)), bucket.seconds_to(bucket.limit)
        full_at = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        prefix = f"anthropic-ratelimit-{name}"
        headers |= {f"{prefix}-limit": str(bucket.limit), f"{prefix}-remaining": str(remaining)}
        headers[f"{prefix}-reset"] = full_at
        if name in {"requests", "tokens"}:
            headers |= {f"x-ratelimit-limit-{name}": str(bucket.limit), f"x-ratelimit-remaining-{name}": str(remaining)}
            headers[f"x-ratelimit-reset-{name}"] = f"{int(seconds // 60)}m{seconds % 60:.3f}s"
    return headers
