"""The pins of tools: a source's tool is offered only as it was first seen, or as an operator accepted it.

A server may describe a tool well when it is chosen, and otherwise later, to make agents do something else. The first
contact with a source is trusted: its tools are pinned in the database, for all replicas. From then on a tool whose hash
is another one, and a tool that is new, are held until an operator accepts that hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any, Final

from services.tools.statements import QUERIES
from tenure.domain.errors import NotFound, TenureError, WrongState
from tenure.domain.tools import ToolDefinition
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection

_log: Final = logging.getLogger(__name__)
FOLLOW_SECONDS: Final = 5.0
MAX_DIFFERENCE: Final = 8000
MAX_COMPARED_LINES: Final = 2000
"""How many lines of each definition are compared, from the first one that differs. The time grows with their square: a
server could make the comparison of all lines take minutes.
"""

_CONTEXT_LINES: Final = 2

Retake = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Held:
    """A tool that is not offered. `accepted_sha256` "": a new tool. `text`: the present definition as it is pinned."""

    name: str
    sha256: str
    accepted_sha256: str
    difference: str
    text: str


@dataclass(slots=True)
class _Source:
    """A source as this replica knows it. `accepted`: the hashes of the database, as they were last read."""

    retake: Retake
    accepted: dict[str, str] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)


def pinned_text(definition: ToolDefinition) -> str:
    """Returns what is pinned of a definition, as lines of ASCII: two definitions have the same text if they are equal.

    Without the timeout and the output limit, which the operator may set in the config file.
    """
    content = {
        "name": definition.name,
        "effect_class": definition.effect_class.value,
        "description": definition.description.split("\n"),
        "input_schema": json.loads(definition.input_schema_json),
    }
    return json.dumps(content, indent=2, sort_keys=True)


def hash_of(text: str) -> str:
    """Returns the hash that operators accept."""
    return hashlib.sha256(text.encode()).hexdigest()


def difference_of(accepted: str, present: str) -> str:
    """Returns the lines that differ, with some lines around them; of long definitions, those of the first part only."""
    texts = accepted.splitlines(), present.splitlines()
    skipped = 0
    if max(map(len, texts)) > MAX_COMPARED_LINES:
        skipped = max(0, _same_lines(*texts) - _CONTEXT_LINES)
    before, after = (lines[skipped:][:MAX_COMPARED_LINES] for lines in texts)
    compared = unified_diff(before, after, "accepted", "now", lineterm="", n=_CONTEXT_LINES)
    text = "\n".join(_moved(line, skipped) for line in compared)
    left_out = max(len(lines) - skipped - MAX_COMPARED_LINES for lines in texts)
    note = f"\n… and up to {left_out:,} more lines, which are not compared" if left_out > 0 else ""
    if len(text) + len(note) > MAX_DIFFERENCE:
        note = f"\n… and {len(text) - MAX_DIFFERENCE:,} more characters{note}"
    return text[: MAX_DIFFERENCE - len(note)] + note


def _same_lines(accepted: Sequence[str], present: Sequence[str]) -> int:
    """Returns how many lines are the same at the beginning of both."""
    pairs = enumerate(zip(accepted, present, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(accepted), len(present)))


def _moved(line: str, lines: int) -> str:
    """Returns a line of a difference with the line numbers of the whole definitions."""
    return re.sub(r"(?<=[-+])[0-9]+", lambda number: str(int(number[0]) + lines), line) if line[:2] == "@@" else line


def no_such_source(source: str) -> NotFound:
    """Returns the refusal for a name of no source with pinned tools that the caller may see."""
    message = f"MCP server {source} with pinned tools not found; `tenure tools sources` lists the sources"
    return NotFound(message, reason="NO_SUCH_SOURCE")


class ToolPins:
    """The pins of all sources, in the database that the replicas share."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sources: dict[str, _Source] = {}

    def add(self, source: str, retake: Retake) -> None:
        """Adds a source. `retake` takes its last list of tools again, because other hashes are accepted."""
        self._sources[source] = _Source(retake)

    async def held(self, source: str, definitions: Mapping[str, ToolDefinition]) -> dict[str, Held]:
        """Returns the tools that must not be offered, by name. Pins all of them at the first contact."""
        texts = {name: pinned_text(definition) for name, definition in definitions.items()}

        async def work(postgres: Connection) -> list[tuple[Any, ...]]:
            first = await (await postgres.execute(QUERIES.pin_source, {"source": source})).fetchone()
            if first is not None:
                await postgres.execute(QUERIES.pin_tools, _pin(source, texts, ""))
            return await (await postgres.execute(QUERIES.pins_of, {"source": source})).fetchall()

        pins = {tool: (sha256, text) for tool, sha256, text in await in_transaction(self._pool, work)}
        known = self._sources[source]
        changed = await asyncio.to_thread(_changed, texts, pins)
        known.accepted = {tool: sha256 for tool, (sha256, _) in pins.items()}
        known.held = changed
        return known.held

    async def accept(self, source: str, seen: Mapping[str, str], actor: str) -> None:
        """Accepts tools with the hashes that the operator saw. A repeat has no further effect.

        Raises NotFound (NO_SUCH_SOURCE) and WrongState (OTHER_DEFINITION).
        """
        known = self._sources.get(source)
        if known is None:
            raise no_such_source(source)
        new = {name: sha256 for name, sha256 in seen.items() if known.accepted.get(name) != sha256}
        for name, sha256 in new.items():
            if (held := known.held.get(name)) is None or held.sha256 != sha256:
                raise WrongState(
                    f"the tool {name} of {source} is not held with this hash: look at `tenure tools sources` again",
                    reason="OTHER_DEFINITION",
                    metadata={"tool": name},
                )
        texts = {name: known.held[name].text for name in new}

        async def work(postgres: Connection) -> None:
            await postgres.execute(QUERIES.pin_tools, _pin(source, texts, actor))

        await in_transaction(self._pool, work)
        _log.warning("an operator accepted tools", extra={"source": source, "tools": sorted(new), "actor": actor})
        await known.retake()

    async def follow(self) -> None:
        """Takes the tools of sources again whose hashes another replica's operator accepted, for ever."""
        while True:
            await rest(FOLLOW_SECONDS)
            try:
                await self._follow_once()
            except TenureError as error:
                _log.warning("the accepted tools cannot be read: %s", error)

    async def _follow_once(self) -> None:
        async with pool_connection(self._pool) as postgres:
            cursor = await postgres.execute(QUERIES.pinned_hashes, {"sources": list(self._sources)})
            rows = await cursor.fetchall()
        for name, known in self._sources.items():
            accepted = {tool: sha256 for source, tool, sha256 in rows if source == name}
            if accepted != known.accepted:
                await known.retake()


def _changed(texts: Mapping[str, str], pins: Mapping[str, tuple[str, str]]) -> dict[str, Held]:
    """Returns the tools with other hashes than the accepted ones. Takes long if there are many: call it in a thread."""
    held: dict[str, Held] = {}
    for name, text in texts.items():
        accepted, accepted_text = pins.get(name, ("", ""))
        if (sha256 := hash_of(text)) != accepted:
            held[name] = Held(name, sha256, accepted, difference_of(accepted_text, text), text)
    return held


def _pin(source: str, texts: Mapping[str, str], actor: str) -> dict[str, Any]:
    return {
        "source": source,
        "tools": list(texts),
        "hashes": [hash_of(text) for text in texts.values()],
        "definitions": list(texts.values()),
        "accepted_by": actor,
    }
