"""Agents and their revisions as frozen dataclasses without protobuf. docs/versions.md explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenure.domain.task import TaskPolicy
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.task_info import ModelParametersInfo, TaskLimits


@dataclass(frozen=True, slots=True)
class AgentInfo(PublicValue):
    """An agent. `kind`: MODEL (without code), PYTHON or FUNCTION. `ramp_revision` None: nothing ramps; otherwise it
    gets `ramp_percent` of the new tasks, and `current_revision` the rest.
    """

    name: str
    kind: str
    current_revision: int
    ramp_revision: int | None
    ramp_percent: float
    newest_revision: int
    created_at: datetime | None
    updated_at: datetime | None
    updated_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class AgentToolInfo(PublicValue):
    """A tool of an agent in Python. `effect_class` "": it runs in the agent's own function."""

    name: str
    description: str
    input_schema: Any
    effect_class: str
    needs_approval: bool
    timeout_seconds: float | None


@dataclass(frozen=True, slots=True)
class AgentDefinitionInfo(PublicValue):
    """The definition of a revision. `allowed_tools`: of the tool service, for an agent without code; None: all of them.

    `tools`: of an agent in Python. `limits` and `policy`: the defaults of tasks for an agent without code; None: none,
    and a limit of 0: no default.
    """

    kind: str
    model: str
    system: str
    allowed_tools: tuple[str, ...] | None
    approve_tools: tuple[str, ...]
    max_output_tokens: int
    context_window_tokens: int
    parameters: ModelParametersInfo | None
    tools: tuple[AgentToolInfo, ...]
    input_schema: Any
    output_schema: Any
    result_schema: Any
    limits: TaskLimits | None
    policy: TaskPolicy | None
    code_version: str


@dataclass(frozen=True, slots=True)
class AgentRevisionInfo(PublicValue):
    """A revision of an agent. `builds`: those that can run it, with the time of their first registration; empty: any
    worker with the agent. `open_tasks`: those that are pinned to it and have not ended. `definition` None: in lists.
    """

    agent: str
    revision: int
    digest: str
    builds: Mapping[str, datetime | None]
    open_tasks: int
    created_at: datetime | None
    created_by: str
    retired_at: datetime | None
    definition: AgentDefinitionInfo | None


@dataclass(frozen=True, slots=True)
class BuildInfo(PublicValue):
    """A build of workers: the open tasks that it can run, and how many of them no other build can run.

    Its workers may go when `only_here` is 0.
    """

    build: str
    open_tasks: int
    only_here: int


@dataclass(frozen=True, slots=True)
class AgentDetails(PublicValue):
    """An agent with its revisions, newest first, and the builds that they need."""

    agent: AgentInfo
    revisions: tuple[AgentRevisionInfo, ...]
    builds: tuple[BuildInfo, ...]


@dataclass(frozen=True, slots=True)
class AgentRegistration(PublicValue):
    """A registered revision. `created` false: the same definition was registered before."""

    agent: AgentInfo
    revision: AgentRevisionInfo
    created: bool
