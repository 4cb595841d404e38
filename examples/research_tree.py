"""A tree of agents under one budget: a function asks one sub-agent for each topic, and puts their answers together.

    tenure dev                                                     # in another terminal
    TENURE_WORKER_LOOPS=control TENURE_WORKER_CONTROL_MODULES=research_tree PYTHONPATH=examples tenure serve worker
    tenure submit --function research --input '{"topics": ["tea", "milk"]}' --model sim-hello --max-tokens 20000 --watch
    tenure tasks tree TASK

The function holds no worker while the sub-agents work, and begins again with their answers. The sub-agents have the
model of the task, and spend its budget together.
"""

from __future__ import annotations

import json
from typing import Any

from tenure.control import Work

TOPICS_AT_ONCE = 8
"""The most sub-agents of one call: see docs/sub_agents.md."""


async def research(work: Work, given: dict[str, Any]) -> dict[str, Any]:
    """Returns what the sub-agents found, by topic, and the topics without an answer."""
    answers: dict[str, str] = {}
    missing: list[str] = []
    topics: list[str] = given["topics"]
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        batch = topics[first : first + TOPICS_AT_ONCE]
        goals = [f"Find out about {topic}, in three sentences." for topic in batch]
        answer = json.loads(await work.call_tool("spawn_sub_agents", {"goals": goals, "tools": []}))
        for topic, agent in zip(batch, answer["sub_agents"], strict=True):
            if agent["state"] == "SUCCEEDED":
                answers[topic] = agent["result"]
            else:  # a cap, a timeout or a failure: the others' answers stay
                missing.append(topic)
    return {"found": answers, "missing": missing}


FUNCTIONS = {"research": research}
