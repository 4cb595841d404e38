"""The tools of this service by name, and the check of a call before it runs.

Tools come from sources. The built-in tools exist from the start; MCP servers and providers bring theirs when they are
connected, and may replace them at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Final

from services.tools.schemas import Schema, built_in_schema, parse_arguments, shortened, untrusted_schema
from services.tools.source_facts import SourceStatuses
from services.tools.tool import Arguments, Tool
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.tool_schemas import OWN_FORM, ShownSchema
from tenure.domain.tools import (
    EffectClass,
    Outcome,
    OutcomeStatus,
    ToolDefinition,
    ToolSourceKind,
    UnknownTool,
    unknown_tools,
)

BUILT_IN: Final = "built-in"
SEPARATOR: Final = "__"
"""Separates a source's name from its tool's name."""

PATIENCE_SECONDS: Final = 30.0
"""How long callers repeat a call whose source has not been connected yet; after it the call fails."""

LIST_PATIENCE_SECONDS: Final = 5.0
"""How long ListTools waits for a source, from `expect` on: a task lists its tools only once."""

MAX_CHARACTERS: Final = 1024 * 1024
"""The limit of all tools together: ListTools returns them in one message, and a task records them as one entry."""

MAX_CHARACTERS_OF_A_SOURCE: Final = 256 * 1024
"""The limit of one source's tools: to take them over is one piece of work that the event loop cannot interrupt."""

Tenants = frozenset[str] | None
"""The tenants for which the tools exist; None: all tenants."""


def _are_for(tenants: Tenants, claims: Claims) -> bool:
    return _is_of(tenants, claims.tenant)


def _is_of(tenants: Tenants, tenant: str) -> bool:
    return tenants is None or tenant in tenants


@dataclass(frozen=True, slots=True)
class _Expected:
    since: float
    tenants: Tenants


@dataclass(frozen=True, slots=True)
class _Held:
    names: frozenset[str]
    tenants: Tenants


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    schema: Schema
    source: str
    tenants: Tenants


@dataclass(slots=True)
class _SizeLimits:
    """The characters that are left for further tools, counted as ListTools returns them."""

    total: float
    of_source: float

    @classmethod
    def left_by(cls, entries: Iterable[_Entry], of_source: float) -> _SizeLimits:
        return cls(MAX_CHARACTERS - sum(_size(entry.tool) for entry in entries), of_source)

    def take(self, size: int) -> str:
        """Subtracts the size of a tool and returns "", or returns why the tool is too large."""
        if size > self.of_source:
            return f"its source's tools have more than {MAX_CHARACTERS_OF_A_SOURCE} characters together"
        if size > self.total:
            return f"all tools have more than {MAX_CHARACTERS} characters together"
        self.of_source -= size
        self.total -= size
        return ""


def _shown_as(tool: Tool, schema: Schema) -> Tool:
    """Returns the tool with the schema that models are shown."""
    definition = tool.definition
    if schema.shown_json == definition.input_schema_json:
        return tool
    return replace(tool, definition=replace(definition, input_schema_json=schema.shown_json))


def _size(tool: Tool) -> int:
    definition = tool.definition
    return len(definition.name) + len(definition.description) + len(definition.input_schema_json)


class ToolRegistry:
    """The tools by name, with compiled schemas. Raises ValueError for a built-in tool that cannot be added.

    `facts`: the status of each tool source.
    """

    def __init__(self, tools: Iterable[Tool], clock: Callable[[], float] = monotonic) -> None:
        self._entries: dict[str, _Entry] = {}
        self._expected: dict[str, _Expected] = {}
        self._held: dict[str, _Held] = {}
        self._came = asyncio.Event()
        self._clock = clock
        self.facts = SourceStatuses()
        if problems := self.put(BUILT_IN, tools):
            raise ValueError("; ".join(problems))
        self.facts.add(BUILT_IN, ToolSourceKind.BUILT_IN).took(len(self._entries))

    def expect(self, source: str, tenants: Tenants = None) -> None:
        """Announces a source that is configured and not connected yet.

        Until PATIENCE_SECONDS have passed, a call of its unknown tools raises Unavailable.
        """
        self._expected.setdefault(source, _Expected(self._clock(), tenants))

    def put(self, source: str, tools: Iterable[Tool], tenants: Tenants = None, held: Collection[str] = ()) -> list[str]:
        """Replaces all tools of a source. Returns a sentence for each tool that was left out, with the reason.

        `held`: names of tools that are not offered until an operator accepts them. Running calls keep the tool with
        which they began.
        """
        self._held[source] = _Held(frozenset(held), tenants)
        self._expected.pop(source, None)
        self._came.set()
        compiled = built_in_schema if source == BUILT_IN else untrusted_schema
        kept = {name: entry for name, entry in self._entries.items() if entry.source != source}
        source_limit = inf if source == BUILT_IN else MAX_CHARACTERS_OF_A_SOURCE
        limits = _SizeLimits.left_by(kept.values(), of_source=source_limit)
        problems: list[str] = []
        for tool in tools:
            if (other := kept.get(tool.name)) is not None:
                # A source that only some tenants may see must not be named to readers of other tenants.
                other_source = f", the other is {other.source}" if other.tenants is None else ""
                problems.append(f"{tool.name}: there are two tools of this name{other_source}")
            elif problem := limits.take(_size(tool)):
                problems.append(f"{tool.name}: {problem}")
            else:
                try:
                    schema = compiled(tool.definition.input_schema_json)
                except ValueError as error:
                    problems.append(f"{tool.name}: {error}")
                    continue
                shown = _shown_as(tool, schema)
                if problem := limits.take(max(0, _size(shown) - _size(tool))):
                    problems.append(f"{tool.name}: {problem}")
                else:
                    kept[tool.name] = _Entry(shown, schema, source, tenants)
        self._entries = dict(sorted(kept.items()))
        return problems

    async def wait_for_expected(self, claims: Claims) -> None:
        """Waits for the expected sources of the tools that the token allows, at most LIST_PATIENCE_SECONDS."""
        await self._wait(claims.tenant, claims.tools)

    async def wait_for_all_expected(self, tenant: str) -> None:
        """Waits for all expected sources that the tenant may use, at most LIST_PATIENCE_SECONDS."""
        await self._wait(tenant, None)

    async def _wait(self, tenant: str, tools: tuple[str, ...] | None) -> None:
        while (seconds := self._wait_seconds(tenant, tools)) > 0:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._came.wait()

    def _wait_seconds(self, tenant: str, tools: tuple[str, ...] | None) -> float:
        sources = tools and {name.partition(SEPARATOR)[0] for name in tools}
        since = [
            expected.since
            for source, expected in self._expected.items()
            if (sources is None or source in sources) and _is_of(expected.tenants, tenant)
        ]
        return max(since, default=-inf) + LIST_PATIENCE_SECONDS - self._clock()

    def find(self, name: str) -> Tool | None:
        """Returns the tool, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.tool

    def takes(self, name: str, tenant: str) -> bool:
        """Whether the name is that of a tool that the tenant's tasks see, or may be of a source that they see."""
        entry = self._entries.get(name)
        if (entry is not None and _is_of(entry.tenants, tenant)) or name in self._held_for(tenant):
            return True
        prefix, separator, _ = name.partition(SEPARATOR)
        return bool(separator) and any(source.name == prefix for source in self.facts.listed(tenant))

    def definitions(self, claims: Claims) -> list[ToolDefinition]:
        """Returns the tools that the token allows, ordered by name."""
        entries = [entry for entry in self._entries.values() if _are_for(entry.tenants, claims)]
        return [entry.tool.definition for entry in entries if claims.allows_tool(entry.tool.name)]

    def offered(self, tenant: str) -> list[tuple[ToolDefinition, str]]:
        """Returns the tools that the tenant's tasks may use, ordered by name, each with the name of its source."""
        entries = [entry for entry in self._entries.values() if _is_of(entry.tenants, tenant)]
        return [(entry.tool.definition, entry.source) for entry in entries]

    def unknown_names(self, claims: Claims) -> list[str]:
        """Returns the names that the token allows and that do not exist, sorted."""
        known = {name for name, entry in self._entries.items() if _are_for(entry.tenants, claims)}
        return sorted(set(claims.tools or ()) - known)

    async def unknown(self, names: Iterable[str], tenant: str) -> list[UnknownTool]:
        """Returns the names of tools that the tenant's tasks cannot use, each with the nearest known names.

        Skips names of sources that are not connected: the tools of those are unknown. Compares in a thread: clients
        choose the names, and some take long to compare.
        """
        known = {name for name, entry in self._entries.items() if _is_of(entry.tenants, tenant)}
        known |= self._held_for(tenant)
        disconnected = {source.name for source in self.facts.listed(tenant) if not source.linked}
        disconnected |= {source for source, expected in self._expected.items() if _is_of(expected.tenants, tenant)}
        checked = [name for name in names if name.partition(SEPARATOR)[0] not in disconnected]
        return await asyncio.to_thread(unknown_tools, checked, known)

    def pure_tool(self, name: str, tenant: str, arguments: Arguments) -> Tool | str:
        """Returns the PURE tool of a tenant that takes these arguments, or why there is none; for Tenure itself."""
        entry = self._entries.get(name)
        if entry is None or not _is_of(entry.tenants, tenant):
            return f"there is no tool {name} now"
        if entry.tool.definition.effect_class is not EffectClass.PURE:
            return f"{name} is {entry.tool.definition.effect_class}, and must be PURE"
        if problems := entry.schema.problems(arguments):
            return f"the arguments do not fit {name}: {'; '.join(problems)}"
        return entry.tool

    def check_call(self, claims: Claims, name: str, arguments_json: str) -> Arguments | Outcome:
        """Returns the arguments for the tool, or the outcome of a call that must not run, written for the model.

        Raises Unavailable (TOOL_UNREACHED) for a tool whose source is expected to be connected soon.
        """
        entry = self._entries.get(name)
        if entry is None or not _are_for(entry.tenants, claims):
            return self._unknown(claims, name)
        if not claims.allows_tool(name):
            return Outcome(OutcomeStatus.NOT_ALLOWED, f"This task may not use {_shown(name)}. {self._offer(claims)}")
        arguments = parse_arguments(arguments_json)
        if arguments is None:
            return _invalid(f"The arguments of {name} must be a JSON object.")
        arguments = entry.schema.shown.own_arguments(arguments)
        if problems := entry.schema.problems(arguments):
            return _invalid(f"The arguments do not fit {name}: {'; '.join(problems)}.")
        return arguments

    def form_of(self, name: str, tenant: str) -> ShownSchema:
        """Returns the form in which models are shown a tool; of an unknown one, as it is."""
        entry = self._entries.get(name)
        return OWN_FORM if entry is None or not _is_of(entry.tenants, tenant) else entry.schema.shown

    def _held_for(self, tenant: str) -> set[str]:
        return {name for held in self._held.values() if _is_of(held.tenants, tenant) for name in held.names}

    def _unknown(self, claims: Claims, name: str) -> Outcome:
        if name in self._held_for(claims.tenant) and claims.allows_tool(name):
            message = (
                f"{_shown(name)} is new or has changed since an operator accepted it: nothing was done. "
                f"It works again when an operator accepts it. {self._offer(claims)}"
            )
            return Outcome(OutcomeStatus.FAILED, message, detail="TOOL_CHANGED", no_effect=True)
        expected = self._expected.get(name.partition(SEPARATOR)[0])
        if expected is None or not _are_for(expected.tenants, claims):
            return _invalid(f"There is no tool named {_shown(name)}. {self._offer(claims)}")
        if self._clock() - expected.since < PATIENCE_SECONDS:
            raise Unavailable(
                f"the source of tool {_shown(name)} is not connected yet; send the request again",
                reason="TOOL_UNREACHED",
                retry_after_seconds=1.0,
            )
        message = f"{_shown(name)} cannot be reached now: nothing was done. {self._offer(claims)}"
        return Outcome(OutcomeStatus.FAILED, message, detail="UNREACHABLE", no_effect=True)

    def _offer(self, claims: Claims) -> str:
        names = ", ".join(definition.name for definition in self.definitions(claims))
        return f"Tools it may use: {names}." if names else "It may use no tools."


def _invalid(sentence: str) -> Outcome:
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)


def _shown(name: str) -> str:
    return repr(shortened(name))
