"""Reads the rate limits that a response of a provider states in its headers. What cannot be read counts as not stated.

Anthropic states what is left and the time at which a limit is full again, OpenAI the time until then:

    anthropic-ratelimit-input-tokens-limit: 50000       x-ratelimit-limit-tokens: 150000
    anthropic-ratelimit-input-tokens-remaining: 41000   x-ratelimit-remaining-tokens: 149984
    anthropic-ratelimit-input-tokens-reset: 2026-11-25T22:45:10Z   x-ratelimit-reset-tokens: 6m0s
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from tenure.domain.rate_limits import LimitKind, StatedLimit

_ANTHROPIC: Final = {
    LimitKind.REQUESTS: "requests",
    LimitKind.INPUT_TOKENS: "input-tokens",
    LimitKind.OUTPUT_TOKENS: "output-tokens",
}
_ANTHROPIC_TOTAL: Final = "tokens"
"""Stated beside the limits of input and of output, and as one of them: it is read where it stands alone."""
_OPENAI: Final = {LimitKind.REQUESTS: "requests", LimitKind.TOKENS: "tokens"}

_MAX_CHARACTERS: Final = 40
_COUNT: Final = re.compile(r"[0-9]{1,15}\Z")
_DURATION: Final = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?\Z", re.ASCII
)
_SECONDS_OF_PARTS: Final = (86_400.0, 3600.0, 60.0, 1.0, 0.001)


def stated_limits(headers: Mapping[str, str], now: datetime | None = None) -> dict[LimitKind, StatedLimit]:
    """Returns the limits that a response states. `now`: this machine's time; the provider's own date counts more."""
    now = _http_date(headers.get("date", "")) or now or datetime.now(UTC)
    stated = {kind: _of_anthropic(headers, name, now) for kind, name in _ANTHROPIC.items()}
    if not stated[LimitKind.INPUT_TOKENS] and not stated[LimitKind.OUTPUT_TOKENS]:
        stated[LimitKind.TOKENS] = _of_anthropic(headers, _ANTHROPIC_TOTAL, now)
    for kind, name in _OPENAI.items():
        stated[kind] = stated.get(kind) or _of_openai(headers, name)
    return {kind: limit for kind, limit in stated.items() if limit is not None and limit.is_possible()}


def _of_anthropic(headers: Mapping[str, str], name: str, now: datetime) -> StatedLimit | None:
    prefix = f"anthropic-ratelimit-{name}"
    reset = _moment(headers.get(f"{prefix}-reset", ""))
    seconds = None if reset is None else max(0.0, (reset - now).total_seconds())
    return _stated(headers.get(f"{prefix}-limit", ""), headers.get(f"{prefix}-remaining", ""), seconds)


def _of_openai(headers: Mapping[str, str], name: str) -> StatedLimit | None:
    seconds = _duration_seconds(headers.get(f"x-ratelimit-reset-{name}", ""))
    return _stated(
        headers.get(f"x-ratelimit-limit-{name}", ""), headers.get(f"x-ratelimit-remaining-{name}", ""), seconds
    )


def _stated(limit: str, remaining: str, reset_seconds: float | None) -> StatedLimit | None:
    if not _COUNT.match(limit) or not _COUNT.match(remaining):
        return None
    return StatedLimit(int(limit), int(remaining), reset_seconds)


def _duration_seconds(text: str) -> float | None:
    """Parses a duration as Go writes it: 17ms, 1s, 6m0s, 1h2m3.5s."""
    match = _DURATION.match(text[:_MAX_CHARACTERS])
    if match is None or not match[0]:
        return None
    return sum(float(part) * scale for part, scale in zip(match.groups(), _SECONDS_OF_PARTS, strict=True) if part)


def _moment(text: str) -> datetime | None:
    """Parses a time of RFC 3339. One without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text[:_MAX_CHARACTERS])
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _http_date(text: str) -> datetime | None:
    """Parses an HTTP date. A date without a zone is UTC, as all HTTP dates are."""
    try:
        moment = parsedate_to_datetime(text[:_MAX_CHARACTERS])
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
