"""The tools this service has, and what can be said about a call before anything is run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Final

from jsonschema import Draft202012Validator

from services.tools.tool import Arguments, Tool
from tenure.domain.token import Claims
from tenure.domain.tools import Outcome, OutcomeStatus, ToolDefinition

_MOST_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 300


class Registry:
    """Tools by name, their schemas compiled once. Raises ValueError for a name that is taken, SchemaError for a schema
    that is none.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, Draft202012Validator] = {}
        for tool in sorted(tools, key=lambda tool: tool.name):
            if tool.name in self._tools:
                raise ValueError(f"there are two tools named {tool.name}")
            schema = json.loads(tool.definition.input_schema_json)
            Draft202012Validator.check_schema(schema)
            self._tools[tool.name] = tool
            self._validators[tool.name] = Draft202012Validator(schema)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def find(self, name: str) -> Tool | None:
        """The tool, or None."""
        return self._tools.get(name)

    def definitions(self, claims: Claims) -> list[ToolDefinition]:
        """What this token may call, by name."""
        return [tool.definition for tool in self._tools.values() if claims.allows_tool(tool.name)]

    def unknown_names(self, claims: Claims) -> list[str]:
        """What the token allows and there is no such tool, in order."""
        return sorted(set(claims.tools or ()) - self._tools.keys())

    def judge(self, claims: Claims, name: str, arguments_json: str) -> Arguments | Outcome:
        """The arguments to run the tool with, or the outcome of a call that is not run: in words the model can use."""
        tool = self._tools.get(name)
        if tool is not None and not claims.allows_tool(name):
            return Outcome(OutcomeStatus.NOT_ALLOWED, f"This task may not use {_shown(name)}. {self._offer(claims)}")
        if tool is None:
            return _invalid(f"There is no tool named {_shown(name)}. {self._offer(claims)}")
        arguments = _parsed(arguments_json)
        if arguments is None:
            return _invalid(f"The arguments of {name} must be a JSON object.")
        problems = self._problems(name, arguments)
        if problems:
            return _invalid(f"The arguments do not fit {name}: {'; '.join(problems)}.")
        return arguments

    def _problems(self, name: str, arguments: Arguments) -> list[str]:
        """The first few; a long list of wrong items has as many."""
        errors = list(islice(self._validators[name].iter_errors(arguments), _MOST_PROBLEMS + 1))
        shown = [f"{_place(error.json_path)}{_shortened(error.message)}" for error in errors[:_MOST_PROBLEMS]]
        return [*shown, "and more"] if len(errors) > _MOST_PROBLEMS else shown

    def _offer(self, claims: Claims) -> str:
        names = ", ".join(definition.name for definition in self.definitions(claims))
        return f"Tools it may use: {names}." if names else "It may use no tools."


def _invalid(sentence: str) -> Outcome:
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)


def _parsed(text: str) -> Arguments | None:
    """The object; None for anything else. Python's parser would take NaN, and gives up on very deep nesting."""
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _place(json_path: str) -> str:
    return "" if json_path == "$" else f"{json_path.removeprefix('$.')}: "


def _shortened(message: str) -> str:
    """The library quotes the value; one of a megabyte helps nobody."""
    return message if len(message) <= _LONGEST_PROBLEM else f"{message[:_LONGEST_PROBLEM]}…"


def _shown(name: str) -> str:
    return repr(_shortened(name))
