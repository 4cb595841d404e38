"""Chooses the endpoint of a provider for a call, and decides which failures move a call to the next endpoint.

A call moves only while no provider can have billed it: the provider refused it before any byte of an answer, or no
connection was made. A call that was answered and broke, and one whose connection broke after it was sent, fails.

Each endpoint has a circuit for each model. It opens when calls of three tasks failed in a row, so that calls no longer
meet them; after a pause one call tries the endpoint again for all, and its success closes the circuit. The pause
doubles with each failed try, to a limit. A call that finds all circuits open fails at once, without a request, and is
tried again later.

Endpoints of the same rank share the tasks: each task prefers one of them, which follows from its id, so that all of its
calls meet the same prompt cache. After a task was answered elsewhere it stays there while its prompt is cached.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from tenure.domain.retry import FailureClass

KEPT_SECONDS: Final = 300.0
"""How long a provider keeps a prompt in its cache after the last use."""
FAILURES_TO_OPEN: Final = 3
FIRST_PAUSE_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 300.0
_MAX_TASKS: Final = 100_000
_MAX_DOUBLINGS: Final = 16
_MAX_FAILED: Final = 64

REFUSALS: Final = frozenset({FailureClass.OVERLOADED, FailureClass.SERVER_ERROR, FailureClass.RATE_LIMITED})
"""The classes with which a provider refuses a call that another endpoint may accept."""
_FAULTS: Final = frozenset(
    {
        *(FailureClass.OVERLOADED, FailureClass.SERVER_ERROR, FailureClass.CONNECTION),
        *(FailureClass.TIMEOUT, FailureClass.SILENT),
        *(FailureClass.AUTHENTICATION, FailureClass.BILLING),
    }
)
"""The classes that are faults of the endpoint, its key or its account. A rate limit is none: the limiter waits for it.
Nor is PERMISSION, which some providers say of a prompt.
"""
TRY_SECONDS: Final = 5.0
"""When a call asks again whether the call that tries an endpoint was answered."""


_OF_GATEWAYS: Final = frozenset({502, *range(520, 528)})
"""The statuses of a gateway that lost the provider's answer. The provider may have taken the call, and bill it."""


def may_move(error_class: FailureClass, status_code: int, *, was_sent: bool, was_taken: bool) -> bool:
    """Whether a call that failed may go to another endpoint. `was_taken`: the provider accepted it."""
    is_refused = error_class in REFUSALS and status_code not in _OF_GATEWAYS
    return not was_taken and (is_refused or not was_sent)


@dataclass(slots=True)
class Circuit:
    """Whether calls go to one endpoint. `now`: monotonic seconds. `fault`: the class of the newest failure.

    It counts the tasks whose calls failed since the last success: one prompt may be at fault for all of its own
    failures. In the same way the failures of one tenant keep out that tenant only.
    """

    fault: FailureClass = FailureClass.CONNECTION
    _failed: dict[str, str] = field(default_factory=dict)
    _failed_tries: int = 0
    _paused_until: float = -math.inf
    _is_tried: bool = False

    def wait_seconds(self, now: float, tenant: str) -> float:
        """Returns how long until a call of the tenant may go.

        0: now; infinite: until the call that tries the endpoint is answered.
        """
        if not self._is_open_to(tenant):
            return 0.0
        if now < self._paused_until:
            return self._paused_until - now
        return math.inf if self._is_tried else 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls of enough tasks failed since the last success."""
        return len(self._failed) >= FAILURES_TO_OPEN

    def _is_open_to(self, tenant: str) -> bool:
        tenants = set(self._failed.values())
        return self.is_open and (tenant in tenants or len(tenants) > 1)

    def begin(self, now: float, tenant: str) -> bool:
        """Records that a call is admitted. Returns whether it tries an endpoint whose circuit is open."""
        if not self._is_open_to(tenant) or self.wait_seconds(now, tenant):
            return False
        self._is_tried = True
        return True

    def end(
        self, now: float, error_class: FailureClass | None, *, task_id: str, tenant: str, is_try: bool = False
    ) -> None:
        """Takes what became of a call. None: the endpoint accepted it."""
        if is_try:
            self._is_tried = False
        if error_class is None or error_class not in _FAULTS:
            if error_class is not FailureClass.INTERRUPTED:  # which says nothing about the endpoint
                self._failed.clear()
                self._failed_tries = 0
            return
        was_open, self.fault = self.is_open, error_class
        if len(self._failed) < _MAX_FAILED:
            self._failed[task_id] = tenant
        self._failed_tries += is_try
        if is_try or (self.is_open and not was_open):  # a call that was sent before belongs to the same outage
            doublings = min(self._failed_tries, _MAX_DOUBLINGS)
            self._paused_until = now + min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)


class RankedEndpoint(NamedTuple):
    """An endpoint. Those of a lower rank are preferred."""

    rank: int
    name: str


def preferred_order(task_id: str, endpoints: Iterable[RankedEndpoint]) -> list[str]:
    """Returns the names in the order in which a task prefers them: by rank, and within a rank by a hash of both.

    So a new endpoint takes only its own share of the tasks of its rank, and every process computes the same order.
    """
    ordered = sorted(endpoints, key=lambda endpoint: (endpoint.rank, _hash(task_id, endpoint)))
    return [endpoint.name for endpoint in ordered]


def _hash(task_id: str, endpoint: RankedEndpoint) -> bytes:
    return blake2b(f"{task_id}/{endpoint.name}".encode(), digest_size=8).digest()


@dataclass(slots=True)
class WarmCaches:
    """The endpoints at which prompts of tasks are cached. Only those of the last five minutes, and a bounded number."""

    _by_task: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)

    def order(self, now: float, task_id: str, preferred: list[str]) -> list[str]:
        """Returns the order with the endpoint first that has the task's prompt."""
        name, until = self._by_task.get(task_id, ("", 0.0))
        if now >= until or name not in preferred:
            return preferred
        return [name, *(other for other in preferred if other != name)]

    def keep(self, now: float, task_id: str, name: str) -> None:
        """Remembers which endpoint answered a task."""
        self._by_task[task_id] = name, now + KEPT_SECONDS
        self._by_task.move_to_end(task_id)
        while self._by_task and (len(self._by_task) > _MAX_TASKS or self._oldest_until() <= now):
            self._by_task.popitem(last=False)

    def _oldest_until(self) -> float:
        return next(iter(self._by_task.values()))[1]
