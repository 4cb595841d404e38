"""What is known of each source of tools here: whether it is there, since when, and what went wrong the last time.

Sources report to this place alone: what operators are told and what the metrics say is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tenure.domain.tools import ToolSourceKind
from tenure.runtime import metrics
from tenure.v1 import tool_pb2
from tenure.wire.common import TOOL_SOURCES, timestamp

MOST_PROBLEMS: Final = 20
LONGEST_SENTENCE: Final = 200
SHORTEST_SECRET: Final = 8
"""What is shorter is found in words that are none."""

_LINKED_TO: Final = frozenset({ToolSourceKind.MCP, ToolSourceKind.PROVIDER})
_URL_REST: Final = re.compile(r"(?<=://)(?:[^/\s@]*@)?([^/?#\s'\"]+)[^\s'\"]*")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class SourceFact:
    """What one source reports. `secrets`: what it must not be shown with, whoever repeats it."""

    name: str
    kind: ToolSourceKind
    tenants: frozenset[str] | None
    secrets: frozenset[str]
    now: Callable[[], datetime]
    changed_at: datetime = field(init=False)
    is_linked: bool = field(init=False)
    tools: int = 0
    problems: tuple[str, ...] = ()
    last_error: str = ""
    last_error_at: datetime | None = None

    def __post_init__(self) -> None:
        self.changed_at, self.is_linked = self.now(), self.kind not in _LINKED_TO
        self._gauge("linked", self.is_linked)
        self._gauge("tools", 0)

    def linked(self) -> None:
        """It is there."""
        self._link(is_linked=True)

    def lost(self, error: str) -> None:
        """It is not there, or still not."""
        self._link(is_linked=False)
        self.last_error, self.last_error_at = _sentence(error, self.secrets), self.now()

    def took(self, tools: int, problems: Iterable[str] = ()) -> None:
        """So many are all of its tools from now on."""
        self.tools, self.problems = tools, tuple(problems)
        self._gauge("tools", tools)

    def to_wire(self) -> tool_pb2.ToolSource:
        """Bounded, whatever the source says."""
        at = self.last_error_at
        return tool_pb2.ToolSource(
            name=self.name,
            kind=TOOL_SOURCES.to_wire(self.kind),
            linked=self.is_linked,
            change_time=timestamp(self.changed_at),
            tools=self.tools,
            problems=[_sentence(problem, self.secrets) for problem in self.problems[:MOST_PROBLEMS]],
            problem_count=len(self.problems),
            last_error=self.last_error,
            last_error_time=None if at is None else timestamp(at),
        )

    def _link(self, *, is_linked: bool) -> None:
        if self.is_linked != is_linked:
            self.is_linked, self.changed_at = is_linked, self.now()
        self._gauge("linked", is_linked)

    def _gauge(self, what: str, value: float) -> None:
        if self.kind in _LINKED_TO:
            metrics.gauge(f"tenure_tool_source_{what}", value, source=self.name)


class SourceFacts:
    """Of all sources of this replica."""

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._facts: list[SourceFact] = []
        self._now = now

    def add(
        self, name: str, kind: ToolSourceKind, tenants: frozenset[str] | None = None, secrets: Iterable[str] = ()
    ) -> SourceFact:
        """One that is set up; not linked to yet, if it is one to link to. `tenants` None: everybody may know of it."""
        message = {word for secret in secrets for word in (secret, *re.split(r"[\s=]+", secret))}
        kept = frozenset(word for word in message if len(word) >= SHORTEST_SECRET)
        fact = SourceFact(name, kind, tenants, kept, self._now)
        self._facts.append(fact)
        return fact

    def listed(self, tenant: str) -> list[tool_pb2.ToolSource]:
        """What this tenant may know of, by kind and name."""
        facts = [fact for fact in self._facts if fact.tenants is None or tenant in fact.tenants]
        kinds = list(ToolSourceKind)
        return [fact.to_wire() for fact in sorted(facts, key=lambda fact: (kinds.index(fact.kind), fact.name))]


def _sentence(text: str, secrets: frozenset[str]) -> str:
    """In one line; secrets are replaced before it is cut, lest half of one be left. Of a URL only the host is told."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    line = " ".join(_URL_REST.sub(r"\1", text).split())
    return line if len(line) <= LONGEST_SENTENCE else line[: LONGEST_SENTENCE - 1] + "…"
