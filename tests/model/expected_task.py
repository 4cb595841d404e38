"""What one task must come to, by the rules of tenure/domain alone: no database, no service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenure.domain.admission import CommitVerdict, FenceRow, OpenVerdict, decide_commit, decide_open
from tenure.domain.budget import Budget
from tenure.domain.close_out import PendingEnding, follow_up, refuse_early_end
from tenure.domain.entries import Requeue
from tenure.domain.errors import TenureError, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.requeue import decide_requeue
from tenure.domain.states import TERMINAL, WAITING, TaskState, check_transition

NOBODY = Fence(0, "")


@dataclass
class Expected:
    """Each method is something that is tried: it changes the expectation, or raises what the caller must hear."""

    task_id: str
    state: TaskState = TaskState.QUEUED
    attempt: int = 1
    opened: Fence = NOBODY
    holds: bool = False
    commits: int = 0
    calls: tuple[str, ...] = ()
    waiting_call: str = ""
    ending: PendingEnding | None = None
    claims: list[Any] = field(default_factory=list)

    def fence(self, granted: Any = NOBODY) -> Any:
        return FenceRow(self.state, self.opened, self.holds, granted, self.commits, "", b"")

    def open(self, claims: Any, granted: Any) -> None:
        if decide_open(self.fence(granted), claims.fence) is OpenVerdict.AGAIN:
            return
        if self.state is TaskState.RUNNING:
            self._move(TaskState.QUEUED)
        self._move(TaskState.RUNNING)
        self.opened, self.commits = claims.fence, 0

    def commit(self, claims: Any, number: Any, *, to: Any = None, opens: str = "") -> None:
        verdict = decide_commit(self.fence(), claims.fence, number, "new", b"new")
        if verdict is not CommitVerdict.APPLY:
            assert isinstance(verdict, Exception), "a new commit was never answered before"
            raise verdict
        calls = (*self.calls, opens) if opens else self.calls
        if to is not None and (refusal := refuse_early_end(to, calls)):
            raise refusal
        self.commits, self.calls = number, calls
        if to is not None:
            self._move(self.ending.to_state if self.ending and to in TERMINAL else to)
            self.waiting_call = opens
            self._carry_out_ending()

    def ask_end(self, ending: Any) -> None:
        if self.state in TERMINAL:
            raise WrongState("it has ended")
        self.ending = ending
        self._carry_out_ending()

    def cancel(self, ending: Any) -> None:
        """Once is enough."""
        if TaskState.CANCELLED not in {self.state, self.ending and self.ending.to_state}:
            self.ask_end(ending)

    def answer(self, state: Any) -> None:
        """What a task waits for in this state has come."""
        if self.state is not state or not self.waiting_call:
            raise WrongState("it does not wait for that")
        self._close_waiting_call()
        self._move(TaskState.QUEUED)

    def requeue(self) -> None:
        verdict = decide_requeue(self.state, [Budget(10, 0, 0)], 0, 10, Requeue())
        if isinstance(verdict, TenureError):
            assert isinstance(verdict, Exception), "a new commit was never answered before"
            raise verdict
        if verdict.begins_attempt:
            self.attempt, self.ending = self.attempt + 1, None
        self._move(TaskState.QUEUED, begins_attempt=verdict.begins_attempt)
        self._carry_out_ending()

    def lose(self, claims: Any) -> bool:
        """Whether this was heard."""
        if not self.holds or claims.fence != self.opened:
            return False
        self._move(TaskState.QUEUED)
        self._carry_out_ending()
        return True

    def retry(self) -> None:
        if self.state is TaskState.RETRY_SCHEDULED:
            self._move(TaskState.QUEUED)

    def time_out(self, ending: Any) -> None:
        if self.state not in TERMINAL | {TaskState.WAITING_USER} and self.ending is None:
            self.ask_end(ending)

    def expire_wait(self, ending: Any) -> None:
        if self.waiting_call:
            self._close_waiting_call()
            self.ask_end(ending)

    def move_by_hand(self, target: Any, opened: Any) -> None:
        """Raises WrongState. Otherwise only what the row says changes."""
        begins_attempt = self.state in TERMINAL
        check_transition(self.state, target, begins_attempt=begins_attempt)
        if refusal := refuse_early_end(target, self.calls):
            raise refusal
        self.attempt += begins_attempt
        self.state, self.holds, self.waiting_call = target, target is TaskState.RUNNING, ""
        if self.holds:
            self.opened = opened

    def _move(self, target: Any, *, begins_attempt: bool = False) -> None:
        check_transition(self.state, target, begins_attempt=begins_attempt)
        self.state, self.holds, self.waiting_call = target, target is TaskState.RUNNING, ""

    def _close_waiting_call(self) -> None:
        self.calls = tuple(call for call in self.calls if call != self.waiting_call)
        self.waiting_call = ""

    def _carry_out_ending(self) -> None:
        if self.state in WAITING and self.ending is not None:
            self._close_waiting_call()
        while (target := follow_up(self.state, self.ending, has_open_calls=bool(self.calls))) is not None:
            self._move(target)
