"""The scripted model of a test: its answers as a Python list.

    tenure.model.script([tool("append_record", file="books", line="tea"), "Done."])

The n-th answer of a conversation is the n-th element, so a task that another worker takes over goes on where it was.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

SCRIPTED_MODEL: Final = "sim-scripted"
OUTPUT_TOOL: Final = "final_result"
"""The tools by which Pydantic AI gets a typed output begin so: a call of one ends the conversation."""
_PREFIX: Final = "sim-"
_ANY_MODEL: Final = "sim-research"
"""The scenario of all models without the prefix."""
_ANSWER_SECONDS: Final = 10.0
_UNSCRIPTED: Final = "this test calls the model without a script: tenure.model.script([...]) says what it answers"


class ScriptError(ValueError):
    """A script cannot be played. The message names the element and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """One answer of the model: a text, tool calls (name and arguments), or both. `delay_seconds`: how long it takes.

    `stop_reason` "": it follows from the calls. `is_literal`: the texts have no references such as {{goal}}.
    """

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    delay_seconds: float = 0.0
    stop_reason: str = ""
    is_literal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedError:
    """The same model call fails `times` times before the next answer. `fault`: in the format of scenarios."""

    fault: Mapping[str, Any]
    times: int = 1


Script = Sequence["str | ScriptedTurn | ScriptedError | Sequence[ScriptedTurn]"]
"""The elements: a text, `tool(…)`, a list of them for parallel calls, `turn(…)`, `error(…)`, `broken_stream(…)`."""


def tool(name: str, /, **arguments: Any) -> ScriptedTurn:
    """Returns an answer that calls a tool. The tool need not exist: then the task goes on with an error."""
    return ScriptedTurn(calls=((name, arguments),))


def turn(text: str = "", *tools: ScriptedTurn, delay: float = 0.0) -> ScriptedTurn:
    """Returns an answer with a text and the calls of `tools`, in parallel. `delay`: seconds until it is complete."""
    calls = tuple(call for each in tools for call in each.calls)
    return ScriptedTurn(text=text, calls=calls, delay_seconds=delay)


def error(status: int = 529, *, times: int = 1, message: str = "", retry_after: float | None = None) -> ScriptedError:
    """Returns a failure of the provider: this HTTP status, `times` times, then the next element is the answer.

    `retry_after`: seconds, the header of that name.
    """
    fault: dict[str, Any] = {"status": status}
    if message:
        fault["message"] = message
    if retry_after is not None:
        fault["retry_after_seconds"] = retry_after
    return ScriptedError(fault=fault, times=times)


def broken_stream(after: int = 1, *, times: int = 1) -> ScriptedError:
    """Returns a failure of the network: the answer breaks off after so many pieces, `times` times."""
    return ScriptedError(fault={"broken_stream": after}, times=times)


def scenario_turns(script: Script) -> list[dict[str, Any]]:
    """Returns a script in the format of scenario files. Raises ScriptError."""
    if isinstance(script, str) or not script:
        raise ScriptError('a script is a list of answers, for example [tool("read_file", path="a"), "Done."]')
    turns: list[dict[str, Any]] = []
    failing: ScriptedError | None = None
    for number, element in enumerate(script, 1):
        if isinstance(element, ScriptedError):
            if failing is not None:
                raise ScriptError(f"element {number}: two errors in a row; use times=2, or put an answer between them")
            failing = element
            continue
        turns.append(_scenario_turn(number, element, failing))
        failing = None
    if failing is not None:  # nothing follows, so every call fails
        turns.append({"text": "never", "fault": dict(failing.fault)})
    if calls := turns[-1].get("calls"):
        if not all(call["name"].startswith(OUTPUT_TOOL) for call in calls):
            raise ScriptError("the last element calls tools, so the task would not end: put a text behind it")
        turns.append({"text": "The agent has its output, and asks no more."})
    return turns


def _scenario_turn(number: int, element: object, failing: ScriptedError | None) -> dict[str, Any]:
    match element:
        case str():
            given = ScriptedTurn(text=element)
        case ScriptedTurn():
            given = element
        case list() | tuple() if element and all(isinstance(each, ScriptedTurn) for each in element):
            given = turn("", *element)
        case _:
            raise ScriptError(
                f"element {number} is {element!r}: use a text, tool(…), turn(…), error(…), or a list of tools"
            )
    value: dict[str, Any] = {"text": given.text}
    if given.calls:
        value["calls"] = [{"name": name, "arguments": dict(arguments)} for name, arguments in given.calls]
    if given.delay_seconds:
        value["latency_ms"] = round(given.delay_seconds * 1000)
    if given.stop_reason:
        value["stop_reason"] = given.stop_reason
    if given.is_literal:
        value["literal"] = True
    if failing is not None:
        value["fault"] = {**failing.fault, "times": failing.times}
    return value


@dataclass(slots=True)
class ScriptedModel:
    """The model of a test's tasks. `name`: for a client that names its model; the default of every task."""

    simulator_address: str
    name: str = field(default=SCRIPTED_MODEL)

    def script(self, script: Script, *, model: str = SCRIPTED_MODEL, instructions: str = "") -> None:
        """Sets what the models answer from now on, in every conversation: the default one, and those of providers.

        `model`: only this one, `sim-…`, for tasks that name it. `instructions`: only agents whose instructions
        contain this text, for tests with several agents. Raises ScriptError.
        """
        if not model.startswith(_PREFIX):
            raise ScriptError(f"the model {model!r} cannot be scripted: its name must begin with {_PREFIX}")
        turns = scenario_turns(script)
        if instructions:
            self._put(SCRIPTED_MODEL, turns, instructions)
            return
        self._put(model, turns)
        if model == SCRIPTED_MODEL:
            self._put(_ANY_MODEL, turns)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests that the model got in this test, the oldest first, each with its status and what it billed."""
        calls: list[dict[str, Any]] = self._ask("GET", "/_sim/calls?limit=20000")["calls"]
        return [call for call in calls if call["endpoint"] != "count_tokens"]

    def reset(self) -> None:
        """Forgets the requests and the script: until the next one, every call fails."""
        self._ask("POST", "/_sim/reset")
        for model in (SCRIPTED_MODEL, _ANY_MODEL):
            self._put(model, [{"text": "never", "fault": {"status": 400, "message": _UNSCRIPTED}}])

    def _put(self, model: str, turns: list[dict[str, Any]], instructions: str = "") -> None:
        query = urlencode({"name": model.removeprefix(_PREFIX), "instructions": instructions})
        self._ask("POST", f"/_sim/scenarios?{query}", json.dumps(turns))

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection(self.simulator_address, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            value = json.loads(response.read())
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise ScriptError(value.get("error", f"the simulator answers {response.status}"))
        return value
