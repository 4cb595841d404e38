"""The bodies and queries of the routes in operator_routes.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from services.gateway.http.requests import Page, TriggerBody, with_options
from services.gateway.http.shapes import given
from tenure.domain.access import Permission
from tenure.domain.quotas import QuotaKind, QuotaPolicy
from tenure.domain.states import TaskState
from tenure.domain.tool_rules import RuleVerdict
from tenure.domain.waits import WaitDeadlinePolicy
from tenure.sdk.submit_options import AGENT_OPTIONS
from tenure.sdk.submit_request import is_given

# One task. Each request has `request_id`, too.


@dataclass(frozen=True, kw_only=True)
class OperatorBody(TriggerBody):
    """An act of an operator on a task."""

    reason: str = given("why; it is recorded")


@dataclass(frozen=True, kw_only=True)
class GrantBudgetBody(OperatorBody):
    """A higher cap of the budget that the task shares with its tree."""

    extra_tokens: int = given("raises the cap in tokens", 0)
    extra_cost: Decimal | None = given("raises the cap in US dollars", None)


@dataclass(frozen=True, kw_only=True)
class RequeueBody(GrantBudgetBody):
    """Another attempt of a task that has ended, or that waits for calls in doubt."""

    extra_steps: int = given("raises the limit of steps", 0)


@dataclass(frozen=True, kw_only=True)
class CloseOutBody(OperatorBody):
    """The end of a task, decided by an operator."""

    to_state: TaskState = given("SUCCEEDED, FAILED, TIMED_OUT or CANCELLED")
    result: str = given("with SUCCEEDED: the result", "")


@dataclass(frozen=True, kw_only=True)
class BeginWaitBody(OperatorBody):
    """A wait that an operator lets the task begin; POST …/resume ends it."""

    question: str = given("what the task waits for")
    until: datetime = given("the deadline, at most 30 days from now")
    at_deadline: WaitDeadlinePolicy = given("what follows at the deadline", WaitDeadlinePolicy.GO_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBody:
    """Another worker for a task that runs."""

    reason: str = given("why; it is recorded")
    to_worker_id: str = given("the worker that continues; empty: any", "")
    epoch: int = given("only if the task still has this epoch; 0: whatever it has", 0)


class AgingView(StrEnum):
    """The tasks that a list of aging tasks has."""

    OLDEST = "OLDEST"
    HELD = "HELD"


@dataclass(frozen=True, kw_only=True)
class AgingQuery(Page):
    """The tasks to list."""

    view: AgingView = given(
        "OLDEST: all that have not ended, the oldest first; HELD: those with a worker, with their leases",
        AgingView.OLDEST,
    )
    state: tuple[TaskState, ...] = given("OLDEST: any of these states", ())
    idle_seconds: float | None = given("HELD: only tasks without a commit for this time", None)
    lease_below_seconds: float | None = given("HELD: only leases with less time than this", None)


@dataclass(frozen=True, kw_only=True)
class PruneQuery:
    """An ended task to delete for good, with its history, files and call records; its bills stay."""

    reason: str = given("why; it is recorded")
    dry_run: bool = given("only name the task", False)


@dataclass(frozen=True, kw_only=True)
class PruneBody(PruneQuery):
    """Ended tasks to delete for good, with their whole trees; not those with the label tenure.retention=keep."""

    ended_before: datetime = given("those that ended before this time")
    limit: int = given("the most tasks; 0: 100", 0)


# Stops.


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBody:
    """What to stop, or which stop to end. A stop covers what all of its selectors match."""

    reason: str = given("why; it is recorded")
    tenant: str = given("the tasks of this tenant; empty: of every tenant", "")
    agent: str = given("the tasks of this agent; empty: all", "")
    queue: str = given("the tasks of this queue; empty: of every queue", "")
    tool: str = given("only calls of the tools of this name, in which * stands for any text; empty: tasks", "")
    all: bool = given("the whole installation, without a selector", False)


# Tool sources.


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenToolBody:
    """A held tool, as the operator saw it."""

    name: str = given("the source's own name of the tool: `held[].name`")
    sha256: str = given("`held[].sha256`: a tool that changed since then stays held")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptToolsBody:
    """Held tools to offer from now on."""

    tools: tuple[SeenToolBody, ...] = given("the tools")


# Rules on tool calls.


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBoundsBody:
    """How many calls of a rule may run."""

    count: int = given("the most calls; 0: any number", 0)
    sum_of: str = given("the path of the amount of a call, such as args.amount", "")
    limit: str = given("the most of all amounts together, as an exact decimal", "")
    per: str = given("the path of the value for each of which the calls are counted apart, such as args.customer", "")
    window_seconds: float | None = given("counted anew in each such time since 1970 in UTC; null: never", None)
    beyond: RuleVerdict = given("what it decides about further calls: ASK or DENY", RuleVerdict.DENY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRuleBody:
    """A rule on calls of tools."""

    name: str = given("its name; a rule with it is replaced")
    tool: str = given("the tools that it fits: a name in which each * stands for any characters")
    verdict: RuleVerdict = given("what it decides")
    agent: str = given("the agent whose calls it fits; empty: every task's", "")
    when: str = given("a CEL expression that is true for the calls that it applies to; empty: to all", "")
    reason: str = given("why, for the model and for people", "")
    bounds: RuleBoundsBody | None = given("how many of these calls may run; null: any number", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TryToolRuleBody:
    """A rule to try on recorded calls."""

    since: datetime = given("the calls that were accepted from this time on")
    name: str = given("a rule that the tenant has; or empty, with tool_rule", "")
    tool_rule: ToolRuleBody | None = given("a rule that need not exist", None)
    agent: str = given("the agent of all these calls, which their records do not have", "")
    labels: Mapping[str, str] = field(
        default_factory=dict, metadata={"text": "the labels of all these calls, which their records do not have"}
    )


# Agents.


@dataclass(frozen=True, slots=True, kw_only=True)
@with_options(AGENT_OPTIONS)
class RegisterAgentBody:
    """An agent without code: a model, a system prompt, tools of the tool service, and limits."""

    name: str = given("unique in the tenant; an agent with it gets another revision, unless it has the same one")
    result: Any = given("a JSON Schema of the result; null: any text", None)
    make_current: bool = given("it gets all new tasks from now on", False)

    @property
    def options(self) -> dict[str, Any]:
        """The options that are given, by name."""
        return {name: value for name in AGENT_OPTIONS if is_given(value := getattr(self, name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQuery:
    """The revisions of an agent to read."""

    revision: int = given("this revision with its definition; 0: all, without definitions", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RampBody:
    """The share of new tasks that a revision gets."""

    revision: int = given("the revision")
    percent: float = given("0 to 100, with at most two decimals; 100: it becomes the current one")
    reason: str = given("why; it is recorded", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireBody:
    """A revision that gets no new task."""

    revision: int = given("the revision")
    reason: str = given("why; it is recorded", "")


# Tenants, keys and groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaBody:
    """A quota of a tenant."""

    kind: QuotaKind = given("the kind")
    limit: int | None = given("the cap; 0: nothing is allowed; null: none", None)
    limit_usd: Decimal | None = given("of MONEY_PER_DAY: the cap in US dollars; 0: no work; null: none", None)
    policy: QuotaPolicy | None = given("what happens to a submit at the cap; null: the usual of the kind", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsBody:
    """Quotas of a tenant to change. The others stay as they are."""

    reason: str = given("why; it is recorded")
    quotas: tuple[QuotaBody, ...] = given("the new quotas", ())
    follow_defaults: tuple[QuotaKind, ...] = given("the kinds that follow the defaults of the installation again", ())
    expected_revision: int | None = given("`revision` of the tenant that you read; null: any", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyBody:
    """An API key to create."""

    name: str = given("for people: who has it")
    permissions: tuple[Permission, ...] = given("what it may do")
    expires_at: datetime | None = given("null: never", None)
    any_tenant: bool = given("it may name every tenant: for operators", False)


@dataclass(frozen=True, kw_only=True)
class ApiKeysQuery(Page):
    """The API keys to list."""

    all: bool = given("also revoked and expired keys", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBody:
    """A group of people and programs who may answer waits."""

    name: str = given("of the group")
    members: tuple[str, ...] = given("their subjects, such as user/ann; they replace the present members")


# Webhooks.


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateBody:
    """A new secret of a webhook."""

    secret: str = given("whsec_ and 24 to 64 bytes in base64; empty: the gateway makes one", "")
    overlap_seconds: float | None = given("both secrets sign for this time; null: 24 hours", None)
