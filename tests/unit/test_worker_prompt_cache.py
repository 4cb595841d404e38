"""What of a prompt is marked to be kept: a growing history is read again up to where the last request ended."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from devstack.simulator.request_checks import check_create
from devstack.simulator.tokens import PromptCache, count_request, prompt_hash
from tenure.model_providers.anthropic_models import Prompt, marked

TOOLS = [{"name": name, "description": "x" * 4000, "input_schema": {"type": "object"}} for name in ("a", "b")]


def history(turns: Any, calls: int = 1) -> Any:
    messages = [{"role": "user", "content": [{"type": "text", "text": "goal " * 100}]}]
    for turn in range(turns):
        uses = [f"t{turn}-{index}" for index in range(calls)]
        answer = [{"type": "tool_use", "id": use, "name": "a", "input": {}} for use in uses]
        results = [{"type": "tool_result", "tool_use_id": use, "content": "r" * 400} for use in uses]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": results}]
    return messages


def body(prompt: Any) -> Any:
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": list(prompt.messages),
        "tools": list(prompt.tools),
        **({"system": prompt.system} if prompt.system else {}),
    }


@pytest.mark.parametrize("calls", [1, 30])
@pytest.mark.parametrize("system", ["Be brief. " * 300, ""])
def test_each_step_reads_the_prefix_of_the_last(system: Any, calls: int) -> None:
    cache, before = PromptCache(), 0
    for turns in range(5):
        request = body(marked(Prompt(system, TOOLS, history(turns, calls))))
        price = cache.price(check_create(request))
        assert price.cache_read == before
        assert price.plain == 0
        before = count_request(request)


def test_another_task_of_an_agent_reads_its_prompt_cache() -> None:
    cache = PromptCache()
    system = "Be brief. " * 500
    cache.price(body(marked(Prompt(system, TOOLS, history(3)))))
    other = [{"role": "user", "content": "Something else."}]
    price = cache.price(body(marked(Prompt(system, TOOLS, other))))
    assert price.cache_read == count_request(body(Prompt(system, TOOLS, []))) > 1024


@pytest.mark.parametrize("system", ["Be brief.", ""])
@pytest.mark.parametrize("tools", [TOOLS, []])
def test_marks_do_not_change_the_prompt(system: str, tools: Any) -> None:
    plain = Prompt(system, tools, history(4))
    kept = copy.deepcopy(plain)
    prompt = marked(plain)
    assert plain == kept
    assert count_request(body(prompt)) == count_request(body(plain))
    assert json.dumps(body(prompt)).count("cache_control") <= 4
    assert prompt_hash(body(prompt)) == prompt_hash(body(marked(copy.deepcopy(plain))))
