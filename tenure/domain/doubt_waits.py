"""Whether a task that waits for a word on calls in doubt still has to: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tenure.domain.tools import CallState

if TYPE_CHECKING:
    from tenure.domain.in_doubt import CallInDoubt


class CallStanding(NamedTuple):
    """A call as the tools have it."""

    state: CallState
    call_attempt: int


def nothing_in_doubt(waited_for: Sequence[CallInDoubt], standings: Mapping[str, CallStanding]) -> bool:
    """Whether the tools know by now what became of each of these: its outcome came late, its effect turned out never to
    have begun, or another attempt of it is in doubt. A call that they know nothing of says nothing.
    """
    return bool(waited_for) and all(_is_known(call, standings.get(call.call_id)) for call in waited_for)


def _is_known(call: CallInDoubt, standing: CallStanding | None) -> bool:
    if standing is None:
        return False
    if standing.state is CallState.IN_DOUBT:
        return standing.call_attempt > call.call_attempt > 0
    return standing.state in {CallState.FINISHED, CallState.NOT_RUN}
