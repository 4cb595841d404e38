"""request_approval, ask_user, wait_external and spawn_sub_agents: what an agent calls to wait for others.

Nothing is run: the task's loop commits a wait instead of executing such a call; the ledger writes its outcome with the
answer. They are defined here so that they are offered, allowed and recorded like every other tool.
"""

from __future__ import annotations

from typing import Any, Final

from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailure, define
from tenure.domain.budget import MAX_TOKENS
from tenure.domain.sub_agents import MAX_GOAL_CHARACTERS, MAX_TOOLS, SPAWN_SUB_AGENTS
from tenure.domain.task import MAX_FAN_OUT
from tenure.domain.tools import EffectClass
from tenure.domain.waiting_calls import ASK_USER, REQUEST_APPROVAL, WAIT_EXTERNAL
from tenure.domain.waits import (
    DEFAULT_EVENT_SECONDS,
    DEFAULT_PERSON_SECONDS,
    MAX_CONTEXT_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_REFERENCE_CHARACTERS,
    MAX_WAIT_SECONDS,
    MIN_WAIT_SECONDS,
)

_ASIDE: Final[dict[str, Any]] = {
    "context": {
        "type": "string",
        "maxLength": MAX_CONTEXT_CHARACTERS,
        "description": "what whoever answers should know",
    },
    "reference": {
        "type": "string",
        "maxLength": MAX_REFERENCE_CHARACTERS,
        "description": "your own name of the matter, for example a ticket",
    },
}
_QUESTION: Final = {"question": {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION_CHARACTERS}}
_OPTIONS: Final = {
    "options": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_OPTION_CHARACTERS},
        "maxItems": MAX_OPTIONS,
        "uniqueItems": True,
        "description": "the decisions to choose from; approve and deny unless given",
    }
}
_CORRELATION: Final = {
    "correlation_id": {"type": "string", "minLength": 1, "maxLength": 200, "description": "the name the event comes by"}
}


_GOALS: Final = {
    "goals": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_GOAL_CHARACTERS},
        "minItems": 1,
        "maxItems": MAX_FAN_OUT,
        "description": "what each of them is to do: one sub-agent a goal. They know nothing but their goal",
    }
}
_SHARES: Final[dict[str, Any]] = {
    "tools": {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": MAX_TOOLS,
        "description": "the tools they may use, among your own; all of yours unless given",
    },
    "max_tokens": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_TOKENS,
        "description": "what each of them may use up; an equal share of what is left unless given",
    },
    "deadline_seconds": {
        "type": "number",
        "minimum": MIN_WAIT_SECONDS,
        "maximum": MAX_WAIT_SECONDS,
        "description": f"how long to wait for them; who is late is stopped. {DEFAULT_EVENT_SECONDS:g} unless given",
    },
}
_SPAWN: Final = (
    "Have sub-agents work on goals in parallel, and wait until all of them have ended. The answer has for each, in the "
    "order of the goals, its result, or [timeout], [cost_exceeded], [failed: why] or [cancelled] and what it had said "
    "so far."
)


def waiting_tools() -> list[Tool]:
    """The four; running one says that its loop should have waited."""
    return [
        _tool(
            REQUEST_APPROVAL,
            "Ask a person to decide, and wait. The answer has the decision, and who made it and when.",
            {**_QUESTION, **_OPTIONS, **_ASIDE, **_deadline(DEFAULT_PERSON_SECONDS)},
            required=("question",),
        ),
        _tool(
            ASK_USER,
            "Ask a person a question, and wait. The answer has their reply in their own words.",
            {**_QUESTION, **_ASIDE, **_deadline(DEFAULT_PERSON_SECONDS)},
            required=("question",),
        ),
        _tool(
            WAIT_EXTERNAL,
            "Wait for an event from outside that comes by its correlation id. The answer has the event's payload.",
            {
                **_CORRELATION,
                **_ASIDE,
                "question": {**_QUESTION["question"], "minLength": 0, "description": "what is waited for, in words"},
                **_deadline(DEFAULT_EVENT_SECONDS),
            },
            required=("correlation_id",),
        ),
        _tool(SPAWN_SUB_AGENTS, _SPAWN, {**_GOALS, **_SHARES}, required=("goals",)),
    ]


def _deadline(default_seconds: float) -> dict[str, Any]:
    return {
        "timeout_seconds": {
            "type": "number",
            "minimum": MIN_WAIT_SECONDS,
            "maximum": MAX_WAIT_SECONDS,
            "description": f"how long to wait; {default_seconds:g} unless given",
        },
        "at_deadline": {
            "enum": ["time_out", "go_on"],
            "description": "what happens then: the task times out (unless given), or you go on and read that there was "
            "no answer",
        },
    }


def _tool(name: str, description: str, properties: dict[str, Any], *, required: tuple[str, ...]) -> Tool:
    return Tool(define(name, EffectClass.PURE, description, properties, required=required), _run)


async def _run(_context: CallContext, _arguments: Arguments) -> ToolAnswer:
    raise ToolFailure("This call is not executed: the task's own loop has to wait for its answer.", "WAITS")
