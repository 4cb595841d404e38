"""Effect keys: what makes two tool calls the same effect.

The key of an effect has the tenant, the tool, a group of tasks (the scope) and the values of arguments that the tool
declares. Two calls with one key are one effect, however often and under whatever call id a model plans it.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tenure.domain.json_pointers import JsonValue, check_pointer, value_at

MAX_ARGUMENTS: Final = 16
MAX_VALUE_BYTES: Final = 4096
"""The most bytes that the values of a key may have together, as canonical JSON."""
MIN_PERIOD_SECONDS: Final = 1.0
MAX_PERIOD_SECONDS: Final = 10 * 366 * 86400.0


class EffectScope(StrEnum):
    """The tasks among which an effect happens once."""

    TASK = "TASK"  # the task
    TREE = "TREE"  # the task, its sub-agents, their root, and the forks of these
    CONVERSATION = "CONVERSATION"  # the tasks of one conversation; of a task without one: its tree
    SOURCE = "SOURCE"  # the task of one run of a source, its sub-agents and its forks; of a task without one: its tree
    TENANT = "TENANT"  # all tasks of the tenant, for a period


class OnRepeat(StrEnum):
    """What follows when the effect of a call has happened already."""

    RETURN = "RETURN"  # the recorded outcome is the outcome of the call
    ASK = "ASK"  # the call is in doubt: a person decides whether the effect happens again
    REFUSE = "REFUSE"  # the call fails


@dataclass(frozen=True, slots=True)
class EffectKey:
    """What a tool declares. `arguments`: JSON pointers into the arguments. `period_seconds`: only of TENANT."""

    arguments: tuple[str, ...]
    scope: EffectScope
    period_seconds: float = 0.0
    on_repeat: OnRepeat = OnRepeat.RETURN

    def check(self) -> None:
        """Raises ValueError for a key that no tool may declare."""
        if not 1 <= len(self.arguments) <= MAX_ARGUMENTS:
            raise ValueError(f"an effect key names 1 to {MAX_ARGUMENTS} arguments")
        if len(set(map(check_pointer, self.arguments))) < len(self.arguments):
            raise ValueError("an effect key names each argument once")
        if (self.scope is EffectScope.TENANT) != (self.period_seconds != 0):
            raise ValueError("an effect key has a period if its scope is the tenant, and no period otherwise")
        if self.period_seconds and not MIN_PERIOD_SECONDS <= self.period_seconds <= MAX_PERIOD_SECONDS:
            raise ValueError(f"the period of an effect key must be {MIN_PERIOD_SECONDS:g} s to 10 years")


class TaskScopes(NamedTuple):
    """The groups of a task, as the ledger knows them.

    `tree`: the id of the first root, before any fork. `conversation`, `source`: "" if the task has none.
    """

    tree: str
    conversation: str = ""
    source: str = ""

    def name_of(self, scope: EffectScope) -> str:
        """Returns the name of the task's group. The names of two scopes may be equal: a key has its scope, too."""
        if scope is EffectScope.CONVERSATION and self.conversation:
            return f"conversation {self.conversation}"
        return f"run {self.source}" if scope is EffectScope.SOURCE and self.source else self.tree


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect that a call makes: the digest of its key, and the parts of the key.

    `values_json`: the declared arguments with their values, as canonical JSON.
    """

    digest: bytes
    key: EffectKey
    scope_name: str
    values_json: str


def effect_of(key: EffectKey, tenant: str, tool: str, scope_name: str, arguments: dict[str, Any]) -> Effect:
    """Returns the effect of a call. Raises ValueError for arguments without the values of the key."""
    values: dict[str, JsonValue] = {}
    for pointer in key.arguments:
        try:
            values[pointer] = value_at(arguments, pointer)
        except LookupError:
            message = f"has no value at {pointer}, which says which effect the call makes"
            raise ValueError(message) from None
    try:
        values_json = canonical_json(values)
    except RecursionError:
        raise ValueError("nests too deeply") from None
    if len(values_json) > MAX_VALUE_BYTES:
        raise ValueError(f"has more than {MAX_VALUE_BYTES} bytes at {', '.join(key.arguments)}, which name its effect")
    names = canonical_json([tenant, tool, key.scope.value, scope_name])
    identity = f"{names[:-1]},{values_json}]"  # the list of all of them: to nest the values deeper may be too deep
    return Effect(hashlib.sha256(identity.encode()).digest(), key, scope_name, values_json)


def canonical_json(value: Any) -> str:
    """Returns equal texts for equal JSON values: 1 and 1.0, any order of names, any form of a Unicode character. What
    Postgres cannot store, NUL and half of a surrogate pair, is U+FFFD.

    Raises ValueError for a number that JSON cannot express.
    """
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("has a number that is too large")
        return int(value) if value.is_integer() else value
    if isinstance(value, str):
        storable = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
        return unicodedata.normalize("NFC", storable)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {_canonical(name): _canonical(item) for name, item in value.items()}
    return value


def idempotency_key(digest: bytes, period: int, round_number: int) -> str:
    """Returns the key by which another system recognises the effect.

    It follows from the effect key, so that it outlives a lost record. `period`: counts the periods before this one,
    `round_number` those times that the effect was tried and provably did not happen: then a new key is needed, because
    a bank may have recorded its refusal under the former one.
    """
    return f"{digest[:20].hex()}-{period}-{round_number}"


def period_number(now_seconds: float, period_seconds: float) -> int:
    """Returns the number of the period of an effect that begins now; 0 without a period."""
    return int(now_seconds // period_seconds) if period_seconds else 0
