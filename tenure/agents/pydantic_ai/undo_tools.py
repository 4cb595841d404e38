"""Runs tools of an agent for undos: without a run of the agent, with the dependencies of the undone task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pydantic_ai
from pydantic_ai.tools import Tool
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from tenure.agents.calls import running_call
from tenure.agents.execution import unit
from tenure.agents.prompts import FromInput, made_from
from tenure.agents.pydantic_ai.content import function_tools
from tenure.agents.pydantic_ai.durability import DurableSettings
from tenure.agents.pydantic_ai.tool_calls import ToolContext, compensation_of, effect_of, own_tool
from tenure.agents.undo_tools import check_arguments, loose_schema
from tenure.control.own_tools import OwnTool, OwnToolContext
from tenure.domain.tools import USUAL_OUTPUT_BYTES


def own_undo_tools(
    agent: pydantic_ai.Agent[Any, Any], name: str, settings: DurableSettings, deps: FromInput | None, given: Any
) -> list[OwnTool]:
    """Returns the tools of the agent that its compensations name. `given`: the input of the undone task.

    Raises ValueError for a compensation whose tool is not a recorded tool of the agent, or has other arguments.
    """
    known = {tool.name: tool for tool in function_tools(agent)}
    stated = (compensation_of(tool.tool_def) for tool in known.values())
    declared = [each for each in stated if each is not None and each.own_tool]
    wanted, made = sorted({each.tool for each in declared}), []
    for each in wanted:
        effect = effect_of(known[each].tool_def, settings.effects) if each in known else None
        if effect is None:
            raise ValueError(f"agent {name}: a compensation calls {each}, which is not a recorded tool of the agent")
        tool, limit_bytes = known[each], settings.output_limits.get(each, USUAL_OUTPUT_BYTES)
        shown = own_tool(each, tool.tool_def, effect, settings.tool_timeout_seconds, limit_bytes)
        schema, run = loose_schema(tool.function_schema.json_schema), _run_of(agent, tool, deps, given)
        made.append(replace(shown, input_schema=schema, needs_approval=tool.requires_approval, run=run))
    for compensation in declared:
        check_arguments(name, compensation, known[compensation.tool].function_schema.json_schema)
    return made


def _run_of(agent: pydantic_ai.Agent[Any, Any], tool: Tool[Any], deps: FromInput | None, given: Any) -> Any:
    async def run(call: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        model: Any = agent.model  # its name may be all that there is: an undo calls no model
        context = ToolContext(
            deps=None if deps is None else await made_from(deps, given),
            model=model,
            usage=RunUsage(),
            tool_name=tool.name,
            tool_call_approved=tool.requires_approval,
            task_id=call.task_id,
            call_id=call.call_id,
            call_attempt=call.call_attempt,
            idempotency_key=call.idempotency_key,
            epoch=call.epoch,
        )
        with unit(f"the tool {tool.name}"), running_call(call):
            validated = tool.function_schema.validator.validate_json(json.dumps(dict(arguments)))
            result = await tool.function_schema.call(validated, context)
        return result if isinstance(result, str) else json.dumps(to_jsonable_python(result, fallback=str))

    return run
