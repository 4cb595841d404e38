"""What the model read at a step, from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenure.domain.conversation import Message, result_text
from tenure.domain.entries import AssistantMessage, Entry, ModelAttempt
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.fold import ResumePoint
from tenure.domain.result_schema import system_prompt


@dataclass(frozen=True, slots=True)
class PromptOfStep:
    """The request of the newest model call of a step. `tools`: the names of the tools that the model was shown."""

    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]


def is_answer(entry: Entry, step: int) -> bool:
    """Whether the entry ends the model calls of the step."""
    return entry.step > step or (entry.step == step and isinstance(entry.body, AssistantMessage))


def prompt_of(entries: Sequence[Entry], step: int) -> PromptOfStep:
    """Returns what the model read at this step. `entries`: from the first one, at least to the answer of the step.

    Raises NotFound for a step without a model call, WrongState for the task of a function: its code says what it sends.
    """
    calls = [entry for entry in entries if entry.step == step and _is_call(entry)]
    point = ResumePoint()
    for entry in entries:
        point.apply(entry)
        if not calls or entry is calls[-1]:
            break
    if not point.is_agent:
        raise WrongState("a function runs this task, and the ledger does not have what its code sends to the model")
    if not calls:
        raise NotFound(f"step {step} has no model call")
    assert point.spec is not None, "the first entry has the spec"
    attempt = calls[-1].body
    assert isinstance(attempt, ModelAttempt)
    system = system_prompt(point.spec.agent.system, point.spec.result_schema_json)
    return PromptOfStep(attempt.model, system, tuple(tool.name for tool in point.shown_tools), tuple(point.messages))


def _is_call(entry: Entry) -> bool:
    return isinstance(entry.body, ModelAttempt) and not entry.body.summary_through_step


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a message. `kind`: text, tool_call, tool_result, image, or what the model provider calls it."""

    kind: str
    text: str = ""
    tool: str = ""
    arguments: Any = None
    is_error: bool = False


def parts_of(message: Message) -> list[MessagePart]:
    """Returns the parts of a message as people read them."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_part(block) for block in blocks]


def _part(block: dict[str, Any]) -> MessagePart:
    match block.get("type"):
        case "text":
            return MessagePart("text", str(block.get("text", "")))
        case "tool_use":
            return MessagePart("tool_call", tool=str(block.get("name", "")), arguments=block.get("input"))
        case "tool_result":
            return MessagePart("tool_result", result_text(block), is_error=bool(block.get("is_error")))
        case "image":
            return MessagePart("image", str((block.get("source") or {}).get("path", "")))
        case kind:
            return MessagePart(str(kind), str(block.get("thinking", "")))
