"""Chooses the endpoint of a provider for a call, and decides which failures move a call to the next endpoint.

A call moves only while no provider can have billed it: the provider refused it before any byte of an answer, or no
connection was made. A call that was answered and broke, and one whose connection broke after it was sent, fails.

Each endpoint has a circuit for each model. It opens after three failures in a row, so that calls no longer meet them;
after a pause one call tries the endpoint again for all, and its success closes the circuit. The pause doubles with each
failure, to a limit. A call that finds all circuits open fails at once, without a request, and is tried again later.

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

from tenure.domain.retry import ACCOUNT_FAULTS, FailureClass

KEPT_SECONDS: Final = 300.0
"""How long a provider keeps a prompt in its cache after the last use."""
FAILURES_TO_OPEN: Final = 3
FIRST_PAUSE_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 300.0
_MAX_TASKS: Final = 100_000
_MAX_DOUBLINGS: Final = 16

REFUSALS: Final = frozenset({FailureClass.OVERLOADED, FailureClass.SERVER_ERROR, FailureClass.RATE_LIMITED})
"""The classes with which a provider refuses a call that another endpoint may accept."""
_FAULTS: Final = ACCOUNT_FAULTS | {
    FailureClass.OVERLOADED, FailureClass.SERVER_ERROR, FailureClass.CONNECTION, FailureClass.TIMEOUT,
}  # fmt: skip
"""The classes that are faults of the endpoint or of its account. A rate limit is none: the limiter waits for it."""
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
    """Whether calls go to one endpoint. `now`: monotonic seconds. `fault`: the class of the newest failure."""

    fault: FailureClass = FailureClass.CONNECTION
    _failures: int = 0
    _paused_until: float = -math.inf
    _is_tried: bool = False

    def wait_seconds(self, now: float) -> float:
        """Returns how long until a call may go; 0: now; infinite: until the call that tries it is answered."""
        if not self.is_open:
            return 0.0
        if now < self._paused_until:
            return self._paused_until - now
        return math.inf if self._is_tried else 0.0

    @property
    def is_open(self) -> bool:
        """Whether the endpoint failed too often since its last success."""
        return self._failures >= FAILURES_TO_OPEN

    def begin(self, now: float) -> bool:
        """Records that a call is sent. Returns whether it tries an endpoint whose circuit is open."""
        if self.wait_seconds(now) or not self.is_open:
            return False
        self._is_tried = True
        return True

    def end(self, now: float, error_class: FailureClass | None, *, is_try: bool) -> None:
        """Takes what became of a call. None: the endpoint accepted it."""
        if is_try:
            self._is_tried = False
        if error_class is not None and error_class in _FAULTS:
            if self.is_open and not is_try:
                return  # of a call that was sent before: one outage is one pause, however many calls it met
            self._failures, self.fault = self._failures + 1, error_class
            doublings = min(max(0, self._failures - FAILURES_TO_OPEN), _MAX_DOUBLINGS)
            self._paused_until = now + min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)
        elif error_class is not FailureClass.INTERRUPTED:  # which says nothing about the endpoint
            self._failures = 0


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
