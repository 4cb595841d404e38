"""Defines what a control function gives to `Work.call_model`, and what it gets: the request, the report, the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tenure.domain.budget import TokenUsage
from tenure.domain.tools import ToolDefinition


@dataclass(frozen=True, kw_only=True)
class PromptPart:
    """A part of a prompt. `name`: for people. `tool`: the tool whose result it is; "": it is another part."""

    name: str
    size_bytes: int
    tool: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelCallRequest:
    """The model of a call and the tokens to reserve for it.

    `model`: as in `agent.model`, with the prefix `openai/` for OpenAI-compatible providers; the ledger prices the call
    by it. `input_tokens`: an upper bound of the prompt. `max_output_tokens`: the most that the call may produce.
    `largest_part`: of the prompt, for the failure that says that it is too long. `outlives_worker`: `run` makes its
    request with a client that `by_runner` has prepared, so that the call goes on without this worker (docs/control.md).
    `tools`: those that the model is offered, as `OwnTool.shown`: people see them in the ledger. `follows_replay`:
    `model` is the `Work.replay_model` of a replay, which then makes the call. `interruptible`: an interrupting message
    stops the call, whose step then fails with the class of tenure.domain.control.INTERRUPTED; the code reads the
    message by `new_messages` and makes the call again.
    """

    model: str
    input_tokens: int
    max_output_tokens: int
    largest_part: PromptPart | None = None
    outlives_worker: bool = False
    tools: tuple[ToolDefinition, ...] = ()
    follows_replay: bool = False
    interruptible: bool = False


@dataclass(frozen=True, slots=True)
class VendorRequest:
    """A request as the library of a vendor wrote it. `path`: below the base URL, with the query; `beta`: the header."""

    path: str
    beta: str
    body: bytes


class VendorResponse(Protocol):
    """A successful response to a vendor's request, which may still arrive."""

    @property
    def content_type(self) -> str:
        """The header of the response."""

    @property
    def request_id(self) -> str:
        """The vendor's id of the request; empty: none."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives. Raises VendorCallFailed if the call fails before its end."""


class VendorCallFailed(Exception):  # noqa: N818  an outcome, not an error of this program
    """The model runner has no response. `status_code` 0: the provider sent none."""

    def __init__(self, message: str, *, status_code: int, retryable: bool, retry_after_seconds: float | None) -> None:
        super().__init__(message)
        self.status_code, self.retryable, self.retry_after_seconds = status_code, retryable, retry_after_seconds


SendVendorRequest = Callable[[VendorRequest], Awaitable[VendorResponse]]
"""Sends a request by a model runner, or joins the one that an earlier owner sent. Raises VendorCallFailed."""


@dataclass(frozen=True, kw_only=True)
class ModelCallAnswer:
    """The answer of a model.

    `result`: the JSON value that `call_model` returns, now and in each later execution of the function. `text`: what
    the model said, for people. `usage`: as the provider bills it. `model`, `stop_reason` and `request_id`: as the
    provider stated them.
    """

    result: Any
    text: str
    usage: TokenUsage
    model: str = ""
    stop_reason: str = "end_turn"
    request_id: str = ""


class ModelCallReport(Protocol):
    """The reservation that `run` receives, and its methods to report while the call runs. Not for other threads."""

    @property
    def max_output_tokens(self) -> int:
        """The output that the budget granted: at most what the request asked for. The call may not produce more."""

    @property
    def attempt(self) -> str:
        """The name of this attempt, for the provider's logs: `<task>/<step>/<number>`. No other call has it."""

    def on_text(self, block: int, text: str) -> None:
        """Shows the next piece of a block's text to those who watch the task. Blocks are numbered 0, 1, 2 and so on."""

    def on_usage(self, usage: TokenUsage, request_id: str = "") -> None:
        """Reports the usage of the whole call so far, and the provider's id of the call once it is known.

        It is the bill of a call that fails, is interrupted or lost. Text since the last report is estimated.
        """


RunModelCall = Callable[[ModelCallReport], Awaitable[ModelCallAnswer]]
"""Makes one model call. May be called again for another attempt: it must not retry by itself."""
