"""The tools this service has, and what can be said about a call before anything is run.

They come from sources: the built-in ones are there from the start; servers and providers bring theirs when they are
reached, and may replace them at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

from services.tools.schemas import Arguments, Schema, parse_arguments, shortened, untrusted_schema
from services.tools.source_facts import SourceFacts
from services.tools.tool import Tool
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.tool_names import UnknownTool, unknown_tools
from tenure.domain.tools import Outcome, OutcomeStatus, ToolDefinition, ToolSourceKind

BUILT_IN: Final = "built-in"
SEPARATOR: Final = "__"
"""Between a source's name and a tool's."""

PATIENCE_SECONDS: Final = 30.0
"""So long a call is put off whose source has not been reached yet; then the model is told."""

LIST_PATIENCE_SECONDS: Final = 5.0
"""So long, from a source's expectation on, a task that asks which tools there are waits for it: it asks only once."""

MOST_CHARACTERS: Final = 1024 * 1024
"""Of all tools together: a task is told of all of them in one message, and records them as one entry."""

MOST_CHARACTERS_OF_A_SOURCE: Final = 256 * 1024
"""Taking them is one piece of work that nothing interrupts."""

Tenants = frozenset[str] | None
"""Whose tools they are; None: everybody's. For others they do not exist."""


def _are_for(tenants: Tenants, claims: Claims) -> bool:
    return _is_of(tenants, claims.tenant)


def _is_of(tenants: Tenants, tenant: str) -> bool:
    return tenants is None or tenant in tenants


@dataclass(frozen=True, slots=True)
class _Expected:
    since: float
    tenants: Tenants


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    schema: Schema
    source: str
    tenants: Tenants


@dataclass(slots=True)
class _Room:
    """For further tools, in characters as ListTools tells them."""

    in_all: float
    of_source: float

    @classmethod
    def left_by(cls, entries: Iterable[_Entry], of_source: float) -> _Room:
        return cls(MOST_CHARACTERS - sum(_size(entry.tool) for entry in entries), of_source)

    def take(self, tool: Tool) -> str:
        """Why there is none for this one; empty: it was taken."""
        size = _size(tool)
        if size > self.of_source:
            return f"its source's tools have more than {MOST_CHARACTERS_OF_A_SOURCE} characters together"
        if size > self.in_all:
            return f"all tools have more than {MOST_CHARACTERS} characters together"
        self.of_source -= size
        self.in_all -= size
        return ""


def _size(tool: Tool) -> int:
    definition = tool.definition
    return len(definition.name) + len(definition.description) + len(definition.input_schema_json)


class ToolRegistry:
    """Tools by name, their schemas compiled once. Raises ValueError when a built-in tool cannot be taken.

    `facts`: of what has the tools.
    """

    def __init__(self, tools: Iterable[Tool], clock: Callable[[], float] = monotonic) -> None:
        self._entries: dict[str, _Entry] = {}
        self._expected: dict[str, _Expected] = {}
        self._came = asyncio.Event()
        self._clock = clock
        self.facts = SourceFacts()
        if problems := self.put(BUILT_IN, tools):
            raise ValueError("; ".join(problems))
        self.facts.add(BUILT_IN, ToolSourceKind.BUILT_IN).took(len(self._entries))

    def expect(self, source: str, tenants: Tenants = None) -> None:
        """A source that is set up and not reached yet: calls of its unknown tools are put off for a while."""
        self._expected.setdefault(source, _Expected(self._clock(), tenants))

    def put(self, source: str, tools: Iterable[Tool], tenants: Tenants = None) -> list[str]:
        """Take these as all the tools of the source, in place of those it had. What is left out is told, with the
        reason. Calls that run keep the tool they began with.
        """
        self._expected.pop(source, None)
        self._came.set()
        compiled = Schema if source == BUILT_IN else untrusted_schema
        kept = {name: entry for name, entry in self._entries.items() if entry.source != source}
        room = _Room.left_by(kept.values(), of_source=inf if source == BUILT_IN else MOST_CHARACTERS_OF_A_SOURCE)
        problems: list[str] = []
        for tool in tools:
            if (other := kept.get(tool.name)) is not None:
                # Who reads of this source need not know of one that is kept to other tenants.
                which = f", the other is {other.source}" if other.tenants is None else ""
                problems.append(f"{tool.name}: there are two tools of this name{which}")
            elif problem := room.take(tool):
                problems.append(f"{tool.name}: {problem}")
            else:
                try:
                    kept[tool.name] = _Entry(tool, compiled(tool.definition.input_schema_json), source, tenants)
                except ValueError as error:
                    problems.append(f"{tool.name}: {error}")
        self._entries = dict(sorted(kept.items()))
        return problems

    async def wait_for_expected(self, claims: Claims) -> None:
        """Until what this token may call is there, as far as it is expected soon."""
        await self._wait(claims.tenant, claims.tools)

    async def wait_for_all_expected(self, tenant: str) -> None:
        """Until all that this tenant's tasks may be allowed to call is there, as far as it is expected soon."""
        await self._wait(tenant, None)

    async def _wait(self, tenant: str, tools: tuple[str, ...] | None) -> None:
        while (seconds := self._wait_seconds(tenant, tools)) > 0:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._came.wait()

    def _wait_seconds(self, tenant: str, tools: tuple[str, ...] | None) -> float:
        wanted = tools and {name.partition(SEPARATOR)[0] for name in tools}
        since = [
            expected.since
            for source, expected in self._expected.items()
            if (wanted is None or source in wanted) and _is_of(expected.tenants, tenant)
        ]
        return max(since, default=-inf) + LIST_PATIENCE_SECONDS - self._clock()

    def find(self, name: str) -> Tool | None:
        """The tool, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.tool

    def definitions(self, claims: Claims) -> list[ToolDefinition]:
        """What this token may call, by name."""
        entries = [entry for entry in self._entries.values() if _are_for(entry.tenants, claims)]
        return [entry.tool.definition for entry in entries if claims.allows_tool(entry.tool.name)]

    def offered(self, tenant: str) -> list[tuple[ToolDefinition, str]]:
        """The tools that tasks of this tenant may be allowed to call, by name, each with the name of its source."""
        entries = [entry for entry in self._entries.values() if _is_of(entry.tenants, tenant)]
        return [(entry.tool.definition, entry.source) for entry in entries]

    def unknown_names(self, claims: Claims) -> list[str]:
        """What the token allows and there is no such tool, in order."""
        known = {name for name, entry in self._entries.items() if _are_for(entry.tenants, claims)}
        return sorted(set(claims.tools or ()) - known)

    def unknown(self, names: Iterable[str], tenant: str) -> list[UnknownTool]:
        """The names of no tool that this tenant's tasks can have, with the nearest that are.

        What a source that is away has nobody knows, so a name of its is not among them.
        """
        known = {name for name, entry in self._entries.items() if _is_of(entry.tenants, tenant)}
        away = {source.name for source in self.facts.listed(tenant) if not source.linked}
        away |= {source for source, expected in self._expected.items() if _is_of(expected.tenants, tenant)}
        return unknown_tools((name for name in names if name.partition(SEPARATOR)[0] not in away), known)

    def judge(self, claims: Claims, name: str, arguments_json: str) -> Arguments | Outcome:
        """The arguments to run the tool with, or the outcome of a call that is not run: in words the model can use.

        Raises Unavailable for a tool whose source is about to be reached.
        """
        entry = self._entries.get(name)
        if entry is None or not _are_for(entry.tenants, claims):
            return self._unknown(claims, name)
        if not claims.allows_tool(name):
            return Outcome(OutcomeStatus.NOT_ALLOWED, f"This task may not use {_shown(name)}. {self._offer(claims)}")
        arguments = parse_arguments(arguments_json)
        if arguments is None:
            return _invalid(f"The arguments of {name} must be a JSON object.")
        if problems := entry.schema.problems(arguments):
            return _invalid(f"The arguments do not fit {name}: {'; '.join(problems)}.")
        return arguments

    def _unknown(self, claims: Claims, name: str) -> Outcome:
        expected = self._expected.get(name.partition(SEPARATOR)[0])
        if expected is None or not _are_for(expected.tenants, claims):
            return _invalid(f"There is no tool named {_shown(name)}. {self._offer(claims)}")
        if self._clock() - expected.since < PATIENCE_SECONDS:
            raise Unavailable("what has this tool is not reached yet", reason="TOOL_UNREACHED", retry_after_seconds=1.0)
        message = f"{_shown(name)} cannot be reached just now: nothing was done. {self._offer(claims)}"
        return Outcome(OutcomeStatus.FAILED, message, detail="UNREACHABLE")

    def _offer(self, claims: Claims) -> str:
        names = ", ".join(definition.name for definition in self.definitions(claims))
        return f"Tools it may use: {names}." if names else "It may use no tools."


def _invalid(sentence: str) -> Outcome:
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)


def _shown(name: str) -> str:
    return repr(shortened(name))
