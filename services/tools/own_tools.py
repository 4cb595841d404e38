"""Checks calls of own tools: tools that come with their call, because the caller runs them itself."""

from __future__ import annotations

import re
from typing import Final

from services.tools.registry import ToolRegistry
from services.tools.schemas import parse_arguments, untrusted_schema
from services.tools.tool import Arguments
from tenure.domain.effect_keys import EffectKey
from tenure.domain.errors import InvalidRequest
from tenure.domain.fencing import Claims
from tenure.domain.long_output import SHORTENED
from tenure.domain.texts import digest_of_path
from tenure.domain.tools import NAME_TAKEN, OWN_STATUSES, Outcome, OutcomeStatus, ToolDefinition, within_limit
from tenure.v1 import tool_service_pb2
from tenure.wire.common import OUTCOME_STATUSES, seconds

_DETAIL: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")


def check_own_call(
    registry: ToolRegistry, claims: Claims, definition: ToolDefinition, arguments_json: str
) -> Arguments | Outcome:
    """Returns the arguments, or the outcome of a call that must not run. Raises InvalidRequest for an invalid schema.

    No other tool may have the name: one name has one meaning in a task, and a definition that a worker sends must not
    take the place of a tool that the operator configured.
    """
    name = definition.name
    try:
        schema = untrusted_schema(definition.input_schema_json)
    except ValueError as error:
        raise InvalidRequest(violations=[("own_tool.input_schema_json", str(error))]) from None
    if not claims.allows_tool(name):
        return Outcome(OutcomeStatus.NOT_ALLOWED, f"This task may not use {name!r}.")
    if registry.takes(name, claims.tenant):
        message = (
            f"The tool service has a tool, or a source of tools, named as {name!r}: give your own tool another name."
        )
        return Outcome(OutcomeStatus.INVALID_ARGUMENTS, message, detail=NAME_TAKEN)
    arguments = parse_arguments(arguments_json)
    if arguments is None:
        return _invalid(f"The arguments of {name} must be a JSON object.")
    if problems := schema.problems(arguments):
        return _invalid(f"The arguments do not fit {name}: {'; '.join(problems)}.")
    return arguments


def check_own_effect_key(key: EffectKey) -> None:
    """Raises InvalidRequest for an effect key that no tool may declare."""
    try:
        key.check()
    except ValueError as error:
        raise InvalidRequest(violations=[("own_tool.effect_key", str(error))]) from None


def read_own_outcome(message: tool_service_pb2.OwnOutcome, definition: ToolDefinition) -> Outcome:
    """Returns what the caller's run came to. The caller is not trusted with more than the definition allows."""
    status = OUTCOME_STATUSES.to_domain(message.status)
    is_kept = status is OutcomeStatus.SUCCEEDED and bool(digest_of_path(message.output_path))
    outcome = Outcome(
        status if status in OWN_STATUSES else OutcomeStatus.FAILED,
        message.content,
        truncated=is_kept or message.detail == SHORTENED,
        output_path=message.output_path if is_kept else "",
        detail=message.detail if _DETAIL.match(message.detail) else "",
        duration_seconds=seconds(message.duration),
        call_attempt=message.call_attempt,
    )
    return within_limit(outcome, definition)


def _invalid(sentence: str) -> Outcome:
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)
