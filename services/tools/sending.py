"""Sends a call to the system that brings about its effect, and repeats it only where a repeat is harmless.

After a failure one question decides: may the other side have begun? A call that was not sent may be sent again,
whatever its effect class. After it was sent, only a call that may run again is repeated, with the same idempotency key.
Once an answer was lost, only an answer about the call itself counts, not one about a single sending: otherwise the end
of the call is unknown (ToolInDoubt), and the runner settles it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import httpcore2

from services.tools.tool import (
    CallContext,
    NothingDone,
    RunnerStopped,
    ToolAnswer,
    ToolFailure,
    ToolInDoubt,
    nothing_done,
)
from tenure.domain.retry import RetryPolicy
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.http.body_decoder import BadEncoding
from tenure.runtime.http.name_lookups import Unresolved
from tenure.runtime.http.outbound_http import AddressRefused

# What an HTTP status says about a request that must not happen twice. All tools that use HTTP share this rule.

_SAME_REQUEST_REDIRECTS: Final = frozenset((307, 308))
"""Redirects that ask for the same request at another address: the server did not carry it out. A 303 says it did."""

_REQUEST_TIMEOUTS: Final = frozenset((408, 499))
"""By definition the request did not arrive completely; but proxies also send these when they gave up on a server."""

_NOT_SUPPORTED: Final = frozenset((501, 505))


def leaves_open(status: int) -> bool:
    """Whether a final HTTP status leaves open if the request was carried out, or will be."""
    if 200 <= status < 300 or status in _SAME_REQUEST_REDIRECTS or status in _NOT_SUPPORTED:
        return False
    return status in _REQUEST_TIMEOUTS or not 400 <= status < 500


def proves_no_effect(status: int) -> bool:
    """Whether a final HTTP status says that the request was not carried out."""
    return not 200 <= status < 300 and not leaves_open(status)


# Failures of outbound requests, as answers that the model reads.


def failure_answer(error: Exception, who: str, timeout_seconds: float) -> ToolFailure:
    """Returns the answer for an exception of an outbound request. `who` begins the sentence: "The search service"."""
    match error:
        case AddressRefused():
            return ToolFailure(f"{who} is at a {error.kind} address: nothing was sent to it.", "ADDRESS_REFUSED")
        case Unresolved():
            return ToolFailure(f"{who} cannot be found: its name has no address.", "UNRESOLVED")
        case TimeoutError() | httpcore2.TimeoutException():
            return ToolFailure(f"{who} did not answer within {timeout_seconds:g} s.", "TIMEOUT")
        case BadEncoding():
            return ToolFailure(f"{who} cannot be read: {error}.", "ENCODING_REFUSED")
        case httpcore2.ProtocolError():
            return ToolFailure(f"{who} sent an answer that is not valid HTTP.", "BAD_ANSWER")
        case httpcore2.ConnectError():
            return _not_connected(error, who)
    message = f"{who} was sent the request, but the connection was lost before the whole answer arrived."
    return ToolFailure(message, "CONNECTION_LOST")


def _not_connected(error: httpcore2.ConnectError, who: str) -> ToolFailure:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or "TLS failed"
            return ToolFailure(f"{who} cannot be trusted: {reason}. Nothing was sent to it.", "TLS_FAILED")
    return ToolFailure(f"{who} cannot be reached.", "UNREACHABLE")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
"""The pauses between send attempts. `max_attempts` counts lost answers: a call that crashes its receiver ends there."""

TELLING_SECONDS: Final = 2.0
"""The extra time after a call's timeout in which a tool can report how the call ended."""

TIMEOUT: Final = "TIMEOUT"
STALE_EPOCH: Final = "STALE_EPOCH"
UNREACHABLE: Final = "UNREACHABLE"
_EARLIER: Final = " The call was sent before, and that answer was lost."


class NotSentError(Exception):
    """The other side did not get the call. The message is a clause for the model."""


class AnswerLostError(Exception):
    """The call was sent, and its effect is not known.

    `again`: a repeat may bring the answer. `what`: a clause that says what happened to the answer.
    """

    def __init__(self, clause: str, *, again: bool = True, what: str = "its answer was lost") -> None:
        super().__init__(clause)
        self.again, self.what = again, what


class AskedToWaitError(Exception):
    """The other side asks for a repeat after `after_seconds`. `answer`: used without a repeat.

    `is_open`: it may have carried the call out all the same.
    """

    def __init__(self, answer: ToolAnswer, after_seconds: float, *, is_open: bool = False) -> None:
        super().__init__(answer.content)
        self.answer, self.after_seconds, self.is_open = answer, after_seconds, is_open


@dataclass(slots=True)
class SendAttempt:
    """One attempt to send the call: its deadline, and whether the call was sent.

    The sender calls `go_out` immediately before it sends. `ends_at`: in the event loop's time.
    """

    ends_at: float
    check_may_begin: Callable[[bool], None]
    sent_before: bool = False
    is_out: bool = False

    def go_out(self) -> None:
        """Records that the other side may get the call from here on.

        Raises NeverBegan or RunnerStopped when the call must not be sent; the sender passes that on.
        """
        self.check_may_begin(self.sent_before)
        self.is_out = True

    @property
    def left_seconds(self) -> float:
        return max(0.0, self.ends_at - _now())


Send = Callable[[SendAttempt], Awaitable[ToolAnswer]]
"""Raises NotSentError, AnswerLostError and AskedToWaitError."""


class CallDelivery:
    """Sends one call until there is an answer, within the call's timeout.

    `connect_seconds`: how long an unreachable other side is tried again.
    """

    def __init__(self, who: str, effect_class: EffectClass, context: CallContext, connect_seconds: float) -> None:
        self._who, self._effect_class = who, effect_class
        self._timeout_seconds = context.timeout_seconds
        self._ends_at = _now() + context.timeout_seconds
        self._reached_until = min(self._ends_at, _now() + connect_seconds)
        self._mark_not_sent, self._check_may_begin = context.mark_not_sent, context.check_may_begin
        self._sent_before = context.sent_before
        self._failures = self._lost = 0
        self._sending = self._next_sending()
        self._was_refused = False

    async def carry_out(self, send: Send) -> ToolAnswer:
        """Returns the answer. Raises ToolFailure, and ToolInDoubt when the end of the call is unknown."""
        try:
            async with asyncio.timeout_at(self._ends_at):
                answer = await self._answered(send)
        except TimeoutError:
            return self._out_of_time()
        except BaseException as error:
            if self._is_open and isinstance(error, ToolFailure):
                raise ToolInDoubt(error.message + _EARLIER, detail=error.detail) from error
            if not (self._may_have_begun or self._was_refused):
                self._mark_not_sent()
            raise
        if self._is_open and answer.leaves_earlier_open:
            raise ToolInDoubt(answer.content + _EARLIER, detail=answer.detail)
        return replace(answer, no_effect=False) if self._is_open else answer

    async def _answered(self, send: Send) -> ToolAnswer:
        while True:
            self._sending = self._next_sending()
            try:
                return await send(self._sending)
            except NotSentError as error:
                wait_seconds = self._after_unsent(error)
            except AnswerLostError as error:
                wait_seconds = self._after_loss(error)
            except (ToolFailure, ToolInDoubt, RunnerStopped):
                raise
            except AskedToWaitError as error:
                self._was_refused = True
                self._lost += error.is_open
                wait_seconds = max(self._next_wait_seconds(), error.after_seconds)
                if not self._effect_class.may_run_again or _now() + wait_seconds >= self._ends_at:
                    return replace(error.answer, leaves_earlier_open=True)
            except Exception as error:
                if not self._may_have_begun:
                    raise
                _log.exception("the answer to a call could not be processed")
                wait_seconds = self._after_loss(AnswerLostError(type(error).__name__, again=False))
            self._sending.is_out = False
            await asyncio.sleep(wait_seconds)

    def _next_sending(self) -> SendAttempt:
        return SendAttempt(self._ends_at, self._check_may_begin, sent_before=self._is_open)

    @property
    def _is_open(self) -> bool:
        """Whether an earlier sending may have been carried out."""
        return self._lost > 0 or self._sent_before

    @property
    def _may_have_begun(self) -> bool:
        """Whether the other side may have got the call and has not refused it."""
        return self._sending.is_out or self._is_open

    def _after_unsent(self, error: NotSentError) -> float:
        """Returns the pause before the next attempt. A call with a lost answer is tried until its timeout."""
        wait_seconds = self._next_wait_seconds()
        if self._lost or _now() + wait_seconds < self._reached_until:
            return wait_seconds
        raise NothingDone(f"{self._who} cannot be reached: {error}.", UNREACHABLE) from error

    def _after_loss(self, error: AnswerLostError) -> float:
        self._lost += 1
        harmless = self._effect_class.may_run_again and error.again
        if not harmless or self._lost >= AGAIN.max_attempts:
            raise ToolInDoubt(f"{self._who} was sent the call, and {error.what}: {error}.") from error
        return self._next_wait_seconds()

    def _next_wait_seconds(self) -> float:
        self._failures += 1
        return AGAIN.wait_seconds(self._failures, random.random())

    def _out_of_time(self) -> ToolAnswer:
        """Returns the answer for a call that was not sent in time. Raises ToolInDoubt for one that was sent."""
        text = f"{self._who} gave no answer within {self._timeout_seconds:g} s"
        if not self._may_have_begun:
            return nothing_done(f"{text}: the call was not sent.", UNREACHABLE, OutcomeStatus.TIMED_OUT)
        raise no_answer_in_time(self._who, self._timeout_seconds)


def no_answer_in_time(who: str, timeout_seconds: float) -> ToolInDoubt:
    """Returns the error of a sent call that timed out."""
    message = f"{who} gave no answer within {timeout_seconds:g} s, and was asked to stop."
    return ToolInDoubt(message, OutcomeStatus.TIMED_OUT, TIMEOUT)


def stale(who: str, text: str = "") -> ToolAnswer:
    """Returns the answer for a provider that fences its own writes and has seen a newer claim of the task."""
    return nothing_done(f"{who} refused the call: it has seen a newer claim of this task.", STALE_EPOCH, said=text)


def _now() -> float:
    return asyncio.get_running_loop().time()
