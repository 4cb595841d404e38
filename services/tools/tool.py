"""What a tool is to this service: a definition and a coroutine, and how the two talk to each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tenure.domain.tools import EffectClass, OutcomeStatus, ProgramUsage, ToolDefinition

GENERAL_LANE: Final = "general"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a tool is told about the call. `idempotency_key` is the same for every attempt of it.

    `emit` shows output while it comes; all of it belongs in the answer again, because what is shown may be dropped.
    The model is shown up to `output_limit_bytes` of the answer. `token` is the fencing token as it was presented, a
    serialized FencingToken: for providers that check it themselves. `report_usage` tells what a program used, also one
    that was stopped: it becomes part of the outcome. `timeout_seconds`: how long this call may take.
    A tool that acts elsewhere asks `check_may_begin` right before it sends anything, because until then it may have
    waited for a connection, or slept: it raises when this runner may begin no effect any more, and is passed on; it is
    told whether the call was sent before, because only of one that was not it is certain that nothing was done. And it
    says `mark_not_sent` while it ends without an answer: it asked nobody for its effect, and never will.
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

    @property
    def provider_headers(self) -> dict[str, str]:
        """For HTTP and gRPC providers, so that they can recognise repeats and fence too."""
        return {"Idempotency-Key": self.idempotency_key, "X-Fencing-Epoch": str(self.epoch)}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model reads; `detail` is a finer class than the status."""

    content: str
    status: OutcomeStatus = OutcomeStatus.SUCCEEDED
    detail: str = ""
    truncated: bool = False


class ToolFailure(Exception):  # noqa: N818  what the tool says to the model, no error of the service
    """The tool cannot do what was asked; the text is for the model."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.detail = message, detail


class ToolInDoubt(Exception):  # noqa: N818  no error of the service either
    """What was asked for was sent, and the answer was lost: the effect may or may not have happened. The text, for
    people and the model, says what is known. An UNSAFE call is IN_DOUBT then, until somebody settles it; any other has
    failed.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RunnerStopped(Exception):  # noqa: N818  no error of the service either
    """`check_may_begin` raises this for a call that was sent before, when the life of its runner is over. A tool passes
    it on: the other replicas decide what became of the call.
    """


Arguments = dict[str, Any]
"""As they came, and known to fit the tool's schema."""

RunTool = Callable[[CallContext, Arguments], Awaitable[ToolAnswer]]


@dataclass(frozen=True, slots=True)
class Tool:
    """`run` gets arguments that fit the schema. It is cancelled to stop it, and ends only once nothing of it goes on in
    this process (see `past_return`): by that a runner is proven gone. It raises ToolFailed for the model, ToolInDoubt
    for an answer that was lost, and anything else it raises is told as a crash. Calls of one `lane` share its places.
    `guard_seconds`: how much longer than its timeout a tool may take that keeps the time by itself and has more to say
    about it; `keeps_any_timeout`: it keeps a shorter one of the caller's, too, see `CallContext.timeout_seconds`.
    `acts_elsewhere`: its effect is outside of this process, by somebody who is asked for it; to stop it here proves
    nothing of what goes on there.
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
    """What a call that is let in is to be run with: its tool as it was then, which may be replaced meanwhile."""

    tool: Tool
    arguments: Arguments
    token: bytes = b""


async def past_return(work: Awaitable[_Result]) -> _Result:
    """Wait for what cannot be taken back any more, however often it is cancelled.

    The canceller asks a tool to stop; the true answer of one that is past its point of no return is what it did.
    """
    doing = asyncio.ensure_future(work)
    while not doing.done():
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            if doing.cancelled():
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        except Exception:  # noqa: BLE001  it is raised to the caller by result()
            break
    return doing.result()


# A short way to write down a tool's definition.


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
    """A definition whose arguments are an object with these properties and no others."""
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
