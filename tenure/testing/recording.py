"""A recorded run in a test: the ledger of a real task as a file, and its replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tenure.client.replays import UnreadableLedger, read_ledger
from tenure.domain.conversation import text_of
from tenure.domain.entries import AssistantMessage, ControlStep, Entry, ModelAttempt, ModelFailure
from tenure.testing.script import OUTPUT_TOOL, ScriptedError, ScriptedTurn
from tenure.wire.ledger import entries_to_domain

if TYPE_CHECKING:
    from tenure.domain.replay import Divergence
    from tenure.testing.task import TaskHandle
    from tenure.v1 import ledger_pb2, task_pb2

_NO_MORE: Final = "the recorded run made no further model call"
_BAD_REQUEST: Final = 400
_MAX_SHOWN: Final = 200


class Recording:
    """The ledger of a real task, from a file that `tenure tasks entries TASK --json -v` wrote.

    `goal`: that of the task. `answers`: what its model answered, as a script. Raises
    `tenure.client.replays.UnreadableLedger`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.entries: Sequence[ledger_pb2.Entry] = read_ledger(self.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def spec(self) -> task_pb2.TaskSpec:
        """What the task was submitted with."""
        return self.entries[0].body.submitted.spec

    @property
    def goal(self) -> str:
        """The goal of the task."""
        return self.spec.goal

    @cached_property
    def answers(self) -> list[ScriptedTurn | ScriptedError]:
        """The answers of the model in their order, for `tenure.model.script`: the n-th is that of the n-th model call.

        Failed calls that a later attempt repaired are left out. If the last call failed, the script ends with its
        failure. Answers to requests for a summary are not part of it. Of several agents in Python, whose conversations
        are mixed here, a replay with `model=""` needs no script. Raises UnreadableLedger for a call whose arguments
        are not a JSON object.
        """
        return _answers(entries_to_domain(self.entries))


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that has ended. `task`: the new task. `divergences`: where it differs from the recorded run."""

    task: TaskHandle[Any]
    divergences: list[Divergence]


def _answers(entries: Sequence[Entry]) -> list[ScriptedTurn | ScriptedError]:
    answers: list[ScriptedTurn | ScriptedError] = []
    failure: ModelFailure | None = None
    is_summary, answered_step, text = False, 0, ""
    for entry in entries:
        match entry.body:
            case ModelAttempt():
                is_summary = bool(entry.body.summary_through_step)
            case ModelFailure():
                failure = entry.body
            case AssistantMessage():
                failure = None
                if not is_summary:
                    answers.append(_turn(entry.body))
                    text, answered_step = text_of(entry.body.content), entry.step
            case ControlStep(result_json=result) if result and entry.step == answered_step:
                try:
                    calls = tuple(_calls_of_code(json.loads(result)))
                except ValueError as error:
                    why = f"step {entry.step}: the arguments of a call are {error}, and a script has no other"
                    raise UnreadableLedger(f'{why}: replay the run with model="", by its record') from None
                answers[-1] = ScriptedTurn(text=text, calls=calls, is_literal=True)
    if failure is not None:
        return [*answers, _error(failure.status_code, failure.message)]
    if answers and _goes_on(answers[-1]):  # a limit or a cancel ended the run
        answers.append(_error(_BAD_REQUEST, _NO_MORE))
    return answers


def _goes_on(answer: ScriptedTurn | ScriptedError) -> bool:
    calls = answer.calls if isinstance(answer, ScriptedTurn) else ()
    return bool(calls) and not all(name.startswith(OUTPUT_TOOL) for name, _ in calls)


def _calls_of_code(result: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the tool calls of an answer as Pydantic AI or the OpenAI Agents SDK records it; none of another value."""
    given = result if isinstance(result, dict) else {}
    for part in given.get("parts") or ():
        if part.get("part_kind") == "tool-call":
            yield part["tool_name"], _arguments(part.get("args"))
    for item in given.get("output") or ():
        if item.get("type") == "function_call":
            yield item["name"], _arguments(item.get("arguments"))


def _arguments(given: Any) -> dict[str, Any]:
    """Returns the arguments of a call. Raises ValueError for those that a model wrote as another text."""
    try:
        arguments = json.loads(given or "{}") if isinstance(given, str | None) else given
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"not a JSON object: {str(given)[:_MAX_SHOWN]!r}")  # noqa: TRY004  the model's text
    return arguments


def _turn(answer: AssistantMessage) -> ScriptedTurn:
    texts = [block.get("text", "") for block in answer.content if block.get("type") == "text"]
    calls = [(block["name"], block["input"]) for block in answer.content if block.get("type") == "tool_use"]
    is_usual = answer.stop_reason == ("tool_use" if calls else "end_turn")
    return ScriptedTurn(
        text="".join(texts),
        calls=tuple(calls),
        stop_reason="" if is_usual else answer.stop_reason,
        is_literal=True,
    )


def _error(status: int, message: str) -> ScriptedError:
    return ScriptedError(fault={"status": status or 503, "message": message})
