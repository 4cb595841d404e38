"""The interface between the tool service and a tool: definition, coroutine, call context and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from tenure.domain.images import Image
from tenure.domain.in_doubt import MAY_HAVE_HAPPENED
from tenure.domain.outputs import TaskOutput
from tenure.domain.tools import EffectClass, OutcomeStatus, ProgramUsage, ToolDefinition

GENERAL_LANE: Final = "general"
_Result = TypeVar("_Result")


class OwnCaller(Protocol):
    """The caller of a call that runs the call itself."""

    @property
    def call_attempt(self) -> int: ...

    @property
    def listeners(self) -> Collection[object]:
        """The streams of the caller that follow the call; none while its connection is broken."""

    def order_caller(self, timeout_seconds: float) -> None:
        """Orders the caller to run the call."""

    async def wait_listened(self, *, listened: bool) -> None:
        """Returns when the caller follows the call, or no longer does."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a call, which the tool receives with it.

    `idempotency_key`: `<task_id>/<call_id>`, or that of the call's effect key; the same for every attempt of the call.
    `emit`: streams output while the tool runs. The answer must contain all of it again, because streamed output may be
    dropped.
    `token`: the fencing token as the caller presented it, a serialized FencingToken, for providers that verify it.
    `output_limit_bytes`: how much of the answer the model can read.
    `report_usage`: reports what a program used, also a stopped one; it becomes part of the outcome.
    `timeout_seconds`: how long this call may take.
    `check_may_begin`: a tool that acts elsewhere calls it immediately before it sends anything, because it may have
    waited for a connection, or slept, since the call started. It raises when this runner may begin no effect any more;
    the tool must pass that exception on. Its argument says whether the call was sent before: only for a call that was
    never sent is it certain that nothing was done.
    `mark_not_sent`: a tool that ends without an answer calls it when it provably sent nothing and never will.
    `caller`: the caller, for the tool whose calls the caller runs itself.
    `sent_before`: an earlier attempt, or an earlier try of this one, may have had the effect of the call. Then an
    answer about this sending alone, such as "it cannot be reached", says nothing about the call.
    """

    tenant: str
    task_id: str
    call_id: str
    idempotency_key: str
    epoch: int
    emit: Callable[[str], None]
    token: bytes = b""
    output_limit_bytes: int = 64 * 1024
    report_usage: Callable[[ProgramUsage], None] = lambda _usage: None
    timeout_seconds: float = 30.0
    check_may_begin: Callable[[bool], None] = lambda _sent_before: None
    mark_not_sent: Callable[[], None] = lambda: None
    caller: OwnCaller | None = None
    sent_before: bool = False

    @property
    def provider_headers(self) -> dict[str, str]:
        """The headers by which HTTP and gRPC providers recognise repeats and fence their own writes."""
        return {"Idempotency-Key": self.idempotency_key, "X-Fencing-Epoch": str(self.epoch)}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A tool's answer: `content` is for the model; `detail` is a code that refines the status.

    `output`: what the ledger lists as an output of the task, only from record_output. `images`: kept in the workspace.
    `no_effect`: see `Outcome.no_effect`.
    `leaves_earlier_open`: a refusal of this sending, which does not say whether an earlier one was carried out.
    """

    content: str
    status: OutcomeStatus = OutcomeStatus.SUCCEEDED
    detail: str = ""
    truncated: bool = False
    output: TaskOutput | None = None
    images: tuple[Image, ...] = ()
    no_effect: bool = False
    leaves_earlier_open: bool = False


_NOTHING_DONE: Final = "Nothing was done"


def nothing_done(
    content: str, detail: str = "", status: OutcomeStatus = OutcomeStatus.FAILED, *, said: str = ""
) -> ToolAnswer:
    """Returns the answer of a call of which this sending provably did nothing. `said`: what the other side says."""
    text = f"{content} {_NOTHING_DONE}: {said}" if said else f"{content} {_NOTHING_DONE}."
    return ToolAnswer(text, status, detail, no_effect=True, leaves_earlier_open=True)


class ToolFailure(Exception):  # noqa: N818  an answer to the model, not an error of the service
    """The tool cannot do what the call asks for. The message is for the model."""

    no_effect = False
    """See `Outcome.no_effect`."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.detail = message, detail


class NothingDone(ToolFailure):
    """The tool provably did nothing for this call, and never will: its message says so, too."""

    no_effect = True

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(f"{message} {_NOTHING_DONE}.", detail)


class ToolInDoubt(Exception):  # noqa: N818  an answer to the model, not an error of the service
    """The tool sent the call and lost the answer: the effect may or may not have happened.

    The message, for people and the model, says what is known. The end of a KEYED or UNSAFE call is unknown then: the
    runner settles it, and it is IN_DOUBT if that brings nothing. `status`, `detail`: of the outcome of a call that may
    be repeated without harm, which the model decides about.
    """

    def __init__(
        self, message: str, status: OutcomeStatus = OutcomeStatus.FAILED, detail: str = MAY_HAVE_HAPPENED
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.detail = message, status, detail


class RunnerStopped(Exception):  # noqa: N818  a signal to the runner, not an error of the service
    """`check_may_begin` raises this for a call that was sent before, when the life of its runner is over.

    A tool passes it on: the other replicas settle the call.
    """


Arguments = dict[str, Any]
"""The call's arguments. They fit the tool's schema."""

RunTool = Callable[[CallContext, Arguments], Awaitable[ToolAnswer]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's definition and its implementation.

    `run` gets arguments that fit the schema. The service cancels it to stop it; it must end only when none of its work
    goes on in this process (see `past_return`), because that is the proof that a runner is gone. It raises ToolFailure
    for the model and ToolInDoubt for a lost answer; any other exception is reported as a crash.
    `lane`: the calls of one lane share its limit of calls at once.
    `guard_seconds`: the extra time of a tool that enforces its timeout itself and reports more about it.
    `keeps_any_timeout`: the tool also enforces a shorter timeout of the caller (`CallContext.timeout_seconds`).
    `acts_elsewhere`: another process or system brings about the effect, so to stop the tool here proves nothing about
    the effect.
    """

    definition: ToolDefinition
    run: RunTool
    lane: str = GENERAL_LANE
    guard_seconds: float = 0.0
    keeps_any_timeout: bool = False
    acts_elsewhere: bool = False

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True, slots=True)
class ToolWork:
    """The work of an accepted call: the tool as it was at the accept, even if its source has replaced it since."""

    tool: Tool
    arguments: Arguments
    token: bytes = b""


async def past_return(work: Awaitable[_Result]) -> _Result:
    """Awaits work that is past its point of no return, however often the caller is cancelled, and returns its result.

    A cancellation asks a tool to stop, but the true answer of such work is what it did.
    """
    running = asyncio.ensure_future(work)
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        except Exception:  # noqa: BLE001  result() raises it to the caller
            break
    return running.result()


def define(
    name: str,
    effect_class: EffectClass,
    description: str,
    properties: dict[str, Any],
    *,
    required: tuple[str, ...] = (),
    timeout_seconds: float = 30.0,
    output_limit_bytes: int = 64 * 1024,
) -> ToolDefinition:
    """Returns a definition whose arguments are an object with these properties and no others."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolDefinition(
        name=name,
        description=description,
        input_schema_json=json.dumps(schema),
        effect_class=effect_class,
        timeout_seconds=timeout_seconds,
        output_limit_bytes=output_limit_bytes,
    )
