"""Agents that have others work for them: a tree through the gateway, and a cancel that goes down it."""

from __future__ import annotations

import json

from tenure.cli.formatting import tokens_total
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


async def tree_of(install: Installation, root: str) -> list[task_pb2.Task]:
    wanted = task_pb2.TaskFilter(root_task_id=root)
    return sorted([one async for one in install.client.list_tasks(wanted)], key=lambda one: one.depth)


async def test_a_tree_of_agents_comes_to_one_answer(installation: Installation) -> None:
    root = await installation.submit("sim-by-goal", "teams at work")
    ended = await installation.ended(root)
    assert ended.state == SUCCEEDED
    result = await tree_of(installation, root)
    assert [one.depth for one in result] == [0, 1, 1, 2, 2]
    assert {one.state for one in result} == {SUCCEEDED}
    entries = await installation.entries(root)
    check_whole(entries)
    (outcome,) = [one.body.tool_outcome.outcome for one in entries if one.body.HasField("tool_outcome")]
    entry = json.loads(outcome.content)["sub_agents"]
    assert "They said" in entry[0]["result"]
    used = sum(len(installation.model_calls(one.task_id)) for one in result)
    assert used == 7  # two of each parent, one of each of the others
    shown = await tenure("tasks", "tree", result[-1].task_id, address=installation.stack.gateway_address)
    assert all(one.task_id[:13] in shown.out for one in result)
    used_tokens = sum(tokens_total(one.usage) for one in result)
    watched = await tenure("watch", root, address=installation.stack.gateway_address)
    assert f"with its sub-agents: {used_tokens:,} tokens" in watched.out
