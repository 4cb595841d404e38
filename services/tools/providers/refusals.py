"""What the status that a provider's call ended with says of what was done: see ToolProviderService.CallTool."""

from __future__ import annotations

from typing import Final

import grpc

from services.tools.schemas import shortened
from services.tools.sending import AnswerLostError, AskedToWaitError, stale
from services.tools.tool import ToolAnswer
from tenure.domain.errors import Fenced, LimitReached, Refused, TenureError, TryLater
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.status import OUTCOME_UNKNOWN, PeerFailed

TOO_LARGE: Final = "MESSAGE_TOO_LARGE"


def read_refusal(who: str, error: TenureError | PeerFailed) -> ToolAnswer:
    """The answer, where it is one. Raises AnswerLostError where it leaves open what was done, AskedToWaitError where it
    asks for patience.
    """
    said = shortened(error.message)
    if isinstance(error, PeerFailed):
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            return _refused(who, said, error.code.name)
        raise AnswerLostError(f"it failed with {error.code.name} ({said})", again=False) from error
    if error.metadata.items() >= OUTCOME_UNKNOWN.items():
        raise AnswerLostError(said) from error
    if error.reason == TOO_LARGE:
        raise AnswerLostError(f"a message is too large ({said})", again=False) from error
    if isinstance(error, Fenced):
        return stale(who, said)
    answer = _refused(who, said, error.reason)
    if isinstance(error, TryLater) and error.retry_after_seconds is not None:
        raise AskedToWaitError(answer, error.retry_after_seconds) from error
    assert isinstance(error, Refused | LimitReached | TryLater)
    return answer


def _refused(who: str, said: str, reason: str) -> ToolAnswer:
    return ToolAnswer(f"{who} refused the call, nothing was done: {said}", OutcomeStatus.FAILED, reason)
