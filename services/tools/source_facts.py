"""The status of each tool source of this replica: whether it is connected, since when, its tools and its last error.

Sources report only here, so that ListToolSources and the metrics always agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from services.tools.pins import Held
from tenure.domain.tools import ToolSourceKind
from tenure.runtime.observability import metrics
from tenure.v1 import tool_pb2
from tenure.wire.codec import writer
from tenure.wire.common import TOOL_SOURCES, timestamp

MAX_PROBLEMS: Final = 20
LONGEST_SENTENCE: Final = 200
SHORTEST_SECRET: Final = 8
"""Shorter secrets are not replaced: they also occur inside ordinary words."""

_LINKED_TO: Final = frozenset({ToolSourceKind.MCP, ToolSourceKind.PROVIDER})
_URL_REST: Final = re.compile(r"(?<=://)(?:[^/\s@]*@)?([^/?#\s'\"]+)[^\s'\"]*")
_held_to_wire = writer(Held, tool_pb2.HeldTool, skip="text")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class SourceStatus:
    """The status of one source. `secrets`: texts that no returned sentence may contain, whatever the source reports."""

    name: str
    kind: ToolSourceKind
    tenants: frozenset[str] | None
    secrets: frozenset[str]
    now: Callable[[], datetime]
    changed_at: datetime = field(init=False)
    is_linked: bool = field(init=False)
    tools: int = 0
    problems: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    last_error: str = ""
    last_error_at: datetime | None = None

    def __post_init__(self) -> None:
        self.changed_at, self.is_linked = self.now(), self.kind not in _LINKED_TO
        self._gauge("linked", self.is_linked)
        self._gauge("tools", 0)

    def linked(self) -> None:
        """Records that the source is connected."""
        self._link(is_linked=True)

    def lost(self, error: str) -> None:
        """Records that the source is not connected, or still not, and why."""
        self._link(is_linked=False)
        self.last_error, self.last_error_at = _sentence(error, self.secrets), self.now()

    def took(self, tools: int, problems: Iterable[str] = (), held: Iterable[Held] = ()) -> None:
        """Records how many tools the source has now, the problems with its other tools, and the held tools."""
        self.tools, self.problems = tools, tuple(problems)
        self.held = tuple(sorted(held, key=lambda tool: tool.name))
        self._gauge("tools", tools)
        self._gauge("held", len(self.held))

    def to_wire(self) -> tool_pb2.ToolSource:
        """Returns the status as a message of bounded size, whatever the source reports."""
        at = self.last_error_at
        return tool_pb2.ToolSource(
            name=self.name,
            kind=TOOL_SOURCES.to_wire(self.kind),
            linked=self.is_linked,
            change_time=timestamp(self.changed_at),
            tools=self.tools,
            problems=[_sentence(problem, self.secrets) for problem in self.problems[:MAX_PROBLEMS]],
            problem_count=len(self.problems),
            last_error=self.last_error,
            last_error_time=None if at is None else timestamp(at),
            held=[self._held_tool(tool) for tool in self.held[:MAX_PROBLEMS]],
            held_count=len(self.held),
        )

    def _held_tool(self, held: Held) -> tool_pb2.HeldTool:
        return _held_to_wire(replace(held, difference=_without(self.secrets, held.difference)))

    def _link(self, *, is_linked: bool) -> None:
        if self.is_linked != is_linked:
            self.is_linked, self.changed_at = is_linked, self.now()
        self._gauge("linked", is_linked)

    def _gauge(self, name: str, value: float) -> None:
        if self.kind in _LINKED_TO:
            metrics.gauge(f"tenure_tool_source_{name}", value, source=self.name)


class SourceStatuses:
    """The status of all sources of this replica."""

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._facts: list[SourceStatus] = []
        self._now = now

    def add(
        self, name: str, kind: ToolSourceKind, tenants: frozenset[str] | None = None, secrets: Iterable[str] = ()
    ) -> SourceStatus:
        """Adds a configured source. An MCP server or a provider is not connected yet.

        `tenants`: the tenants that may see the source; None: all.
        """
        parts = {part for secret in secrets for part in (secret, *re.split(r"[\s=]+", secret))}
        replaced = frozenset(part for part in parts if len(part) >= SHORTEST_SECRET)
        fact = SourceStatus(name, kind, tenants, replaced, self._now)
        self._facts.append(fact)
        return fact

    def listed(self, tenant: str) -> list[tool_pb2.ToolSource]:
        """Returns the sources that the tenant may see, ordered by kind and name."""
        facts = [fact for fact in self._facts if fact.tenants is None or tenant in fact.tenants]
        kinds = list(ToolSourceKind)
        return [fact.to_wire() for fact in sorted(facts, key=lambda fact: (kinds.index(fact.kind), fact.name))]


def _without(secrets: frozenset[str], text: str) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _sentence(text: str, secrets: frozenset[str]) -> str:
    """Returns the text as one line without secrets, with only the host of each URL.

    Secrets are replaced before the text is truncated, so that no part of a secret is left.
    """
    line = " ".join(_URL_REST.sub(r"\1", _without(secrets, text)).split())
    return line if len(line) <= LONGEST_SENTENCE else line[: LONGEST_SENTENCE - 1] + "…"
