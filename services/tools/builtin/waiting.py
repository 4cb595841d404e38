"""The tools request_approval, ask_user, wait_external and spawn_sub_agents, with which an agent begins a wait.

The tool service never runs these tools: the task's loop commits a wait instead of executing the call, and the ledger
writes the call's outcome together with the answer. They are defined here so that the tool service lists them, checks
them against policies and records them like every other tool.
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

_CONTEXT_FIELDS: Final[dict[str, Any]] = {
    "context": {
        "type": "string",
        "maxLength": MAX_CONTEXT_CHARACTERS,
        "description": "what the person or system that answers should know",
    },
    "reference": {
        "type": "string",
        "maxLength": MAX_REFERENCE_CHARACTERS,
        "description": "your own name for the matter, for example a ticket number",
    },
}
_QUESTION: Final = {"question": {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION_CHARACTERS}}
_OPTIONS: Final = {
    "options": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_OPTION_CHARACTERS},
        "maxItems": MAX_OPTIONS,
        "uniqueItems": True,
        "description": "the decisions to choose from; default: approve and deny",
    }
}
_CORRELATION: Final = {
    "correlation_id": {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
        "description": "the correlation id of the event",
    }
}

_GOALS: Final = {
    "goals": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_GOAL_CHARACTERS},
        "minItems": 1,
        "maxItems": MAX_FAN_OUT,
        "description": "one goal for each sub-agent. A sub-agent knows nothing but its goal",
    }
}
_SHARES: Final[dict[str, Any]] = {
    "tools": {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": MAX_TOOLS,
        "description": "the tools that the sub-agents may use, a subset of yours; default: all of yours",
    },
    "max_tokens": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_TOKENS,
        "description": "the most tokens that each sub-agent may use; default: an equal share of what is left",
    },
    "deadline_seconds": {
        "type": "number",
        "minimum": MIN_WAIT_SECONDS,
        "maximum": MAX_WAIT_SECONDS,
        "description": f"how long to wait; later sub-agents are stopped. Default: {DEFAULT_EVENT_SECONDS:g}",
    },
}
_SPAWN: Final = (
    "Have sub-agents work on goals in parallel, and wait until all of them have ended. The answer has, in the order of "
    "the goals, the result of each sub-agent, or [timeout], [cost_exceeded], [failed: why] or [cancelled] with what it "
    "had written so far."
)


def waiting_tools() -> list[Tool]:
    """Returns the four tools. A call that reaches the tool service fails with WAITS."""
    return [
        _tool(
            REQUEST_APPROVAL,
            "Ask a person to decide, and wait. The answer has the decision, the person and the time.",
            {**_QUESTION, **_OPTIONS, **_CONTEXT_FIELDS, **_deadline(DEFAULT_PERSON_SECONDS)},
            required=("question",),
        ),
        _tool(
            ASK_USER,
            "Ask a person a question, and wait. The answer has their reply in their own words.",
            {**_QUESTION, **_CONTEXT_FIELDS, **_deadline(DEFAULT_PERSON_SECONDS)},
            required=("question",),
        ),
        _tool(
            WAIT_EXTERNAL,
            "Wait for an external event with this correlation id. The answer has the event's payload.",
            {
                **_CORRELATION,
                **_CONTEXT_FIELDS,
                "question": {
                    **_QUESTION["question"],
                    "minLength": 0,
                    "description": "what the task waits for",
                },
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
            "description": f"how long to wait; default {default_seconds:g}",
        },
        "at_deadline": {
            "enum": ["time_out", "go_on"],
            "description": "what happens without an answer in time: time_out (default) ends the task; go_on lets you "
            "continue and read that there was no answer",
        },
    }


def _tool(name: str, description: str, properties: dict[str, Any], *, required: tuple[str, ...]) -> Tool:
    return Tool(define(name, EffectClass.PURE, description, properties, required=required), _run)


async def _run(_context: CallContext, _arguments: Arguments) -> ToolAnswer:
    raise ToolFailure("This call is not executed: the task's loop must commit a wait for its answer.", "WAITS")
