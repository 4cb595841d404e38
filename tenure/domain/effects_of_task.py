"""The calls of a task that have effects, read from its ledger: those that an undo may undo, and the newest others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tenure.domain.entries import Entry, Forked, ToolIntent, ToolOutcome, ToolsDefined, WaitResolution
from tenure.domain.repeated_effects import EffectFact, fact_of_outcome
from tenure.domain.tools import Compensation, EffectClass, Outcome, ToolDefinition

PLAN_KINDS: Final = ("forked", "tools_defined", "tool_intent", "tool_outcome", "wait_resolution")
"""The kinds of entries from which the effects of a task are read, by their field names in EntryBody."""
MAX_LISTED: Final = 500
"""The most calls of one list that no undo can undo."""
MAX_READ: Final = 64 * 1024 * 1024
"""The most bytes of the calls that one plan considers."""

_SIZE: Final = 512
"""What a call takes besides its texts, in bytes."""

Present = Mapping[str, Compensation | None]
"""The tools that the tool service has now, by name, with their compensations."""


def compensation_of(tool: ToolDefinition, present: Present | None) -> Compensation | None:
    """Returns the present declaration, or that of the ledger where the tool service does not have the tool any more."""
    return tool.compensation if present is None else present.get(tool.name, tool.compensation)


@dataclass(frozen=True, slots=True)
class EffectCall:
    """A call of the ledger that has an effect, with its tool as the ledger defines it."""

    sequence: int
    intent: ToolIntent
    tool: ToolDefinition
    outcome: Outcome | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return _SIZE + len(self.intent.arguments_json) + (len(self.outcome.content) if self.outcome else 0)


class _Newest:
    """The newest calls, as many as fit. `is_whole`: it has lost none."""

    def __init__(self, most_calls: int | None = None) -> None:
        self.calls: dict[str, EffectCall] = {}
        self.is_whole = True
        self._most_calls, self._size = most_calls, 0

    def put(self, call: EffectCall) -> None:
        before = self.calls.get(call.intent.call_id)
        self._size += call.size - (before.size if before is not None else 0)
        self.calls[call.intent.call_id] = call
        while self._size > MAX_READ or (self._most_calls is not None and len(self.calls) > self._most_calls):
            self.pop(next(iter(self.calls)))
            self.is_whole = False

    def pop(self, call_id: str) -> EffectCall:
        call = self.calls.pop(call_id)
        self._size -= call.size
        return call


class EffectsOfTask:
    """Collects the calls of a ledger that have effects.

    Those that an undo may undo are all kept, as far as the memory allows. The newest of the others are kept for the
    list: calls of tools without a compensation, calls that provably did nothing, and those that are undone.
    `since_step`: only calls of this step and later ones. `present`: the present compensations. A fork has only its own
    calls, not those that it copied.
    """

    def __init__(self, since_step: int = 0, present: Present | None = None, undone: Collection[str] = ()) -> None:
        self._since_step, self._present, self._undone, self._first = since_step, present, undone, 0
        self._tools: dict[str, ToolDefinition] = {}
        self._wanted, self._others = _Newest(), _Newest(MAX_LISTED)

    @property
    def is_whole(self) -> bool:
        """Whether all calls that an undo may undo are among them."""
        return self._wanted.is_whole

    def add(self, entry: Entry) -> None:
        """Takes the next entry of one of PLAN_KINDS."""
        match entry.body:
            case Forked(copied_entries=copied):
                self._first = entry.sequence + copied + 1
            case ToolsDefined():
                self._tools = {tool.name: tool for tool in entry.body.tools}
            case ToolIntent():
                self._intent(entry, entry.body)
            case WaitResolution(call_id=name, edited_arguments_json=edited) if edited:
                for group in (self._wanted, self._others):
                    if (call := group.calls.get(name)) is not None:
                        group.put(replace(call, intent=replace(call.intent, arguments_json=edited)))
            case ToolOutcome(call_id=name, outcome=outcome):
                self._outcome(name, outcome)
            case _:
                pass

    def newest_first(self) -> list[EffectCall]:
        """Returns the calls in the order in which they are undone."""
        calls = [*self._wanted.calls.values(), *self._others.calls.values()]
        return sorted(calls, key=lambda call: call.sequence, reverse=True)

    def _intent(self, entry: Entry, intent: ToolIntent) -> None:
        tool = self._tools.get(intent.tool)
        is_own = entry.sequence >= self._first and entry.step >= self._since_step
        if not is_own or tool is None or tool.effect_class is EffectClass.PURE:
            return
        may_be_undone = compensation_of(tool, self._present) is not None and intent.call_id not in self._undone
        (self._wanted if may_be_undone else self._others).put(EffectCall(entry.sequence, intent, tool))

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if name in self._wanted.calls:
            if fact_of_outcome(outcome) is not EffectFact.NONE:
                self._wanted.put(replace(self._wanted.calls[name], outcome=outcome))
                return
            self._others.put(self._wanted.pop(name))
        if name in self._others.calls:
            self._others.put(replace(self._others.calls[name], outcome=replace(outcome, content="")))
