"""One attempt of a model call of a control function: what its `run` reports, and the entries of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import astuple, replace
from time import monotonic
from typing import Final

from services.worker.claim_ledger import StepEntry, size_bytes
from services.worker.model_attempt import BY_MESSAGE, MIN_OUTPUT_TOKENS, billed
from services.worker.model_metrics import count_model_call
from services.worker.vendor_calls import VendorCalls
from tenure.agents.vendor_clients import sending
from tenure.control import ModelCallAnswer, ModelCallRequest, RunModelCall
from tenure.control.failures import CallFailure, ModelCallInterrupted, ModelCallLate
from tenure.control.model_calls import PromptPart
from tenure.domain import entries
from tenure.domain.budget import MAX_TOKENS, ReserveRequest, TokenUsage
from tenure.domain.compaction import window_of
from tenure.domain.control import MAX_RETRY_SECONDS, next_attempt
from tenure.domain.conversation import text_block
from tenure.domain.fold import ResumePoint
from tenure.domain.states import Reason, TaskState
from tenure.domain.texts import estimated_tokens, largest_part_text
from tenure.domain.tool_arguments import escaped
from tenure.wire.checkpoint_service import is_one_portion

_CAPS: Final = frozenset({Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT, Reason.BUDGET_REQUESTED})
MAX_ID_CHARACTERS: Final = 190
MAX_MODEL_CHARACTERS: Final = 200
MAX_BLOCK: Final = 2**31 - 1
MAX_CUT_CHARACTERS: Final = 65_536
"""As JSON at most 384 KiB, whatever the characters: it fits into a commit beside the largest result."""


class AttemptReport:
    """The report of one attempt, given to the function's `run`. What comes after the attempt's end is dropped.

    `usage`: the newest report, and an estimate for the text since then. `was_answered`: the provider began to answer.
    `about_size`: what a refusal of the request says about the size of its prompt. `vendor_calls`: sends the request of
    the attempt to the model runner; None: `run` calls the provider. `is_interrupted`: a message interrupted it.
    """

    def __init__(
        self,
        task_id: str,
        step: int,
        attempt: entries.ModelAttempt,
        timeout_seconds: float,
        show_text: Callable[[int, str], None],
        on_progress: Callable[[], None],
        about_size: str = "",
        vendor_calls: VendorCalls | None = None,
    ) -> None:
        self.step, self.reserved, self._about_size = step, attempt, about_size
        self.vendor_calls = vendor_calls
        self.request_id = ""
        self.was_answered = False
        self.seconds = 0.0
        self._task_id, self._timeout_seconds = task_id, timeout_seconds
        self._show_text, self._on_progress = show_text, on_progress
        self._reported = TokenUsage()
        self._has_text = False
        self._counted_tokens = self._unreported_bytes = 0
        self._is_over = self.is_interrupted = False
        self._limit: asyncio.Timeout | None = None

    @property
    def max_output_tokens(self) -> int:
        return self.reserved.max_output_tokens

    @property
    def attempt(self) -> str:
        return f"{self._task_id}/{self.step}/{self.reserved.attempt_number}"

    @property
    def usage(self) -> TokenUsage:
        estimated = self._counted_tokens + estimated_tokens(self._unreported_bytes)
        return replace(self._reported, output_tokens=max(self._reported.output_tokens, estimated))

    def on_text(self, block: int, text: str) -> None:
        if type(block) is not int or not 0 <= block <= MAX_BLOCK or not isinstance(text, str):
            raise ValueError(f"on_text takes the number of a block and a text, not {block!r} and {text!r}")
        if self._is_over or not text:
            return
        storable = _storable(text)
        self.was_answered = self._has_text = True
        self._unreported_bytes += len(storable.encode())
        self._show_text(block, storable)
        self._on_progress()

    def on_usage(self, usage: TokenUsage, request_id: str = "") -> None:
        if self._is_over:
            return
        self._reported = checked_usage(usage)
        if self._has_text:  # some providers state an output before it has begun
            self._counted_tokens, self._unreported_bytes = usage.output_tokens, 0
        self.was_answered = self.was_answered or usage.total > 0
        self.request_id = escaped(request_id, MAX_ID_CHARACTERS) or self.request_id
        self._on_progress()

    def with_size(self, failed: CallFailure) -> CallFailure:
        """Returns the failure; that of a large request that the provider refused names the largest part."""
        failure = failed.failure
        if failure.retryable or not self._about_size:
            return failed
        return replace(failed, failure=replace(failure, message=f"{failure.message} ({self._about_size})"))

    def interrupt(self) -> None:
        """Stops `run`, now or before it begins: `make` raises ModelCallInterrupted. Repeatable."""
        self.is_interrupted = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def make(self, run: RunModelCall) -> ModelCallAnswer:
        """Makes the attempt. Raises what `run` raises, ModelCallLate and ModelCallInterrupted, and TypeError or
        ValueError for a bad answer.
        """
        began = monotonic()
        try:
            with sending(None if self.vendor_calls is None else self.vendor_calls.send):
                answer = checked_answer(await self._within_timeout(run))
            answer = replace(answer, usage=await self._usage_of(answer))
            self.on_usage(answer.usage, answer.request_id)
            count_model_call(self.reserved.model, monotonic() - began)
            return answer
        finally:
            if self.vendor_calls is not None:
                self.vendor_calls.close()
            self._is_over = True
            self.seconds = monotonic() - began

    async def _usage_of(self, answer: ModelCallAnswer) -> TokenUsage:
        """Returns the usage to bill: as the runner read it in the response, as `run` states it, or an estimate.

        The libraries of the vendors know less: they drop counts that some servers state, and estimate none.
        """
        end = None if self.vendor_calls is None else await self.vendor_calls.answered()
        stated = answer.usage if end is None else end.usage
        if stated.total:
            return stated
        tokens = estimated_tokens(len(_storable(answer.text).encode()))
        return replace(self.usage, output_tokens=max(self.usage.output_tokens, tokens))

    async def _within_timeout(self, run: RunModelCall) -> object:
        """Returns what `run` returned. A call at a model runner has its timeout there, from the moment it is sent."""
        try:
            async with asyncio.timeout(None if self.vendor_calls is not None else self._timeout_seconds) as limit:
                self._limit = limit
                if self.is_interrupted:
                    raise ModelCallInterrupted(BY_MESSAGE)
                return await run(self)
        except TimeoutError as error:
            if not limit.expired():
                raise
            if self.is_interrupted:
                raise ModelCallInterrupted(BY_MESSAGE) from error
            message = f"the model's answer was not complete within {self._timeout_seconds:g} s"
            raise ModelCallLate(message) from error
        finally:
            self._limit = None


def check_request(request: ModelCallRequest) -> None:
    """Raises TypeError or ValueError when the request is none that can be reserved."""
    if not isinstance(request, ModelCallRequest):
        raise TypeError(f"a model call needs a ModelCallRequest, not {type(request).__name__}")
    if not isinstance(request.model, str) or not 0 < len(request.model) <= MAX_MODEL_CHARACTERS:
        raise ValueError(f"a model call needs the name of its model, of 1 to {MAX_MODEL_CHARACTERS} characters")
    if not _is_count(request.input_tokens):
        raise ValueError(f"input_tokens must be a number from 0 to {MAX_TOKENS}, not {request.input_tokens!r}")
    if not _is_count(request.max_output_tokens) or not request.max_output_tokens:
        raise ValueError(
            f"max_output_tokens must be a number from 1 to {MAX_TOKENS}, not {request.max_output_tokens!r}"
        )


def checked_answer(answer: object) -> ModelCallAnswer:
    """Returns what `run` returned. Raises TypeError or ValueError when it is not an answer."""
    if not isinstance(answer, ModelCallAnswer):
        raise TypeError(f"run must return a ModelCallAnswer, not {type(answer).__name__}")
    texts = {name: getattr(answer, name) for name in ("text", "model", "stop_reason", "request_id")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} of a ModelCallAnswer must be a text, not {type(text).__name__}")
    checked_usage(answer.usage)
    return answer


def checked_usage(usage: TokenUsage) -> TokenUsage:
    """Returns the usage. Raises TypeError or ValueError when the ledger would refuse it."""
    if not isinstance(usage, TokenUsage):
        raise TypeError(f"the usage of a model call must be a TokenUsage, not {type(usage).__name__}")
    if not all(map(_is_count, astuple(usage))):
        raise ValueError(f"the usage of a model call must have numbers from 0 to {MAX_TOKENS}: {usage}")
    return usage


def reserve_request(
    point: ResumePoint, step: int, request: ModelCallRequest, *, outlives_worker: bool = False
) -> ReserveRequest:
    """Returns the reservation of the next attempt."""
    return ReserveRequest(
        step=step,
        attempt_number=next_attempt(point, step),
        model=request.model,
        input_tokens=request.input_tokens,
        max_output_tokens=request.max_output_tokens,
        min_output_tokens=min(MIN_OUTPUT_TOKENS, request.max_output_tokens),
        outlives_worker=outlives_worker,
    )


def size_of_prompt(point: ResumePoint, request: ModelCallRequest) -> str:
    """Returns what a failure says about a prompt that fills half of the model's window; "" for a smaller one."""
    window = window_of(request.model, max_output_tokens=request.max_output_tokens)
    if request.input_tokens < window.tokens // 2:
        return ""
    size = f"the prompt has up to {request.input_tokens:,} tokens, the window of {request.model} {window.tokens:,}"
    part = request.largest_part
    return f"{size}; {largest_part_text(_named(point, part), part.size_bytes)}" if part is not None else size


def _named(point: ResumePoint, part: PromptPart) -> str:
    """Returns the name of the part, with the call whose result it is: the longest of its tool."""
    calls = [call_id for call_id, intent in point.intents.items() if intent.tool == part.tool]
    sizes = {call_id: len(point.outcomes[call_id].content) for call_id in calls if call_id in point.outcomes}
    return f"{part.name}, call {max(sizes, key=sizes.__getitem__)}" if sizes else part.name


def after_denial(point: ResumePoint, request: ModelCallRequest, ended: entries.Transition) -> entries.Transition:
    """Returns the transition after a denied reservation. No grant helps a prompt that cannot fit the model's window."""
    window = window_of(request.model, max_output_tokens=request.max_output_tokens)
    if ended.reason not in _CAPS or request.input_tokens < 2 * window.tokens:  # the count is an upper bound
        return ended
    why = f"the conversation does not fit the model's context window: {size_of_prompt(point, request)}"
    return entries.Transition(TaskState.FAILED, Reason.CONTEXT_WINDOW_EXCEEDED, why, point.last_text)


def answer_entries(report: AttemptReport, answer: ModelCallAnswer, recorded: entries.ControlStep) -> list[StepEntry]:
    """Returns the answer, which settles the attempt, and the step with its result, for one commit.

    A text that does not fit into the commit is cut: it is for people, and the result is whole.
    """
    message = _message(report, answer)
    step_entry: StepEntry = (report.step, recorded)
    if not is_one_portion([(report.step, message), step_entry], size_bytes):
        message = _message(report, replace(answer, text=answer.text[:MAX_CUT_CHARACTERS]))
    return [(report.step, message), step_entry]


def _message(report: AttemptReport, answer: ModelCallAnswer) -> entries.AssistantMessage:
    usage = billed(report.reserved, answer.usage)
    text = _storable(answer.text)
    return entries.AssistantMessage(
        attempt_number=report.reserved.attempt_number,
        content=(text_block(text),) if text else (),
        stop_reason=escaped(answer.stop_reason, MAX_ID_CHARACTERS),
        usage=usage,
        model=escaped(answer.model, MAX_MODEL_CHARACTERS),
        provider_request_id=escaped(answer.request_id, MAX_ID_CHARACTERS),
        latency_seconds=report.seconds,
        usage_estimated=usage != answer.usage,
    )


def failure_entry(report: AttemptReport, failed: CallFailure) -> entries.ModelFailure:
    """Returns the failure of an attempt. A call that the provider began to answer is billed for its input at least."""
    failure, after = failed.failure, failed.failure.retry_after_seconds
    return entries.ModelFailure(
        attempt_number=report.reserved.attempt_number,
        error_class=failure.error_class,
        message=failure.message,
        retryable=failure.retryable,
        status_code=failed.status_code,
        retry_after_seconds=None if after is None else min(after, MAX_RETRY_SECONDS),
        usage=billed(report.reserved, report.usage) if report.was_answered else report.usage,
        provider_request_id=report.request_id,
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def _storable(text: str) -> str:
    """Returns the text without halves of surrogate pairs, which cannot be sent."""
    return text.encode("utf-8", "replace").decode()
