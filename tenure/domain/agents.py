"""Decides which revision of an agent a new task is pinned to.

An agent has a name and immutable revisions. New tasks get its current revision; a ramp gives a part of them another
one. A pinned task keeps its revision for its whole life.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.tools import EffectClass

ALL_BASIS_POINTS: Final = 10_000
"""Hundredths of a percent: all new tasks."""
MAX_BUILD_CHARACTERS: Final = 128
BUILD: Final = re.compile(rf"[a-zA-Z0-9][a-zA-Z0-9._+:-]{{0,{MAX_BUILD_CHARACTERS - 1}}}\Z")
BUILD_RULE: Final = "1 to 128 of letters, digits and ._+:-, beginning with a letter or digit"
MAX_REVISION: Final = 2**31 - 1
_REFERENCE: Final = re.compile(r"(?P<name>[^@]+)(?:@(?P<revision>[1-9][0-9]{0,9}))?\Z")


class AgentKind(StrEnum):
    """The kind of an agent: the loop of this project without code, an agent in Python, or a control function."""

    MODEL = "MODEL"
    PYTHON = "PYTHON"
    FUNCTION = "FUNCTION"


def chosen_by_code(name: str) -> str:
    """Returns why a submit or a fork cannot choose the model, its parameters, the system prompt or the tools."""
    return f"cannot be chosen for {name}: its code chooses it"


@dataclass(frozen=True, slots=True)
class AgentPin:
    """The revision that a task is pinned to. `needs_build`: only workers with the code of this revision get the task.

    `ramped`: it was chosen because it ramped. `digest` "": the ledger has not chosen yet.
    """

    agent: str
    revision: int = 0
    digest: str = ""
    needs_build: bool = False
    ramped: bool = False

    @property
    def reference(self) -> str:
        """The revision as people write it."""
        return reference(self.agent, self.revision)


@dataclass(frozen=True, slots=True)
class ToolContent:
    """A tool of an agent in Python. `effect` None: it runs in the agent's own function."""

    name: str
    description: str
    input_schema_json: str
    effect: EffectClass | None
    needs_approval: bool = False
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AgentContent:
    """The definition of an agent or a function in Python, besides its code.

    `version`: of its code, as its author names it.
    """

    kind: AgentKind
    model: str = ""
    system: str = ""
    tools: tuple[ToolContent, ...] = ()
    input_schema_json: str = ""
    output_schema_json: str = ""
    max_output_tokens: int = 0
    version: str = ""

    def code_version(self, build: str) -> str:
        """The version of the code in the definition.

        A function that names none has the build: its recorded steps fit the code that made them, and nothing else says
        whether another build has the same code. The runs of agents follow from their definition.
        """
        return self.version or (build if self.kind is AgentKind.FUNCTION else "")


@dataclass(frozen=True, slots=True)
class Routing:
    """The revisions to which new tasks of an agent go. `ramp_revision` 0: nothing ramps."""

    current: int
    ramp_revision: int = 0
    ramp_basis_points: int = 0

    def choose(self, agent: str, task_id: str) -> tuple[int, bool]:
        """Returns the revision of a new task, and whether the ramp chose it."""
        if self.ramp_revision and is_ramped(agent, task_id, self.ramp_basis_points):
            return self.ramp_revision, True
        return self.current, False

    def ramped(self, revision: int, basis_points: int) -> Routing:
        """Returns the routing with this ramp: all makes the revision current, 0 ends its ramp."""
        if basis_points >= ALL_BASIS_POINTS:
            return Routing(revision)
        if not basis_points:
            return Routing(self.current) if revision == self.ramp_revision else self
        return Routing(self.current, revision, basis_points)


def is_ramped(agent: str, task_id: str, basis_points: int) -> bool:
    """Whether a task is in the part of new tasks that a ramp gets.

    A higher ramp has all tasks of a lower one. Agents' parts are independent of each other.
    """
    digest = hashlib.sha256(f"{agent}\0{task_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % ALL_BASIS_POINTS < basis_points


def becomes_current(
    routing: Routing, kind: AgentKind, *, is_created: bool, has_build: bool, current_has_build: bool
) -> bool:
    """Whether a revision that is registered now becomes the current one without an operator.

    The first does. Without builds all workers run their own code anyhow, so that the last registration of code counts.
    """
    if not routing.current:
        return True
    follows_workers = kind is not AgentKind.MODEL and not (has_build or current_has_build or routing.ramp_revision)
    return is_created and follows_workers


def reference(agent: str, revision: int) -> str:
    """Returns `support@7`."""
    return f"{agent}@{revision}"


def read_reference(text: str) -> tuple[str, int]:
    """Returns the agent and the revision of `support@7`; 0 for `support`. Raises ValueError."""
    match = _REFERENCE.match(text)
    if match is None or int(match["revision"] or 0) > MAX_REVISION:
        raise ValueError(f"{text!r} is not an agent: write its name, or a revision as in support@7")
    return match["name"], int(match["revision"] or 0)


def read_percent(text: str) -> int:
    """Returns basis points for `10%`, `10` or `0.5%`. Raises ValueError."""
    number = text.strip().removesuffix("%").strip()
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,2})?", number) is None:
        raise ValueError(f"{text!r} is not a percentage with at most two decimals: write for example 10%")
    whole, _, decimals = number.partition(".")
    basis_points = int(whole) * 100 + int(decimals.ljust(2, "0") or 0)
    if basis_points > ALL_BASIS_POINTS:
        raise ValueError(f"{text!r} is more than 100%")
    return basis_points


def percent_text(basis_points: int) -> str:
    """Returns `10%`, or `0.5%`."""
    return f"{basis_points / 100:g}%"


@dataclass(frozen=True, slots=True)
class BuildNeed:
    """The open tasks that a build can run, and those of them that no other build can run."""

    build: str
    open_tasks: int
    only_here: int


def needs_of_builds(revisions: Mapping[int, tuple[int, tuple[str, ...]]]) -> list[BuildNeed]:
    """Returns for each build which open tasks need it, by name. `revisions`: their open tasks, and their builds.

    Old workers may go when no open task is left that only their build can run.
    """
    builds = sorted({build for _, names in revisions.values() for build in names})
    return [
        BuildNeed(
            build,
            sum(open_tasks for open_tasks, names in revisions.values() if build in names),
            sum(open_tasks for open_tasks, names in revisions.values() if names == (build,)),
        )
        for build in builds
    ]
