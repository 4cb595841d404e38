"""The sessions attached to this replica, and those that were until a moment ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from tenure.runtime import metrics

if TYPE_CHECKING:
    from services.coordinator.session import Session

_MOST_DEPARTED: Final = 1000


class Sessions:
    """By session_id; at most one attachment each, the newest. Iterating gives those attached now."""

    def __init__(self) -> None:
        self._attached: dict[str, Session] = {}
        # What was heard of their progress is needed once their claims are gone, which is after their streams are.
        self._departed: OrderedDict[str, Session] = OrderedDict()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._attached.values()))

    def __len__(self) -> int:
        return len(self._attached)

    def get(self, session_id: str) -> Session | None:
        """The session, if it is attached here."""
        return self._attached.get(session_id)

    def last_known(self, session_id: str) -> Session | None:
        """The session, if it is attached here or was lately."""
        return self._attached.get(session_id) or self._departed.get(session_id)

    def holders_of(self, task_ids: Collection[str]) -> list[tuple[str, Session]]:
        """Those of the tasks that are held by attached sessions. One look for all of them: thousands may be held."""
        if not task_ids:
            return []
        return [
            (claim.held.task_id, session)
            for session in self._attached.values()
            for claim in session.claims.values()
            if claim.held.task_id in task_ids
        ]

    def attach(self, session: Session) -> None:
        """Take a session in. A former attachment of it ends, and what it ends is its stream only."""
        former = self._attached.get(session.session_id)
        self._attached[session.session_id] = session
        self._departed.pop(session.session_id, None)
        metrics.gauge("tenure_sessions", len(self._attached))
        if former is not None:
            former.end(None)

    def detach(self, session: Session) -> None:
        """Its stream is over."""
        session.end(None)
        if self._attached.get(session.session_id) is not session:
            return
        del self._attached[session.session_id]
        self._departed[session.session_id] = session
        if len(self._departed) > _MOST_DEPARTED:
            self._departed.popitem(last=False)
        metrics.gauge("tenure_sessions", len(self._attached))
